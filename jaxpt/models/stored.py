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


Growing = dict[str, tuple[np.ndarray, set[int]]]
"""{path: (parameter, its layers that have been read)}"""


def parameters(
    pieces: Iterator[Piece], expected: Mapping[str, StoredParam], growing: Growing | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Joins pieces: yields each parameter as soon as all its layers have been read.

    Args:
      pieces: of the parameters.
      expected: their shapes.
      growing: is given those of which a layer has been read; at the end they lack others.

    Yields:
      (path, parameter).
    """
    growing = {} if growing is None else growing
    for path, layer, piece in pieces:
        if layer is None:
            yield path, np.ascontiguousarray(piece)
            continue
        whole, layers = growing.setdefault(path, (np.zeros(expected[path].shape, piece.dtype), set()))
        whole[layer] = piece
        layers.add(layer)
        if len(layers) == len(whole):
            del growing[path]
            yield path, whole


def gather(
    pieces: Iterator[Piece], expected: Mapping[str, StoredParam], incomplete: Growing | None = None
) -> dict[str, Any]:
    """Joins pieces into a tree, without parameters of which a layer is missing; `incomplete` is given those."""
    return traverse_util.unflatten_dict(dict(parameters(pieces, expected, incomplete)), sep="/")


def finite(name: str, x: np.ndarray) -> np.ndarray:
    """Returns the array; raises UserError if it contains NaN or infinity."""
    with np.errstate(invalid="ignore"):
        if x.size and not (np.isfinite(x.min()) and np.isfinite(x.max())):  # both are NaN if any value is
            raise UserError(f"weights: {name} is not finite: it contains NaN or infinity")
    return x
