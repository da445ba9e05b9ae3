"""Why a run of a study failed: in words, with the exit code of its process; and the exit code of the study."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from jaxpt.errors import RetryableError
from jaxpt.runtime import exit_codes

UNEXPECTED = 1
ORDER = (exit_codes.RETRY, UNEXPECTED, exit_codes.STORAGE, 65, exit_codes.MISTAKE)
"""Exit codes by how much a re-run helps: of several failures the first one is the study's."""


class Failure(str):
    """The reason of a failure in words; "" where there is none."""

    code: int
    """One of ORDER; 0 where there is no failure."""

    def __new__(cls, words: str, code: int) -> Failure:
        """With its words and its exit code."""
        failure = super().__new__(cls, words)
        failure.code = code
        return failure


def of_error(error: Exception) -> Failure:
    """The failure of a run whose process was not started.

    Args:
      error: why.
    """
    return Failure(str(error), exit_codes.of(error))


def of_process(code: int, lines: Sequence[str]) -> Failure:
    """The failure of a process.

    Args:
      code: its exit code; -N where signal N ended it.
      lines: what it printed; the last one that is not blank is the reason.

    Example:
      >>> of_process(0, ["done"]), of_process(2, ["jaxpt: too long", ""]), of_process(-9, ["step 5"]).code
      ('', 'too long', 75)
    """
    last = next((line.strip() for line in reversed(lines) if line.strip()), "").removeprefix("jaxpt: ")
    if code < 0:
        return Failure(f"killed by {signal.Signals(-code).name}; its last line: {last}", exit_codes.RETRY)
    if code == 0:
        return Failure("", 0)
    if code > 128:  # a signal to it alone: it has saved
        return Failure(last or f"exit code {code}", exit_codes.RETRY)
    return Failure(last or f"exit code {code}", code if code in ORDER else UNEXPECTED)


def ended_early() -> Failure:
    """The failure of a process that ended with 0 before its run did."""
    return of_error(RetryableError("ended before its time"))


def exit_code(failures: Iterable[Failure]) -> int:
    """The exit code of a study.

    Args:
      failures: of its runs.

    Example:
      >>> exit_code([]), exit_code([Failure("too long", 2), Failure("killed", 75)])
      (0, 75)
    """
    return min((failure.code for failure in failures), key=ORDER.index, default=0)
