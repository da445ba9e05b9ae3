"""Files of text, local or remote, packed or not: which there are, and what is in them."""

from __future__ import annotations

import collections
import contextlib
import functools
import glob
import gzip
import importlib.util
import io
import os
import re
import socket
import threading
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import IO, Any

from jaxpt.data.tables.quiet_tensorflow import tensorflow
from jaxpt.errors import UserError, printable
from jaxpt.runtime.disk import is_utf_8

MAX_LINE = 1 << 28
"""Bytes of a line, unpacked: a few megabytes of gzip can hold gigabytes in one line."""
MAX_FILE = 1 << 31
"""Bytes of a file, unpacked, that is read as a whole."""
INNER_CR = "a CR inside of the line; lines end in LF or CR LF"
"""What is wrong with a line where a CR alone was to end another one, for messages."""
LIKE_UTF_16 = "many bytes are zero, as in UTF-16"
"""What is odd of bytes of which `is_like_utf_16` is true, for messages."""
DAMAGE = (gzip.BadGzipFile, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError)
"""What reading a packed file raises where it is not whole; RuntimeError: an encrypted zip."""
_SCHEMES = ("gs", "hdfs", "viewfs", "file", "ram")
"""File systems that TensorFlow has without plugins."""
_SECONDS = 5.0  # that the storage has to answer
_STORAGE = "https://storage.googleapis.com/"
_METADATA = ("169.254.169.254", 80)  # answers on Google's machines alone; other addresses of it need a resolver
_GZIP_RATIO = 3  # text to its .gz
_HIDDEN = re.compile(r"(^|/)(\.|__MACOSX/)")  # what the systems that pack files add
_ANY_DEPTH = re.compile(r"(?<![^/])\*\*/")


