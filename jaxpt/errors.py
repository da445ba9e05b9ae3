"""User errors, notes, and texts that are safe and short enough to print."""

from __future__ import annotations

import contextlib
import json
import reprlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

COLUMNS = 100
"""Maximum width of printed lines."""


def _say_nothing(line: str) -> None:
    pass


note: Callable[[str], None] = _say_nothing
"""Called with a line that a user should see, though nothing failed; said within `noting` alone."""


@contextlib.contextmanager
def noting(say: Callable[[str], None]) -> Iterator[None]:
    """Gives, within it, the lines of `note` to a function, each once; within another one they are that one's. It is a
    decorator as well.

    Example:
      >>> with noting(print):
      ...     for _ in range(2):
      ...         note("is shorter")
      is shorter
    """
    global note
    if note is not _say_nothing:
        yield
        return
    notes: set[str] = set()  # a run's config.yaml is read several times

    def say_once(line: str) -> None:
        if line not in notes:
            notes.add(line)
            say(line)

    note = say_once
    try:
        yield
    finally:
        note = _say_nothing


class UserError(Exception):
    """An error that the user can fix. The message names, in one line, the key or file, the problem and the solution.

    The command line prints it as one line and exits with `exit_code` (`jaxpt.runtime.exit_codes`).
    """

    exit_code: int = 2


class RetryableError(UserError):
    """Nothing has to be mended: the same command goes on. A process or a machine was lost, late or stuck."""

    exit_code = 75


class StorageError(UserError):
    """There is no room to write: once there is, the same command goes on."""

    exit_code = 74


class DivergedError(UserError):
    """The numbers of a training run went wrong: the same command would go the same way."""

    exit_code = 65


class AlreadySaid(UserError):
    """A user error whose line was printed already, by this process or by another one of the run."""

    def __init__(self, exit_code: int = 2) -> None:
        """With the exit code of the error that was printed."""
        super().__init__()
        self.exit_code = exit_code


def escaped(text: str) -> str:
    """A text whose control characters, line ends among them, are written as Python writes them.

    Example:
      >>> escaped("red: \\x1b[31m")
      'red: \\\\x1b[31m'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable(text: str, limit: int = 1200) -> str:
    """One line of a text for a terminal: control characters are escaped, the middle of a long text is left out.

    Example:
      >>> printable("red: \\x1b[31m\\nnext")
      'red: \\\\x1b[31m next'
    """
    if len(text) > limit:
        text = f"{text[: limit // 2]} … {text[-limit // 2 :]}"
    return " ".join("".join(c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text).split())


def listed(names: Sequence[str], limit: int = 3) -> str:
    """The first names and how many more there are.

    Example:
      >>> listed(["a", "b", "c"], 2)
      'a, b and 1 more'
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def fitted(text: str) -> str:
    """Breaks lines of more than `COLUMNS` columns between words; the rest is indented further. Commands, which users
    paste, and longer words stay whole.

    Example:
      >>> [len(line) for line in fitted("  text " + 40 * "word ").split("\\n")]
      [96, 100, 20]
      >>> fitted("to try it: jaxpt generate runs/" + 100 * "x" + " --prompt Hello").count("\\n")
      0
    """
    return "\n".join(map(_fitted, text.split("\n")))


def _fitted(line: str) -> str:
    if len(line) <= COLUMNS or ": jaxpt " in line:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    whole = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False, "expand_tabs": False}
    return textwrap.fill(line, COLUMNS, subsequent_indent=indent, **whole)


def shown(value: Any) -> str:
    """Formats a value of JSON or YAML for a message, in about 80 characters; null, true and false as they write it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    text = short.repr(value)
    return text if len(text) <= 160 else f"{text[:160]}…"
