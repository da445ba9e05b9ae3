"""The exception for user errors, notes, and values of others in messages: short, on one line, printable."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any


def _say_nothing(line: str) -> None:
    pass


note: Callable[[str], None] = _say_nothing
"""Is given a line that a user should see, though nothing failed; the command line prints it."""


class UserError(Exception):
    """An error that the user can fix. The message names, in one line, the key or file, the problem and the solution.

    The command line prints it as one line and exits with code 2.
    """


class AlreadySaid(UserError):
    """A user error whose line is printed already, by this process or by another one of the run: the exit code alone."""


def printable(text: str, limit: int = 1200) -> str:
    """One line of a text for a terminal: control characters are escaped, the middle of a long text is left out.

    Example:
      >>> printable("red: \\x1b[31m\\nnext")
      'red: \\\\x1b[31m next'
    """
    if len(text) > limit:
        text = f"{text[: limit // 2]} … {text[-limit // 2 :]}"
    return " ".join("".join(c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text).split())


def shown(value: Any) -> str:
    """A value of JSON in a message, at most about 80 characters long; null stays null."""
    if value is None:
        return "null"
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    text = short.repr(value)
    return text if len(text) <= 160 else f"{text[:160]}…"