def expand(
    paths: str | Sequence[str],
    key: str,
    suffixes: Sequence[str] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Finds the files that paths and globs name.

    Args:
      paths: one or more paths, local or remote; `*`, `?` and `[…]` match names, `**/` directories at any depth, those
        that are not hidden. A .zip stands for the files in it.
      key: the setting that holds them, for messages.
      suffixes: of the files that a directory stands for, also as `.gz`; "" is that of any file. None: directories are
        refused.
      report: is given a line for each directory: how many files of which suffix, and what was left out; and for each
        glob: how many files.

    Returns:
      Files in the order given, those of a glob or a directory in alphabetical order.

    Raises:
      UserError: a file is missing or a directory, a glob matches nothing, or a directory has no file to read.

    Example:
      >>> expand("no/such/file.tsv", "data.path")
      Traceback (most recent call last):
      jaxpt.errors.UserError: data.path: no/such/file.tsv: no such file
    """
    files: list[str] = []
    for path in [paths] if isinstance(paths, str) else paths:
        with _errors_in_one_line(path, key):
            matching, of_path = _found(path, key, suffixes is not None), []
            for file in matching:
                if suffixes is not None and _isdir(file):
                    of_path += _listed(file, key, suffixes, report)
                else:
                    of_path += _members(file, key) if file.endswith(".zip") else [file]
            of_path = list(dict.fromkeys(of_path))  # one directory may lie in another
            if matching != [path]:
                report(f"{key}: {path}: {_count(of_path)}")
            files += of_path
    if wrong := next((file for file in files if not is_utf_8(file)), None):
        raise UserError(f"{key}: {wrong}: its name has bytes that are not UTF-8; rename the file")
    return files


def _count(files: Sequence[str]) -> str:
    return f"{len(files):,} file{'s' if len(files) > 1 else ''}"


def _isdir(path: str) -> bool:
    return _gfile().isdir(path) if "://" in path else os.path.isdir(path)


def _found(path: str, key: str, directories: bool) -> list[str]:
    """The files, and where they are allowed the directories, that a path or glob names, checked."""
    system = None
    if "://" in path:
        _check_reachable(path, key)
        system = _gfile()
    exists = system.exists if system else os.path.exists
    is_glob = any(c in path for c in "*?[") and not exists(path)
    files = _matching(path, key) if is_glob else [path]
    if not files:
        raise UserError(f"{key}: no file matches {path}")
    if is_glob and _ANY_DEPTH.search(path):
        files = [file for file in files if not _isdir(file)] or files  # `**/*` matches both, and each file by itself
        if not system:  # links lead to a directory by several names
            files = list({_real(file): file for file in reversed(files)}.values())[::-1]
    for file in files:
        if _isdir(file):
            if directories:
                continue
            raise UserError(f"{key}: {file} is a directory; name its files, such as {file.rstrip('/')}/*.jsonl")
        if not exists(file):
            raise UserError(f"{key}: {file}: no such file")
        if not system and not os.path.isfile(file):
            raise UserError(f"{key}: {file}: is a pipe or a device, expected a file")
    return files


def _real(path: str) -> tuple[str, str]:
    """A path's directory without links, and its name."""
    return os.path.realpath(os.path.dirname(path)), os.path.basename(path)


def _matching(pattern: str, key: str) -> list[str]:
    """What a glob matches, each once, in alphabetical order."""
    if (anywhere := _ANY_DEPTH.search(pattern)) is None:
        return sorted(_gfile().glob(pattern) if "://" in pattern else glob.glob(_pattern(pattern)))
    above, below = pattern[: anywhere.start()], pattern[anywhere.end() :]
    top = above if above in ("", "/") else above[:-1]
    tops = [top] if not top or _isdir(top) else [path for path in _matching(top, key) if _isdir(path)]
    folders = [folder for path in tops for folder, _ in _folders(path or ".", key)]
    names = (os.path.join(folder, below).removeprefix("" if above else "./") for folder in folders)
    return sorted({path for name in names for path in _matching(name, key)})


def _pattern(path: str) -> str:
    """A glob in which the directories above that exist as they are written stand for themselves, such as `[x]`."""
    above = os.path.dirname(path)
    while above and not os.path.isdir(above):
        above = os.path.dirname(above)
    return glob.escape(above) + path[len(above) :]


def _listed(root: str, key: str, suffixes: Sequence[str], report: Callable[[str], None]) -> list[str]:
    """The files to read in a directory and below it; hidden and empty ones are left out."""
    taken: list[str] = []
    counts: dict[bool, collections.Counter[str]] = {True: collections.Counter(), False: collections.Counter()}
    for path in sorted(_below(root, key)):
        for file in _members(path, key) if path.endswith(".zip") else [path]:
            is_wanted = file.removesuffix(".gz").endswith(tuple(suffixes))
            is_empty = is_wanted and "://" not in file and ".zip!" not in file and not os.path.getsize(file)
            taken += [file] if is_wanted and not is_empty else []
            counts[is_wanted and not is_empty]["empty" if is_empty else _suffix(file)] += 1
    included, left_out = (
        ", ".join(f"{n:,} {suffix}" for suffix, n in counter.most_common(8)) for counter in counts.values()
    )
    if not taken:
        expected = f"; wants files that end in {', '.join(suffixes)}" if any(suffixes) else ""
        raise UserError(f"{key}: {root}: a directory without a file to read ({left_out or 'no files'}){expected}")
    report(f"{key}: {root}: {_count(taken)} ({included})" + (f"; left out: {left_out}" if left_out else ""))
    return taken


def _below(root: str, key: str) -> Iterator[str]:
    """All files in a directory and below it that are not hidden."""
    for folder, names in _folders(root, key):
        for path in (os.path.join(folder, name) for name in names if not _HIDDEN.search(name)):
            if "://" in root or os.path.isfile(path):
                yield path


def _folders(root: str, key: str) -> Iterator[tuple[str, list[str]]]:
    """(a directory, names in it) of a directory and those below it that are not hidden; links are followed, once to
    each directory."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{key}: {error.filename}: cannot be listed ({error.strerror})")

    is_remote = "://" in root
    visited: set[str] = set()
    for folder, folders, names in _gfile().walk(root) if is_remote else os.walk(root, onerror=refuse, followlinks=True):
        if not is_remote:
            real = os.path.realpath(folder)
            folders[:] = [] if real in visited else [name for name in folders if not _HIDDEN.search(f"{name}/")]
            if real in visited:
                continue
            visited.add(real)
        below = os.path.relpath(folder, root)
        if below == "." or not _HIDDEN.search(f"{below}/"):
            yield folder, names


def _suffix(path: str) -> str:
    """How a name ends, `.gz` included.

    Example:
      >>> _suffix("texts/a.b.txt.gz"), _suffix("LICENSE")
      ('.txt.gz', 'without a suffix')
    """
    name = path.removesuffix(".gz")
    return os.path.splitext(name)[1] + path[len(name) :] or "without a suffix"


def _members(path: str, key: str) -> list[str]:
    """The files in a .zip, as `X.zip!name`, in alphabetical order."""
    try:
        with _zip(path) as packed:
            names = sorted(name for name in packed.namelist() if not name.endswith("/") and not _HIDDEN.search(name))
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"{key}: {path}: no whole zip file ({error}); fetch it again") from None
    if not names:
        raise UserError(f"{key}: {path}: is empty")
    return [f"{path}!{name}" for name in names]


def open_file(path: str, unpack: bool = True) -> IO[bytes]:
    """Opens a local or remote file, `.gz` unpacked, `X.zip!name` a file in a .zip, also a `.gz`; the caller closes it.

    Raises:
      UserError: it is a pipe or a device, which would wait or never end.
    """
    packed, is_member, name = path.partition(".zip!")
    if is_member:
        with _zip(f"{packed}.zip") as folder:
            file = folder.open(name)  # unpacked as it is read; the file stays open with it
    elif "://" not in path and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(f"{path}: is a pipe or a device, expected a file")
    else:
        file = _remote(path) if "://" in path else open(path, "rb")  # noqa: SIM115
    return gzip.GzipFile(fileobj=file) if unpack and path.endswith(".gz") else file


def packed_in(path: str) -> str:
    """The file itself, of `X.zip!name` the .zip.

    Example:
      >>> packed_in("a/X.zip!in/b.txt"), packed_in("a/b.txt")
      ('a/X.zip', 'a/b.txt')
    """
    packed, is_member, _ = path.partition(".zip!")
    return f"{packed}.zip" if is_member else path


def _zip(path: str) -> zipfile.ZipFile:
    """Opens a local or remote .zip."""
    return zipfile.ZipFile(_remote(path) if "://" in path else path)


def size(path: str) -> int:
    """Bytes of text in a file, about."""
    packed, is_member, name = path.partition(".zip!")
    if is_member:
        with _zip(f"{packed}.zip") as folder:
            num_bytes = folder.getinfo(name).file_size
    else:
        num_bytes = _gfile().stat(path).length if "://" in path else os.path.getsize(path)
    return num_bytes * _GZIP_RATIO if path.endswith(".gz") else num_bytes


def read_lines(path: str, offset: int = 0, line: int = 0) -> Iterator[tuple[int, str]]:
    r"""Reads the lines of a UTF-8 file; a byte order mark is passed over.

    Args:
      path: the file, also as `.gz`.
      offset: byte of the (unpacked) text to begin at.
      line: lines before it.

    Yields:
      (number from 1, line with its end). Only "\n" ends a line, never another character that Unicode counts as one.

    Raises:
      UserError: no such file, not UTF-8 or a line of more than `MAX_LINE` bytes (the line is named), lines that end in
        CR alone, or a damaged file.
    """
    for number, data in enumerate(raw_lines(path, offset), line + 1):
        if number == 1 and is_like_utf_16(data):  # of letters of ASCII alone it would be UTF-8, too
            raise UserError(f"{path}: line 1: {LIKE_UTF_16}; convert the file to UTF-8")
        try:
            yield number, data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            wrong = f"not UTF-8 (byte 0x{data[error.start]:02x})" + f", {LIKE_UTF_16}" * is_like_utf_16(data)
            raise UserError(f"{path}: line {number}: {wrong}; convert the file to UTF-8") from None


def is_like_utf_16(data: bytes) -> bool:
    r"""Whether many of some bytes are zero, of which no text in UTF-8 has any.

    Example:
      >>> is_like_utf_16("Café".encode("utf-16-le")), is_like_utf_16(b"Caf\xe9")
      (True, False)
    """
    return bool(data) and 4 * data.count(0) >= len(data)


def read_whole(path: str) -> list[str]:
    """All lines of a UTF-8 file; as `read_lines`.

    Raises:
      UserError: as `read_lines`; it has more than `MAX_FILE` bytes.
    """
    lines, size = [], 0
    for _, line in read_lines(path):
        size += len(line)
        if size > MAX_FILE:
            raise UserError(f"{path}: more than {MAX_FILE >> 20:,} MB, read at once; wants several files or JSONL")
        lines.append(line)
    return lines


def raw_lines(path: str, offset: int = 0) -> Iterator[bytes]:
    """Lines of an (unpacked) file from a byte on, their ends included."""
    count = 0
    try:
        with open_file(path) as file:
            file.seek(offset)
            while line := file.readline(MAX_LINE + 1):
                is_last = not line.endswith(b"\n") or not file.peek(1)  # type: ignore[attr-defined]
                if is_last and not count and not offset and b"\r" in line.rstrip(b"\r\n"):
                    how = "tr '\\r' '\\n' < OLD > NEW converts them"
                    raise UserError(f"{path}: its lines end in CR alone, as on old Macs; wants LF or CR LF: {how}")
                if len(line) > MAX_LINE:
                    place = f"byte {offset:,}: " if offset else f"line {count + 1:,}: "
                    raise UserError(f"{path}: {place}longer than {MAX_LINE >> 20} MB; cut the document into several")
                yield line
                count += 1
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except DAMAGE as error:
        raise damaged(path, error, None if offset else count) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def damaged(path: str, error: Exception, num_lines: int | None) -> UserError:
    """What is said of a packed file that cannot be unpacked: one of `DAMAGE` after some lines."""
    place = "" if num_lines is None else f" after line {num_lines:,}"
    is_gzip = path.endswith(".gz") and isinstance(error, gzip.BadGzipFile | EOFError | zlib.error)
    kind = "zip" if ".zip!" in path and not is_gzip else "gzip"
    return UserError(f"{path}: truncated or damaged {kind} file{place} ({error}); fetch or pack it again")


# ---- remote files ---------------------------------------------------------------------------------------------------


def _check_reachable(path: str, key: str) -> None:
    """Finds out whether the storage of a remote path can be reached at all.

    Args:
      path: with a scheme, such as `gs://bucket/file`.
      key: the setting that holds it, for messages.

    Raises:
      UserError: no such scheme, or the storage cannot be reached.
    """
    scheme = path.partition("://")[0]
    if scheme not in _SCHEMES and importlib.util.find_spec("tensorflow_io") is None:
        raise UserError(f"{key}: {path}: {scheme}:// is not supported, gs:// is; download the files or mount them")
    if scheme == "gs" and (problem := unreachable()):
        raise UserError(f"{key}: {path}: {_STORAGE} cannot be reached ({problem}); check network and proxy")


@contextlib.contextmanager
def _errors_in_one_line(path: str, key: str) -> Iterator[None]:
    """TensorFlow's errors become one line."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:  # tf.errors.OpError; TensorFlow need not be imported here
        raise UserError(f"{key}: {path}: cannot be read ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """An error of TensorFlow in one line; who may not read a bucket is told how to log in."""
    text = printable(str(getattr(error, "message", None) or error).partition("\n")[0], 200)
    login = any(code in text for code in ("401", "403", "ermission", "redential"))
    return text + "; to log in: gcloud auth application-default login" * login


@functools.cache
def unreachable() -> str | None:
    """Why Google's storage cannot be reached; None if it can.

    It is found out in seconds, before TensorFlow retries for minutes.
    """
    if not _is_on_google():
        os.environ.setdefault("NO_GCE_CHECK", "true")  # else TensorFlow asks a server that is not there, ten times
    outcomes: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(_STORAGE, method="HEAD"), timeout=_SECONDS).close()
            outcomes.append(None)
        except urllib.error.HTTPError:  # it answers
            outcomes.append(None)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            outcomes.append(getattr(reason, "strerror", None) or str(reason))

    asking = threading.Thread(target=ask, daemon=True)  # a resolver has no timeout
    asking.start()
    asking.join(_SECONDS)
    return outcomes[0] if outcomes else f"no answer in {_SECONDS:.0f} s"


def _is_on_google() -> bool:
    """Whether this machine is one of Google's cloud, which has credentials of its own."""
    try:
        socket.create_connection(_METADATA, timeout=1.0).close()
    except OSError:
        return False
    return True


class _Remote(io.RawIOBase):
    """A file that tf.io.gfile opens (`gs://`), as Python's own file objects are."""

    def __init__(self, path: str) -> None:
        self._file = _gfile().GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._call(self._file.tell)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._call(self._file.seek, offset, whence)
        return self.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._call(self._file.read, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @staticmethod
    def _call(method: Any, *args: Any) -> Any:
        """TensorFlow's errors become the system's: who reads a file need not know who opened it."""
        try:
            return method(*args)
        except tensorflow().errors.NotFoundError:
            raise FileNotFoundError from None
        except tensorflow().errors.OpError as error:
            raise OSError(_reason(error)) from None


def _remote(path: str) -> IO[bytes]:
    return io.BufferedReader(_Remote(path), 1 << 20)


def _gfile() -> ModuleType:
    return tensorflow().io.gfile
