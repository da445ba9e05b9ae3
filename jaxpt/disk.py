"""File locks, error numbers of the operating system, and whole files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
      >>> error_number(ValueError("Error writing x [os_error_code='28']"))
      28
    """
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"OS error (\d+)|os_error_code='(\d+)'", str(error))
    return match and int(match[1] or match[2])


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within it errors of the system that name no file, such as that of a full disk in a write, get this one's name."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is either the old or the new one, never half of it, also after a loss of power."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with writing(path), temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(directory: Path) -> None:
    """Makes a directory where there is none.

    Raises:
      OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with writing(directory), tempfile.TemporaryFile(dir=directory) as probe:
        probe.write(b"x")


def full(error: BaseException) -> str | None:
    """The system's message if the disk or quota is full, None for other errors."""
    number = error_number(error)
    return os.strerror(number) if number in _FULL else None
