"""A stack's segment may be stored in parts, of neighbouring layers each: then some of its layers can be trained alone.

`encoder/segment_0/block_0/…` of 12 layers becomes `encoder/segment_0/layers_0-7/block_0/…` and
`encoder/segment_0/layers_8-11/block_0/…`. A model runs both forms, with the same results and the same random draws.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
from flax import traverse_util

_PART = re.compile(r"layers_(\d+)-\d+")
_SEGMENT = re.compile(r"(.*segment_\d+)/(.*)")


class Part(NamedTuple):
    """Neighbouring repetitions of a segment, `start` to `stop` − 1."""

    name: str
    """By the numbers of its first and last layer in the stack: "layers_8-11"."""
    start: int
    stop: int


Parts = Mapping[str, tuple[Part, ...]]
"""{path of a segment: its parts, in order}; a segment that is not split is left out."""


def of(segment: Mapping[str, Any]) -> list[Any]:
    """The parameters of a segment's parts, in order; of a segment that is not split itself alone.

    Example:
      >>> of({"layers_10-11": 2, "layers_8-9": 1}), of({"block_0": 0})
      ([1, 2], [{'block_0': 0}])
    """
    if not all(_PART.fullmatch(name) for name in segment):
        return [segment]
    return [segment[name] for name in sorted(segment, key=_first)]


def whole(path: str) -> str:
    """The path of a parameter in the tree that is not split.

    Example:
      >>> whole("encoder/segment_0/layers_8-11/block_0/norm/scale")
      'encoder/segment_0/block_0/norm/scale'
    """
    return "/".join(name for name in path.split("/") if not _PART.fullmatch(name))


def places(path: str, parts: Parts) -> list[tuple[str, slice]]:
    """Where a parameter of the tree that is not split lies in the split one.

    Returns:
      (path, its layers) for each part; where the segment is not split (path, all).
    """
    found = _SEGMENT.fullmatch(path)
    if found is None or found[1] not in parts:
        return [(path, slice(None))]
    return [(f"{found[1]}/{part.name}/{found[2]}", slice(part.start, part.stop)) for part in parts[found[1]]]


def split(tree: Any, parts: Parts) -> Any:
    """Parameters with their segments in parts; also works on `jax.ShapeDtypeStruct`s, logical axes, and traced.

    Args:
      tree: nested dicts of parameters, no segment of which is split.
      parts: which layers go where.

    Returns:
      The tree itself where nothing is to be split.
    """
    if not parts:
        return tree
    flat = traverse_util.flatten_dict(tree, sep="/")
    pieces = {place: cut(x, at) for path, x in flat.items() for place, at in places(path, parts)}
    return traverse_util.unflatten_dict(pieces, sep="/")


def cut(x: Any, layers: slice) -> Any:
    """Some layers of an array, or of its `jax.ShapeDtypeStruct`; logical axes stay as they are."""
    if layers == slice(None) or isinstance(x, tuple):
        return x
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((layers.stop - layers.start, *x.shape[1:]), x.dtype)
    return x[layers]


def gathered(paths: Iterable[str]) -> dict[str, list[str]]:
    """{path in the tree that is not split: the paths of its parts, in order}."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(whole(path), []).append(path)
    for pieces in found.values():
        pieces.sort(key=lambda path: max((_first(name) for name in path.split("/")), default=0))
    return found


def join(flat: Mapping[str, Any], concatenate: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Undoes `split`: {path: array} with each parameter in one.

    Args:
      flat: {path: array}, with or without parts.
      concatenate: joins arrays along their first axis.
    """
    return {
        path: flat[pieces[0]] if len(pieces) == 1 else concatenate([flat[piece] for piece in pieces])
        for path, pieces in gathered(flat).items()
    }


def _first(name: str) -> int:
    """Number of a part's first layer; −1 of any other name."""
    found = _PART.fullmatch(name)
    return int(found[1]) if found else -1
