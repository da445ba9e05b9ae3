"""Exit codes of `jaxpt`: they part what a launcher runs again from what a person has to mend.

The numbers are those of BSD's sysexits.h where it has the case. `tools/tpu.sh` and `tools/slurm.sh` go by them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from jaxpt.errors import UserError
from jaxpt.runtime import disk

MISTAKE = 2
RETRY = 75
STORAGE = 74
MEANINGS = {
    0: ("finished", "nothing"),
    1: ("an error that jaxpt did not expect, with a traceback", "report it"),
    MISTAKE: ("a mistake in the command, the recipe or a file", "mend it"),
    65: ("diverged: loss, gradient or weights are not finite, or spikes came back", "change the recipe"),
    STORAGE: ("no room on the disk, or over the quota", "make room, then re-run the command"),
    RETRY: ("a process or machine was lost, late or stuck, or storage failed for a moment", "re-run the command"),
    130: ("Ctrl-C (SIGINT): the run was saved", "re-run the command to resume"),
    143: ("SIGTERM: the run was saved", "re-run the command; launchers do"),
}
"""{exit code: (what happened, what to do)}. A process that another signal ended has 128 + its number."""

_TRANSIENT = frozenset((
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EREMOTEIO, errno.ENOTCONN,
    errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN,
    errno.ENETUNREACH,
))  # fmt: skip
"""Of file systems on a network, and of networks, that answer again later."""


def of(error: BaseException) -> int:
    """The exit code of an error; 1 for one that the command line does not print as one line.

    Args:
      error: what ended a command; what it was raised from counts too.

    Example:
      >>> of(UserError("train.stepz: no such key")), of(OSError(errno.ENOSPC, "full")), of(TimeoutError(110, "late"))
      (2, 74, 75)
    """
    if not isinstance(error, UserError | OSError | ModuleNotFoundError | MemoryError):
        return 1
    if isinstance(error, UserError) and error.exit_code != MISTAKE:
        return error.exit_code
    numbers = {disk.error_number(cause) for cause in _chain(error)}
    return STORAGE if numbers & {*disk.FULL} else RETRY if numbers & _TRANSIENT else MISTAKE


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it was raised from or in the handling of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def table() -> str:
    """All exit codes as lines of text, for the help of commands."""
    lines = [f"  {code:<6} {meaning}: {action}" for code, (meaning, action) in MEANINGS.items()]
    return "\n".join(["exit codes:", *lines, "  128+N  ended by signal N"])
