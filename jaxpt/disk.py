"""File locks and error numbers of the operating system."""

from __future__ import annotations

import errno
import fcntl
import os
import re

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def lock(file: int) -> bool:
    """Locks an open file or directory unless another process holds the lock. Succeeds on file systems without locks.

    The kernel releases the lock when the process ends.

    Args:
      file: file descriptor.

    Returns:
      True if this process holds the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def error_number(error: BaseException) -> int | None:
    """The errno of an error, also from a TensorStore message; None for other errors.

    Example:
      >>> error_number(ValueError("Error writing x: [OS error 28: ENOSPC No space left on device]"))
      28
    """
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"OS error (\d+)", str(error))
    return match and int(match[1])


def full(error: BaseException) -> str | None:
    """The system's message if the disk or quota is full, None for other errors."""
    number = error_number(error)
    return os.strerror(number) if number in _FULL else None
