"""Arrays of a checkpoint that are not yet read, and a checkpoint in Hugging Face's names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.errors import UserError, printable
from jaxpt.hf.files import TYPES

_FLOATS = {np.dtype(dtype) for dtype in TYPES.values()}


@dataclasses.dataclass(frozen=True)
class Array:
    """An array that is read when it is asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], Any]
    """Returns what np.asarray reads: a NumPy array, or an array of TensorStore, whose slices are read alone."""

    def then(self, shape: tuple[int, ...], change: Callable[[Any], Any]) -> Array:
        """The array of `shape` that `change` makes of what `load` returns."""
        return Array(shape, self.dtype, lambda: change(self.load()))

    def layer(self, index: int, axis: int = 1) -> Array:
        """One layer of an array of stacked layers."""
        where = (*[slice(None)] * axis, index)
        return self.then((*self.shape[:axis], *self.shape[axis + 1 :]), lambda x: x[where])

    def transposed(self) -> Array:
        """With its axes in reverse order."""
        return self.then(self.shape[::-1], lambda x: np.asarray(x).T)

    def reshaped(self, *shape: int) -> Array:
        """In another shape of the same size."""
        return self.then(shape, lambda x: np.asarray(x).reshape(shape))


class Tensors(Mapping[str, np.ndarray]):
    """The tensors of a checkpoint by Hugging Face's names, with the attributes of `jaxpt.hf.files.Tensors`."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Takes {Hugging Face's name: array}."""
        self._arrays = dict(arrays)
        self.shapes = {name: x.shape for name, x in self._arrays.items()}
        self.dtypes = {name: x.dtype for name, x in self._arrays.items() if x.dtype in _FLOATS}
        self.others = {name: x.dtype.name for name, x in self._arrays.items() if x.dtype not in _FLOATS}

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return np.asarray(self._arrays[name].load())
        except (ValueError, OSError) as error:  # TensorStore's, of damaged data
            raise UserError(f"{name}: its array is damaged: {printable(str(error), 200)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint."""

    tensors: Tensors
    keys: dict[str, Any] | None = None
    """Those of config.json, told from the shapes; None: the directory's config.json has them."""
    change: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of our configuration that no key of config.json says."""


def flat(tree: Mapping[str, Any], is_leaf: Callable[[Any], bool], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of a tree of mappings, "a/b/c"; empty branches have none."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not is_leaf(value):
            yield from flat(value, is_leaf, f"{path}/")
        else:
            yield path, value


def layers(arrays: Mapping[str, Array], pattern: str, stacked: str) -> Iterator[tuple[str, int, str, Array]]:
    """The arrays of layers, of which each has its own or all are in one, along axis 1.

    Args:
      arrays: {path: array}.
      pattern: regular expression of the path of a layer, with its number as a group.
      stacked: path of stacked layers.

    Yields:
      (path in `arrays`, number of the layer, path inside the layer, array).
    """
    for path, x in arrays.items():
        if match := re.match(f"{pattern}/", path):
            yield path, int(match[1]), path[match.end() :], x
        elif path.startswith(f"{stacked}/") and len(x.shape) > 1:
            for index in range(x.shape[1]):
                yield path, index, path.removeprefix(f"{stacked}/"), x.layer(index)


def check_whole(path: Path) -> None:
    """Raises UserError for a directory with the name under which T5X and Orbax write a checkpoint that is not whole."""
    for part in (path.resolve(), path.resolve().parent):
        if re.search(r"\.tmp-|\.orbax-checkpoint-tmp", part.name):
            raise UserError(f"{part}: is half-written: its program ended before it was whole; name another step")
