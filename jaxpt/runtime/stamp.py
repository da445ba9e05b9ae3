"""Time and process index at the start of each line that one of several processes prints. A process alone has neither.

All that a process prints itself goes through `stamped`; Python's warnings and log records get the same. What libraries
print from C++ (Gloo, XLA) does not.
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

_process: int | None = None


def set_process(index: int) -> None:
    """From now on lines carry this index: the process is one of several.

    Args:
      index: of this process.
    """
    global _process
    if _process is None:
        _stamp_warnings()
    _process = index


def stamped(text: str) -> str:
    """A text as it is printed.

    Args:
      text: one line or several.

    Returns:
      The text; where there are several processes, with month, day, time and process index before each line.

    Example:
      >>> stamped("step 20/400")
      'step 20/400'
    """
    if _process is None:
        return text
    start = f"{time.strftime('%m-%d %H:%M:%S')} [{_process}] "
    return "\n".join(start + line for line in text.split("\n"))


def _stamp_warnings() -> None:
    """Gives the index to Python's warnings, and to log records, which have a time of their own."""
    to_text, to_record = warnings.formatwarning, logging.getLogRecordFactory()

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        log_record = to_record(*args, **kwargs)
        log_record.msg = f"[{_process}] {log_record.msg}"
        return log_record

    warnings.formatwarning = lambda *args, **kwargs: stamped(to_text(*args, **kwargs).rstrip("\n")) + "\n"
    logging.setLogRecordFactory(record)
