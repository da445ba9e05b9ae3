"""Files of `flax.serialization`: a tree in MessagePack, whose arrays are read one at a time."""

from __future__ import annotations

import functools
import math
import mmap
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
from flax import serialization

from jaxpt.errors import UserError
from jaxpt.hf.formats.arrays import Array
from jaxpt.runtime.disk import check_file

_ARRAY = 1  # type of MessagePack's extension, in flax.serialization
_CHUNKED = "__msgpack_chunked_array__"  # an array of more than 2^30 bytes


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def read(path: Path) -> dict[str, Any]:
    """The tree of a file, with an `Array` for each array.

    Args:
      path: written by `flax.serialization.to_bytes`.

    Raises:
      UserError: it is no such file, or ends too early.
    """
    check_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            unpacker = msgpack.Unpacker(file, ext_hook=_header, strict_map_key=False, max_buffer_size=0)
            tree = _node(path, unpacker, content)
    except (ValueError, TypeError, LookupError, RecursionError, msgpack.UnpackException):
        tree = None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: is damaged, half-written or no file of flax.serialization")
    return tree


def _node(path: Path, unpacker: msgpack.Unpacker, content: mmap.mmap) -> Any:
    """Reads a node where the unpacker is, and skips the content of its arrays."""
    start = unpacker.tell()
    is_map = 0x80 <= content[start] <= 0x8F or content[start] in (0xDE, 0xDF)
    if not is_map:
        value = unpacker.unpack()
        if not isinstance(value, _Header):
            return value
        return Array(*value, functools.partial(_load, path, start, unpacker.tell()))
    tree = {unpacker.unpack(): _node(path, unpacker, content) for _ in range(unpacker.read_map_header())}
    return _joined(tree) if _CHUNKED in tree else tree


def _header(kind: int, data: bytes) -> Any:
    if kind != _ARRAY:
        return msgpack.ExtType(kind, data)
    shape, dtype, content = msgpack.unpackb(data, raw=True)
    header = _Header(tuple(shape), np.dtype(dtype.decode()))
    if len(content) != math.prod(shape) * header.dtype.itemsize:
        raise ValueError("the array has another size than its shape")
    return header


def _load(path: Path, start: int, end: int) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(start)
        return serialization.msgpack_restore(file.read(end - start))


def _joined(tree: dict[str, Any]) -> Array:
    """An array that was written in pieces of its elements in order."""
    shape, chunks = ([tree[name][str(i)] for i in range(len(tree[name]))] for name in ("shape", "chunks"))
    return Array(
        tuple(shape), chunks[0].dtype, lambda: np.concatenate([x.load() for x in chunks]).reshape(shape)
    )  # fmt: skip
