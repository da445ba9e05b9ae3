"""Arrays of TensorStore in a directory: each by itself (T5X), or in a checkpoint of Orbax."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jaxpt.errors import UserError, printable
from jaxpt.hf.files import read_object
from jaxpt.hf.formats.arrays import Array

METADATA = "_METADATA"
"""Orbax's list of the arrays of a checkpoint."""


def zarr(folder: Path) -> Array:
    """An array in a directory of its own.

    Raises:
      UserError: it is missing or damaged, or chunks of it are missing: TensorStore would read zeros.
    """
    store = _open({"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder)}}, folder)
    sizes = zip(store.shape, store.chunk_layout.read_chunk.shape, strict=True)
    expected = math.prod(-(-size // chunk) for size, chunk in sizes)
    chunks = sum(file.is_file() and not file.name.startswith(".") for file in folder.rglob("*"))
    if chunks < expected:
        raise UserError(
            f"{folder}: has {chunks} of its {expected} chunks; the checkpoint is half-written or half-copied"
        )
    return _array(store)


def orbax_paths(folder: Path) -> list[tuple[str, ...]]:
    """Paths of the arrays of a checkpoint of Orbax, outermost key first; [] if it says none.

    Args:
      folder: has `_METADATA`.

    Raises:
      UserError: `_METADATA` is damaged.
    """
    entries = read_object(folder / METADATA).get("tree_metadata")
    try:
        return [tuple(str(part["key"]) for part in x["key_metadata"]) for x in (entries or {}).values()]
    except (AttributeError, KeyError, TypeError):
        raise UserError(f"{folder / METADATA}: is damaged, or of a version of Orbax that is not known") from None


def has_paths(folder: Path, *first: str) -> bool:
    """True for a readable checkpoint of Orbax with an array under these keys."""
    try:
        return any(path[: len(first)] == first for path in orbax_paths(folder))
    except (OSError, UserError):
        return False


def orbax(folder: Path, prefix: tuple[str, ...]) -> dict[str, Array]:
    """Arrays of a checkpoint of Orbax.

    Args:
      folder: has `_METADATA`.
      prefix: first keys of their paths; the others, such as the optimizer's state, are not opened.

    Returns:
      {path without the prefix, "a/b/c": array}.

    Raises:
      UserError: one of them is missing or damaged.
    """
    is_joined = (folder / "manifest.ocdbt").exists()
    driver = "zarr3" if read_object(folder / METADATA).get("use_zarr3") else "zarr"
    arrays = {}
    for path in orbax_paths(folder):
        if path[: len(prefix)] != prefix:
            continue
        name = ".".join(path)
        kvstore: dict[str, Any] = {"driver": "file", "path": str(folder / name)}
        if is_joined:
            kvstore = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}, "path": f"{name}/"}
        arrays["/".join(path[len(prefix) :])] = _array(_open({"driver": driver, "kvstore": kvstore}, folder / name))
    return arrays


def _open(spec: dict[str, Any], path: Path) -> Any:
    import tensorstore

    try:
        return tensorstore.open(spec, open=True, read=True).result()
    except (ValueError, OSError) as error:
        if "NOT_FOUND" in str(error):
            raise UserError(f"{path}: is missing; the checkpoint is half-written or half-copied") from None
        raise UserError(f"{path}: is damaged: {printable(str(error), 200)}") from None


def _array(store: Any) -> Array:
    return Array(tuple(store.shape), store.dtype.numpy_dtype, lambda: store)
