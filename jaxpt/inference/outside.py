"""Texts from outside: arguments, and lines of stdin.

Where the locale is C or POSIX, Python reads bytes that are not UTF-8 as lone surrogates, which nothing can write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from jaxpt.errors import UserError
from jaxpt.runtime.disk import is_utf_8


def check_utf_8(text: str, where: str) -> None:
    """Raises UserError for a text with bytes that are not UTF-8.

    Args:
      text: an argument or a line.
      where: its name, for messages.
    """
    if not is_utf_8(text):
        raise UserError(f"{where}: not UTF-8; wants text in UTF-8")


def lines_of_stdin() -> Iterator[str]:
    """The lines of stdin with their ends.

    Raises:
      UserError: a line is not UTF-8.
    """
    lines = iter(sys.stdin)
    while True:
        try:
            line = next(lines)
        except StopIteration:
            return
        except UnicodeDecodeError as error:
            raise UserError(f"stdin: not UTF-8 ({error.reason}); wants text in UTF-8") from None
        check_utf_8(line, "stdin")
        yield line
