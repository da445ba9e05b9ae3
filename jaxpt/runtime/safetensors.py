"""The safetensors format, used for weights (`jaxpt.hf`) and prepared records (`jaxpt.data`).

    length of the header (8 bytes, little endian)   header (JSON, padded to 8 bytes)   tensors, contiguous

The safetensors package validates files. It cannot write tensors one at a time or memory-map a file.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

TYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "BOOL": np.bool_,
        "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
        "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
    }.items()
}  # fmt: skip
"""{type name of the format: NumPy dtype}; types without a NumPy dtype are not included."""
_NAMES = {dtype: name for name, dtype in TYPES.items()}


class Entry(NamedTuple):
    """A tensor of a file."""

    kind: str
    """Type name of the format."""
    shape: tuple[int, ...]
    start: int
    """Offset of the first byte in the file."""
    stop: int


def header(tensors: Mapping[str, tuple[Any, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """Makes the header of a file.

    Args:
      tensors: {name: (dtype, shape)} in the order of their bytes.
      metadata: stored in the header.

    Returns:
      The header, preceded by its length.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + size(dtype, shape)
        entries[name] = {"dtype": _NAMES[np.dtype(dtype)], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def size(dtype: Any, shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def read(path: Path) -> tuple[dict[str, str], dict[str, Entry]]:
    """Reads the header of a file, but no tensors.

    Args:
      path: the file.

    Returns:
      (metadata, {name: entry} in the header's order).

    Raises:
      ValueError: not a valid safetensors file: the header is damaged, or the file length does not match it.
      OSError: the file cannot be read.
    """
    try:
        with safe_open(path, "numpy"):
            pass
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    head = raw_header(path)
    entries, start = json.loads(head[8:]), len(head)
    metadata = entries.pop("__metadata__", {})
    return metadata, {
        name: Entry(e["dtype"], tuple(e["shape"]), *(start + at for at in e["data_offsets"]))
        for name, e in entries.items()
    }


def raw_header(path: Path) -> bytes:
    """Reads the header bytes of a valid file, preceded by their length."""
    with path.open("rb") as file:
        length = file.read(8)
        return length + file.read(int.from_bytes(length, "little"))


def mapped(path: Path) -> dict[str, np.ndarray]:
    """Maps the tensors of a file into memory, by name; raises as `read`."""
    _, entries = read(path)
    file = np.memmap(path, np.uint8, "r").view(np.ndarray)
    return {name: file[e.start : e.stop].view(TYPES[e.kind]).reshape(e.shape) for name, e in entries.items()}


def tensor(path: Path, entry: Entry) -> np.ndarray:
    """Reads one tensor."""
    raw = np.fromfile(path, np.uint8, entry.stop - entry.start, offset=entry.start)
    return raw.view(TYPES[entry.kind]).reshape(entry.shape)
