"""What is asked of a disk in more than one place: a lock on a file, and what an error says of it."""

from __future__ import annotations

import errno
import fcntl
import os
import re

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def lock(file: int) -> bool:
    """Takes the lock of an open file or directory, if no other process holds it; on a disk without locks, always.

    However a process ends, the kernel lets go of its locks.

    Args:
      file: its descriptor.

    Returns:
      Whether this process has it now.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def error_number(error: BaseException) -> int | None:
    """The operating system's number of an error, also where TensorStore tells it; None for an error of another kind.

    Example:
      >>> error_number(ValueError("Error writing x: [OS error 28: ENOSPC No space left on device]"))
      28
    """
    if isinstance(error, OSError):
        return error.errno
    told = re.search(r"OS error (\d+)", str(error))
    return told and int(told[1])


def full(error: BaseException) -> str | None:
    """The system's words for a disk that is full, None for another error."""
    number = error_number(error)
    return os.strerror(number) if number in _FULL else None
