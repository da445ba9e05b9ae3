"""Tensor files: safetensors, sharded or not, and PyTorch's .bin. A tensor is read, or written, when its turn comes."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxpt.errors import UserError

SHARD_BYTES = 5 * 10**9
# Names of the format's types. https://github.com/huggingface/safetensors#format
TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
NAMES = {np.dtype(dtype): name for name, dtype in TYPES.items()}


class Tensors(Mapping[str, np.ndarray]):
    """The tensors of a directory by name, read from the disk when asked for.

    Attributes:
      shapes: {name: shape}.
      dtypes: {name: NumPy dtype}.
    """

    def __init__(self, directory: Path) -> None:
        """Opens the directory's weights.

        Raises:
          UserError: there are none, a shard is missing or damaged, or torch is needed and absent.
        """
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, np.dtype] = {}
        self._open: dict[str, Any] = {}
        paths = _weight_files(directory)
        for path in paths:
            (self._add_bin if path.suffix == ".bin" else self._add_safetensors)(path)

    def _add_safetensors(self, path: Path) -> None:
        # Not the safetensors package: it maps the file, and every page that was read counts as memory of the process.
        try:
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            whole = 8 + length + max(entry["data_offsets"][1] for entry in header.values()) == path.stat().st_size
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
            whole = False
        if not whole:
            raise UserError(f"{path}: not a whole safetensors file")
        for name, entry in header.items():
            if entry["dtype"] not in TYPES:
                raise UserError(f"{path}: {name}: type {entry['dtype']} is not supported")
            self.shapes[name] = tuple(entry["shape"])
            self.dtypes[name] = np.dtype(TYPES[entry["dtype"]])
            self._open[name] = (path, 8 + length + entry["data_offsets"][0])

    def _add_bin(self, path: Path) -> None:
        try:
            import torch
        except ModuleNotFoundError:
            raise UserError(f"{path}: needs torch to be read: pip install torch, or take .safetensors files") from None
        # Files from before torch 1.6 are no archives, and cannot be mapped.
        archive = zipfile.is_zipfile(path)
        try:
            tensors = torch.load(path, map_location="cpu", mmap=archive, weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError, OSError):
            raise UserError(f"{path}: not a whole file of torch's weights") from None
        for name, tensor in tensors.items():
            self.shapes[name] = tuple(tensor.shape)
            self.dtypes[name] = np.dtype(str(tensor.dtype).removeprefix("torch."))
            self._open[name] = tensor

    def __getitem__(self, name: str) -> np.ndarray:
        source = self._open[name]
        if isinstance(source, tuple):
            path, offset = source
            count = int(np.prod(self.shapes[name], dtype=np.int64))
            return np.fromfile(path, self.dtypes[name], count, offset=offset).reshape(self.shapes[name])
        if self.dtypes[name] == np.dtype(ml_dtypes.bfloat16):  # which NumPy does not know by itself
            import torch

            return source.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return source.numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _weight_files(directory: Path) -> list[Path]:
    """All files that hold a directory's weights."""
    for stem in ("model.safetensors", "pytorch_model.bin"):
        if (directory / stem).is_file():
            return [directory / stem]
        index = directory / f"{stem}.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            except (ValueError, KeyError, AttributeError):
                raise UserError(f"{index}: not an index of weights") from None
            missing = [name for name in names if not (directory / name).is_file()]
            if missing:
                raise UserError(f"{directory}: {missing[0]} is missing, {index.name} names it")
            return [directory / name for name in names]
    raise UserError(f"{directory}: holds no weights; wants model.safetensors or pytorch_model.bin, or an index of them")


def write(
    directory: Path,
    announced: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    tensors: Iterable[tuple[str, np.ndarray]],
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Writes model.safetensors, or shards of it and their index, a tensor at a time.

    Args:
      directory: an existing directory.
      announced: {name: (shape, dtype)} in the order of `tensors`.
      tensors: the tensors; each is converted to its announced dtype.
      shard_bytes: a file is closed before it grows beyond this (one tensor may be larger).

    Returns:
      The files.
    """
    shards: list[dict[str, tuple[int, int]]] = [{}]
    end = 0
    for name, (shape, dtype) in announced.items():
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if shards[-1] and end + size > shard_bytes:
            shards.append({})
            end = 0
        shards[-1][name] = (end, end + size)
        end += size
    count = len(shards)
    files = (
        [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] if count > 1 else ["model.safetensors"]
    )
    remaining = iter(tensors)
    for file, shard in zip(files, shards, strict=True):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for name, offsets in shard.items():
            shape, dtype = announced[name]
            header[name] = {"dtype": NAMES[np.dtype(dtype)], "shape": list(shape), "data_offsets": list(offsets)}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(directory / file, "wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for name in shard:
                got, tensor = next(remaining)
                assert got == name, (got, name)
                stream.write(np.ascontiguousarray(tensor, announced[name][1]).tobytes())
    if count > 1:
        places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        total = sum(max(stop for _, stop in shard.values()) for shard in shards)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return [directory / file for file in files]
