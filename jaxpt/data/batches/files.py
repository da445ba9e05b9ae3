"""Rows of batches in files: NumPy's .npz, whose members are runs of rows, each compressed and with a checksum.

    NAME-00000.npz    members 000000.npy, 000001.npy, …; the next file goes on with their numbers

A member is a structured array [rows]: the features of a row lie side by side, each in the smallest type that holds its
values there. Neighbours that are alike, such as inputs and targets, cost little after compression.
"""

from __future__ import annotations

import io
import itertools
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from jaxpt.data.spec import Features
from jaxpt.data.stream.feed import Batch
from jaxpt.errors import UserError
from jaxpt.runtime.disk import writing

MEMBER_BYTES = 1 << 20
"""Of a member, before it is compressed; a step that is larger is one by itself."""
FILE_MEMBERS = 256
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, KeyError, ValueError, RuntimeError)
_AGAIN = "; copy it again, or prepare the batches again"
_INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)


def packed(batch: Batch) -> np.ndarray:
    """Rows as they are kept.

    Args:
      batch: {feature: array [rows, ...]}.

    Returns:
      A structured array [rows].

    Example:
      >>> packed({"ids": np.array([[7, 300]]), "weights": np.array([[0.0, 1.0]], np.float32)}).dtype.descr
      [('ids', '<u2', (2,)), ('weights', '|u1', (2,))]
    """
    small = {name: _narrowed(np.asarray(value)) for name, value in batch.items()}
    rows = len(next(iter(small.values())))
    array = np.empty(rows, [(name, value.dtype.str, value.shape[1:]) for name, value in small.items()])
    for name, value in small.items():
        array[name] = value
    return array


def unpacked(rows: np.ndarray, features: Features) -> Batch:
    """The batch again, each feature in its own type.

    Args:
      rows: of `packed`.
      features: {feature: (shape without the batch, type)}.

    Returns:
      {feature: array [rows, ...]}.
    """
    return {name: np.ascontiguousarray(rows[name], dtype) for name, (_, dtype) in features.items()}


def _narrowed(value: np.ndarray) -> np.ndarray:
    """In the smallest integer type that gives the same bits again."""
    if value.size == 0:
        return value
    for dtype in _INTEGERS:
        info = np.iinfo(dtype)
        if info.min <= value.min() and value.max() <= info.max:
            small = value.astype(dtype)
            if small.astype(value.dtype).tobytes() == value.tobytes():
                return small
            if value.dtype.kind == "f":  # fractions, or a negative zero
                break
    return value


def write_members(folder: Path, name: str, members: Iterable[np.ndarray]) -> dict[str, int]:
    """Writes members one after the other.

    Args:
      folder: the directory of their files.
      name: how the names of these begin.
      members: each of `packed`.

    Returns:
      {file: bytes}.
    """
    numbered, sizes = iter(enumerate(members)), {}
    for first in numbered:
        path = folder / _file(name, first[0])
        with writing(path), zipfile.ZipFile(path, "x", allowZip64=True) as file:
            for number, rows in itertools.chain([first], itertools.islice(numbered, FILE_MEMBERS - 1)):
                content = io.BytesIO()
                np.lib.format.write_array(content, rows, allow_pickle=False)
                # Without the time of day: the same batches are the same bytes.
                file.writestr(zipfile.ZipInfo(_member(number)), content.getvalue(), zipfile.ZIP_DEFLATED)
        sizes[path.name] = path.stat().st_size
    return sizes


class Reader:
    """Reads members by their number."""

    def __init__(self, folder: Path, name: str, sizes: Mapping[str, int]) -> None:
        """Opens the files of `write_members`.

        Args:
          folder: as it was given there.
          name: likewise.
          sizes: what it returned.

        Raises:
          UserError: a file is missing or has another size.
        """
        self._folder, self._name = folder, name
        self._open: dict[str, zipfile.ZipFile] = {}
        for file, size in sizes.items():
            path = folder / file
            has = path.stat().st_size if path.is_file() else None
            if has != size:
                state = "is missing" if has is None else f"has {has:,} bytes"
                raise UserError(f"{path}: {state}, was written with {size:,}{_AGAIN}")

    def member(self, number: int) -> np.ndarray:
        """The rows of a member.

        Raises:
          UserError: they are not as they were written.
        """
        path = self._folder / _file(self._name, number)
        try:
            if path.name not in self._open:
                self._open[path.name] = zipfile.ZipFile(path)
            content = self._open[path.name].read(_member(number))  # compares the checksum
            return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        except _DAMAGE as error:
            text = str(error.args[0] if isinstance(error, KeyError) else error)  # a KeyError's text is quoted
            reason = text.splitlines()[0] if text else type(error).__name__
            raise UserError(f"{path}: is damaged ({reason}){_AGAIN}") from None


def rows_per_member(rows: np.ndarray, unit: int) -> int:
    """How many rows are kept together.

    Args:
      rows: some of them.
      unit: a multiple of so many: the rows of a step.
    """
    return unit * max(1, MEMBER_BYTES // max(rows.dtype.itemsize * unit, 1))


def _file(name: str, member: int) -> str:
    return f"{name}-{member // FILE_MEMBERS:05d}.npz"


def _member(number: int) -> str:
    return f"{number:06d}.npy"
