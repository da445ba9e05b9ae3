"""Weights to Hugging Face's names and layouts, and back: one engine, one table per family.

A table says for each of our parameters what it is called there. Layers, which are stacked here, are taken apart and
put together; rows that only pad the vocabulary in storage are stripped and put back. A name that is missing, left over
or of the wrong shape is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from flax import traverse_util

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError
from jaxpt.models import base

TRANSFORMS = {"identity": lambda x: x, "transpose": np.transpose}  # each is its own inverse


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor over there, and the parameter or parameters of ours that it holds."""

    ours: str | tuple[str, ...]
    """Path in our tree, "a/b/c"; several are joined along their last axis."""
    theirs: str
    """Their name. With {layer} in it our parameter has a leading layers axis."""
    transform: Literal["identity", "transpose"] = "identity"
    tied: tuple[str, ...] = ()
    """Further names of the same tensor: written on request, and when read they must hold the same values."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Our paths, always as a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a family."""

    rows: tuple[Row, ...]
    ignored: tuple[str, ...] = ()
    """Regular expressions of names that hold no weights, such as causal masks in old files."""


def dense(ours: str, theirs: str, bias: bool = True) -> tuple[Row, ...]:
    """Rows of a `torch.nn.Linear`, which stores [out, in]."""
    kernel = Row(f"{ours}/kernel", f"{theirs}.weight", "transpose")
    return (kernel, Row(f"{ours}/bias", f"{theirs}.bias")) if bias else (kernel,)


def layer_norm(ours: str, theirs: str) -> tuple[Row, ...]:
    """Rows of a LayerNorm."""
    return (Row(f"{ours}/scale", f"{theirs}.weight"), Row(f"{ours}/bias", f"{theirs}.bias"))


def to_hf(params: Mapping[str, Any], table: Table, config: ModelConfig, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Our parameters under their names, in their layouts.

    Args:
      params: our tree, as `base.init` makes it.
      table: of the model's family.
      config: the model's configuration.
      tied: write tied tensors under each of their names, as a PyTorch state dict has them; a file needs them once.

    Returns:
      {their name: array}.

    Raises:
      UserError: a parameter is missing, has no row in the table, or is not of the shape that `config` says.
    """
    expected = _expected(config)
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    _same_names(set(flat), set(expected), "parameter")
    _same_names({path for row in table.rows for path in row.paths}, set(expected), "row of the table for")
    for path, (shape, _) in expected.items():
        _same_shape(path, flat[path].shape, shape)
    state: dict[str, np.ndarray] = {}
    for row in table.rows:
        parts = [_strip(np.asarray(flat[path]), expected[path][1], config.vocab_size) for path in row.paths]
        joined = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        layers = dict(enumerate(joined)) if "{layer}" in row.theirs else {0: joined}
        for name in (row.theirs, *(row.tied if tied else ())):
            for layer, x in layers.items():
                state[name.format(layer=layer)] = np.ascontiguousarray(TRANSFORMS[row.transform](x))
    return state


def from_hf(state: Mapping[str, Any], table: Table, config: ModelConfig) -> dict[str, Any]:
    """Their tensors as our tree of parameters.

    Args:
      state: {their name: array}; anything that `numpy.asarray` takes.
      table: of the model's family.
      config: the model's configuration.

    Returns:
      The tree as `base.init` makes it, float32, NumPy arrays.

    Raises:
      UserError: a tensor is missing, left over, of the wrong shape, or differs from one that it is tied to.
    """
    expected = _expected(config)
    _same_names({path for row in table.rows for path in row.paths}, set(expected), "row of the table for")
    left = {name for name in state if not any(re.fullmatch(pattern, name) for pattern in table.ignored)}
    flat: dict[str, np.ndarray] = {}
    for row in table.rows:
        boxes = [expected[path] for path in row.paths]
        shapes = [_stripped_shape(shape, axes, config.vocab_size) for shape, axes in boxes]
        layered = "{layer}" in row.theirs
        names = [row.theirs.format(layer=i) for i in range(shapes[0][0])] if layered else [row.theirs]
        shape = (*shapes[0][layered:-1], sum(s[-1] for s in shapes))
        shape = shape[::-1] if row.transform == "transpose" else shape
        arrays = [_take(state, name, shape) for name in names]
        left -= set(names) | _check_tied(state, row, arrays)
        arrays = [TRANSFORMS[row.transform](x) for x in arrays]
        joined = np.stack(arrays) if layered else arrays[0]
        splits = np.cumsum([s[-1] for s in shapes])[:-1]
        for path, part, (full, _) in zip(row.paths, np.split(joined, splits, axis=-1), boxes, strict=True):
            padding = [(0, stored - size) for stored, size in zip(full, part.shape, strict=True)]
            flat[path] = np.ascontiguousarray(np.pad(part, padding))
    if left:
        raise UserError(f"weights: {_some(left)} not known in a {config.kind} of this configuration")
    return traverse_util.unflatten_dict(flat, sep="/")


def _expected(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """{path: (shape in storage, logical axes)}."""
    flat = traverse_util.flatten_dict(base.abstract(config.build()), sep="/")
    return {path: (box.value.shape, box.names) for path, box in flat.items()}


def _stripped_shape(shape: tuple[int, ...], axes: tuple[str, ...], vocab_size: int) -> tuple[int, ...]:
    return tuple(vocab_size if axis == "vocab" else size for size, axis in zip(shape, axes, strict=True))


def _strip(x: np.ndarray, axes: tuple[str, ...], vocab_size: int) -> np.ndarray:
    return x[tuple(slice(vocab_size) if axis == "vocab" else slice(None) for axis in axes)]


def _take(state: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in state:
        raise UserError(f"weights: {name} is missing")
    _same_shape(name, tuple(state[name].shape), shape)
    return np.asarray(state[name], dtype=np.float32)


def _check_tied(state: Mapping[str, Any], row: Row, arrays: list[np.ndarray]) -> set[str]:
    """The tied names that `state` has, after a look at their values."""
    found = set()
    for name in row.tied:
        if name in state:
            found.add(name)
            if not np.array_equal(_take(state, name, arrays[0].shape), arrays[0]):
                raise UserError(f"weights: {name} and {row.theirs} differ, this configuration ties them")
    return found


def _same_shape(name: str, got: tuple[int, ...], want: tuple[int, ...]) -> None:
    if tuple(got) != tuple(want):
        raise UserError(f"weights: {name} has shape {tuple(got)}, this configuration wants {tuple(want)}")


def _same_names(got: set[str], want: set[str], what: str) -> None:
    if want - got:
        raise UserError(f"weights: no {what} {_some(want - got)}")
    if got - want:
        raise UserError(f"weights: {what} {_some(got - want)} is not part of this configuration")


def _some(names: set[str]) -> str:
    first = sorted(names)[:3]
    return ", ".join(first) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
