"""Files of others read with care, file locks, error numbers of the operating system, and atomic writers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jaxpt.errors import UserError
from jaxpt.runtime import signals

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""Errors of a disk without room, or of a quota."""
_MAX_DEPTH = 100
_ABANDONED = 86400.0  # seconds after which a half-written directory is deleted
_LFS = b"version https://git-lfs.github.com/spec/"


def check_file(path: Path, limit: int | None = None) -> Path:
    """Refuses, before it is opened, what is no file: a pipe would wait forever, a device never ends.

    Args:
      path: the file.
      limit: maximum size in bytes.

    Returns:
      The path.

    Raises:
      UserError: it is missing, no regular file, too large, or a pointer of Git LFS.
    """
    if "\0" in str(path):
        raise UserError(f"{path}: no name of a file")
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path}: a link to {os.readlink(path)}, which does not exist")
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected a file")
    if not path.exists():
        raise UserError(f"{path}: No such file or directory")
    if not path.is_file():
        raise UserError(f"{path}: not a regular file")
    size = path.stat().st_size
    if limit is not None and size > limit:
        raise UserError(f"{path}: has {size:,} bytes, expected at most {limit:,}")
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise UserError(f"{path}: a Git LFS pointer, not the file itself; run `git lfs pull` where it came from")
    return path


_ADDRESSES = ("gs", "s3", "az", "hf")
"""Directories under / that etils, with which Orbax opens files, takes for addresses: /gs/x for gs://x."""


def is_utf_8(name: str) -> bool:
    """False for the name of a file with other bytes: Python has them as lone surrogates, which nothing can write."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuses the path of a run that the libraries beneath would take for another one, or could not write down.

    Raises:
      UserError: it is not UTF-8, has a backslash, begins with an unexpanded `~/`, or lies under /gs, /s3, /az or /hf.
    """
    text, parts = os.fspath(path), Path(os.path.abspath(path)).parts
    if not is_utf_8(os.path.abspath(path)):
        raise UserError(f"{text}: has bytes that are not UTF-8; choose another name")
    if text.startswith("~/") or text == "~":
        raise UserError(
            f"{text}: ~ is expanded by shells alone; write {Path.home()}{text[1:]}, or ./{text} if that is meant"
        )
    if "\\" in os.path.abspath(path):
        raise UserError(f"{text}: TensorStore, which writes the checkpoints, takes \\ for /; choose another name")
    if parts[1:2] and parts[1] in _ADDRESSES:
        raise UserError(f"{text}: Orbax takes /{parts[1]}/… for {parts[1]}://…; choose another directory")


def check_mounted(path: str | os.PathLike[str], where: str = "") -> None:
    """Refuses the address of a bucket, for which a directory of that name would be made here.

    Args:
      path: what is to be written; of `gs://` pathlib makes `gs:/`.
      where: the setting that has it, for the message.

    Raises:
      UserError: it is an address.
    """
    if re.match("[a-z][a-z0-9+.-]*:/", os.fspath(path)):
        raise UserError(f"{where}{path}: is an address; files are written to mounted file systems alone")


def read_json(path: Path, limit: int = 1 << 27) -> Any:
    """The value of a JSON file.

    Args:
      path: the file.
      limit: maximum size in bytes.

    Raises:
      UserError: see `check_file`; or it is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(check_file(path, limit).read_text("utf-8"))
        if _depth(value) <= _MAX_DEPTH:
            return value
    except RecursionError:
        pass
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    raise UserError(f"{path}: nested too deeply")


def checksum(value: Any) -> int:
    """CRC-32 of a value of JSON, whatever the order of its keys.

    Example:
      >>> checksum({"a": 1, "b": [2]}) == checksum({"b": [2], "a": 1}) != checksum({"a": 2, "b": [2]})
      True
    """
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _depth(value: Any) -> int:
    """How deeply lists and mappings are nested."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_depth(child) for child in children if isinstance(child, dict | list)), default=0)


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
    """Adds this file's name to errors of the system that name no file, such as that of a full disk in a write."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole, see `whole_file`."""
    with whole_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Writes a file that gets its name at the end of the block. There is always the old one or the new one, also after
    a loss of power. Nothing of it is left after an error, or after a signal that ends the process.

    Args:
      path: its name; the directory exists.

    Yields:
      The file, to be written and read.

    Raises:
      UserError: see `check_mounted`.
    """
    check_mounted(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with signals.on_leave(lambda _: temporary.unlink(missing_ok=True)), writing(path):
            with temporary.open("w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Writes a directory that gets its name at the end of the block. Nothing of it is left after an error, or after a
    signal that ends the process. What a killed process leaves is removed a day later.

    Args:
      path: its name; nothing is there, or an empty directory.

    Yields:
      The directory, to be filled.

    Raises:
      FileExistsError: a directory that is not empty has the name at the end of the block.
      UserError: see `check_mounted`.
    """
    check_mounted(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with contextlib.suppress(FileNotFoundError):  # another process removes it
            if time.time() - old.stat().st_mtime > _ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with signals.on_leave(lambda _: shutil.rmtree(temporary, ignore_errors=True)):
            temporary.mkdir()
            yield temporary
            try:
                temporary.rename(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
    finally:
        for _ in range(50):  # threads of a save that failed may still be writing
            shutil.rmtree(temporary, ignore_errors=True)
            if not temporary.exists():
                break
            time.sleep(0.1)


def nearest_existing(path: Path) -> Path:
    """Returns a path, or the nearest one above it that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists() or candidate.is_symlink())


def check_writable(directory: Path) -> None:
    """Checks that a directory can be written, or made, by making a directory there and removing it again.

    Permissions do not tell: root has them on read-only disks, and in /proc.

    Raises:
      OSError: it cannot, with the system's reason.
    """
    existing = nearest_existing(directory)
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".jaxpt-", dir=existing))
    except OSError as error:
        words = "nothing can be made there" if error.errno == errno.ENOENT else os.strerror(error.errno or 0)
        raise OSError(error.errno, words, str(existing)) from None


def cache_home() -> Path:
    """The user's directory of caches: `$XDG_CACHE_HOME`, else `~/.cache`.

    Raises:
      UserError: the user has no home.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    return expanded(Path("~/.cache"), "HOME")


def expanded(path: Path, key: str) -> Path:
    """Replaces `~` in a path by the home that it stands for.

    Args:
      path: the path.
      key: the setting that has it, for messages.

    Raises:
      UserError: there is no such user, or no home.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"{key}: {path}: no such home; set HOME, XDG_CACHE_HOME or data.cache_dir") from None


def full(error: BaseException) -> str | None:
    """The system's message if the disk or quota is full, None for other errors."""
    number = error_number(error)
    return os.strerror(number) if number in FULL else None
