"""A segment may be stored in parts of consecutive layers: only some of its layers are trained, or each is read alone.

`encoder/segment_0/block_0/…` of 12 layers becomes `encoder/segment_0/layers_0-7/block_0/…` and
`encoder/segment_0/layers_8-11/block_0/…`. A model accepts both layouts, with the same results and the same random
draws.
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
    """Consecutive repetitions of a segment, `start` to `stop` − 1."""

    name: str
    """First and last layer number in the stack: "layers_8-11"."""
    start: int
    stop: int


Parts = Mapping[str, tuple[Part, ...]]
"""{path of a segment: its parts, in order}; without segments that are not split."""


def of(segment: Mapping[str, Any]) -> list[Any]:
    """The parameters of a segment's parts, in order; a list of one if the segment is not split.

    Example:
      >>> of({"layers_10-11": 2, "layers_8-9": 1}), of({"block_0": 0})
      ([1, 2], [{'block_0': 0}])
    """
    if not all(_PART.fullmatch(name) for name in segment):
        return [segment]
    return [segment[name] for name in sorted(segment, key=_first)]


def whole(path: str) -> str:
    """The path of a parameter in the unsplit tree.

    Example:
      >>> whole("encoder/segment_0/layers_8-11/block_0/norm/scale")
      'encoder/segment_0/block_0/norm/scale'
    """
    return "/".join(name for name in path.split("/") if not _PART.fullmatch(name))


def places(path: str, parts: Parts) -> list[tuple[str, slice]]:
    """The paths of a parameter of the unsplit tree in the split tree.

    Returns:
      [(path, layer slice)] for each part; [(path, all layers)] if the segment is not split.
    """
    match = _SEGMENT.fullmatch(path)
    if match is None or match[1] not in parts:
        return [(path, slice(None))]
    return [(f"{match[1]}/{part.name}/{match[2]}", slice(part.start, part.stop)) for part in parts[match[1]]]


def one_by_one(shapes: Any, axes: Any) -> Parts:
    """A part for each repetition of every segment; segments whose layers share their parameters are left as they are.

    Args:
      shapes: nested dicts of arrays or `jax.ShapeDtypeStruct`s, not split.
      axes: their logical axes.
    """
    names, segment_parts = traverse_util.flatten_dict(axes, sep="/"), {}
    for path, x in traverse_util.flatten_dict(shapes, sep="/").items():
        segment = _SEGMENT.fullmatch(path)
        if segment is not None and names[path][0] == "layers":
            segment_parts[segment[1]] = tuple(Part(f"layers_{i}-{i}", i, i + 1) for i in range(x.shape[0]))
    return segment_parts


def split(tree: Any, parts: Parts) -> Any:
    """Splits segments into parts; also works on `jax.ShapeDtypeStruct`s, logical axes and traced arrays.

    Args:
      tree: nested dicts of parameters, not split.
      parts: the parts of each segment to split.

    Returns:
      The split tree; `tree` itself if `parts` is empty.
    """
    if not parts:
        return tree
    flat = traverse_util.flatten_dict(tree, sep="/")
    pieces = {place: cut(x, at) for path, x in flat.items() for place, at in places(path, parts)}
    return traverse_util.unflatten_dict(pieces, sep="/")


def cut(x: Any, layers: slice) -> Any:
    """Slices the layers of an array or `jax.ShapeDtypeStruct`; logical axes are returned unchanged."""
    if layers == slice(None) or isinstance(x, tuple):
        return x
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((layers.stop - layers.start, *x.shape[1:]), x.dtype)
    return x[layers]


def gathered(paths: Iterable[str]) -> dict[str, list[str]]:
    """{path in the unsplit tree: the paths of its parts, in order}."""
    pieces_by_path: dict[str, list[str]] = {}
    for path in paths:
        pieces_by_path.setdefault(whole(path), []).append(path)
    for pieces in pieces_by_path.values():
        pieces.sort(key=lambda path: max((_first(name) for name in path.split("/")), default=0))
    return pieces_by_path


def join(flat: Mapping[str, Any], concatenate: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Undoes `split`: {path: array} with whole parameters.

    Args:
      flat: {path: array}, with or without parts.
      concatenate: joins arrays along their first axis.
    """
    return {
        path: flat[pieces[0]] if len(pieces) == 1 else concatenate([flat[piece] for piece in pieces])
        for path, pieces in gathered(flat).items()
    }


def _first(name: str) -> int:
    """Number of a part's first layer; −1 for other names."""
    match = _PART.fullmatch(name)
    return int(match[1]) if match else -1
