"""Each line of one of several processes begins with the time and its index; lines of a process alone do not.

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
    """Gives lines this index from now on: the process is one of several.

    Args:
      index: this process's index.
    """
    global _process
    if _process is None:
        _stamp_warnings()
    _process = index


def stamped(text: str) -> str:
    """Puts time and index before a text's lines.

    Args:
      text: one line or several.

    Returns:
      The text; if there are several processes, with month, day, time and process index before each line.

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
