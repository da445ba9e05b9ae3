"""A network's parameters as they are stored: their shapes by path, and how pieces that were read become parameters."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import numpy as np
from flax import traverse_util

from jaxpt.errors import UserError
from jaxpt.models.network import Network

Piece = tuple[str, int | None, np.ndarray]
"""(path of a parameter, the layer of a stack or None, its array in the shape of storage)."""


@dataclasses.dataclass(frozen=True)
class StoredParam:
    """Storage shape and logical axes of a parameter."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    unpadded: tuple[int, ...]
    """The shape without padding rows of the vocabulary."""


@functools.lru_cache(maxsize=16)
def stored_params(network: Network) -> Mapping[str, StoredParam]:
    """Shape and axes of each parameter by its path."""

    def stored(box: nn.LogicallyPartitioned) -> StoredParam:
        axes = zip(box.value.shape, box.names, strict=True)
        unpadded = tuple(network.config.vocab_size if axis == "vocab" else size for size, axis in axes)
        return StoredParam(box.value.shape, box.names, unpadded)

    flat = traverse_util.flatten_dict(network.abstract(), sep="/")
    return types.MappingProxyType({path: stored(box) for path, box in flat.items()})


def parameters(pieces: Iterator[Piece], expected: Mapping[str, StoredParam]) -> Iterator[tuple[str, np.ndarray]]:
    """Joins pieces: yields each parameter as soon as all its layers have been read."""
    growing: dict[str, tuple[np.ndarray, int]] = {}
    for path, layer, piece in pieces:
        if layer is None:
            yield path, np.ascontiguousarray(piece)
            continue
        whole, num_read = growing.pop(path, None) or (np.zeros(expected[path].shape, piece.dtype), 0)
        whole[layer] = piece
        if num_read + 1 == len(whole):
            yield path, whole
        else:
            growing[path] = whole, num_read + 1


def gather(pieces: Iterator[Piece], expected: Mapping[str, StoredParam]) -> dict[str, Any]:
    """Joins pieces into a tree, without parameters of which a layer is missing."""
    return traverse_util.unflatten_dict(dict(parameters(pieces, expected)), sep="/")


def finite(name: str, x: np.ndarray) -> np.ndarray:
    """Returns the array; raises UserError if it contains NaN or infinity."""
    with np.errstate(invalid="ignore"):
        if x.size and not (np.isfinite(x.min()) and np.isfinite(x.max())):  # both are NaN if any value is
            raise UserError(f"weights: {name} is not finite: it contains NaN or infinity")
    return x
