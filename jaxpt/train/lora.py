"""Low-rank adapters: A and B beside each chosen W, and W + alpha/rank · A · B in its place, before the model runs.

The adapter of the matrix at PATH is at `adapter/PATH/a` and `…/b`. The model knows nothing of it: the sum is a function
of the parameter tree, inside of the step. Of layers that are stacked, A and B are stacked too. The gradient of W is
made on the way to those of A and B, a layer at a time: what is saved is optimizer state.
Paper: https://arxiv.org/abs/2106.09685

Shapes: I rows of W · O its columns · R rank; a stack's layers before them
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxpt.config import LoraConfig
from jaxpt.errors import UserError
from jaxpt.train import patterns
from jaxpt.train.optimizers import logical

ADAPTER = "adapter"


class Factors(NamedTuple):
    """The adapter of one of our parameters; arrays have L in front where the parameter has."""

    held: np.ndarray
    """Which layers have one: bool [L], or []."""
    a: np.ndarray
    """[L, I, R]; of layers without one anything."""
    b: np.ndarray
    """[L, R, O]."""


def targets(config: LoraConfig, tree: Mapping[str, patterns.Leaf]) -> patterns.Vectors:
    """The matrices that have an adapter.

    Args:
      config: has their patterns; biases and norms beside the matrices are passed over.
      tree: all parameters of the model.

    Returns:
      {path: bool [layers], or [] of a matrix without layers}.

    Raises:
      UserError: a pattern holds for no matrix.
    """
    key = "train.lora.targets"
    matrices = [path for path, leaf in tree.items() if logical.is_matrix(leaf.axes)]
    for pattern in config.targets:
        masks = patterns.select(pattern.removeprefix("!"), tree, key)
        if not any(masks[path].any() for path in matrices):
            raise UserError(f"{key}: {pattern!r} matches no matrix; biases and norms have no low-rank adapter")
    masks = patterns.union(config.targets, tree, key)
    return {path: masks[path] for path in matrices if masks[path].any()}


def describe(config: LoraConfig, shapes: Mapping[str, Any], axes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Shapes and logical axes of the adapters of some matrices.

    Args:
      config: has the rank.
      shapes: {path: array or ShapeDtypeStruct} of the matrices.
      axes: {path: logical axes}, of others too.

    Returns:
      (shapes, axes): {"adapter/PATH/a": [..., I, R], "adapter/PATH/b": [..., R, O]}; the rank has no logical axis.
    """
    new_shapes, new_axes = {}, {}
    for path, w in shapes.items():
        *stack, rows, columns = w.shape
        *names, row, column = axes[path]
        new_shapes[f"{ADAPTER}/{path}/a"] = jax.ShapeDtypeStruct((*stack, rows, config.rank), jnp.float32)
        new_shapes[f"{ADAPTER}/{path}/b"] = jax.ShapeDtypeStruct((*stack, config.rank, columns), jnp.float32)
        new_axes[f"{ADAPTER}/{path}/a"] = (*names, row, None)
        new_axes[f"{ADAPTER}/{path}/b"] = (*names, None, column)
    return new_shapes, new_axes


def init(shapes: Mapping[str, Any], key: jax.Array) -> dict[str, jax.Array]:
    """Fresh adapters: A uniform between ±1/√I, as in Hugging Face's peft, and B zero.

    Args:
      shapes: what `describe` gave.
      key: random key.

    Returns:
      {path: array}.
    """

    def draw(path: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if path.endswith("/b"):
            return jnp.zeros(shape.shape, shape.dtype)
        bound = 1 / math.sqrt(shape.shape[-2])
        path_key = jax.random.fold_in(key, zlib.crc32(path.encode()))
        return jax.random.uniform(path_key, shape.shape, shape.dtype, -bound, bound)

    return {path: draw(path, shape) for path, shape in shapes.items()}


def merged(config: LoraConfig | None, params: Any, key: jax.Array | None = None) -> Any:
    """The model's parameters, each adapter added to its matrix; also works on NumPy arrays.

    Args:
      config: of the adapter; None where there is none.
      params: with the adapter.
      key: random key of the dropout on the adapter's input features: one draw for all tokens; None for none.

    Returns:
      The tree without the adapter.
    """
    if config is None or ADAPTER not in params:
        return params
    flat = traverse_util.flatten_dict(params, sep="/")
    out = {path: x for path, x in flat.items() if not path.startswith(f"{ADAPTER}/")}
    for path, w in out.items():
        if f"{ADAPTER}/{path}/a" in flat:
            out[path] = added(config, path, w, flat[f"{ADAPTER}/{path}/a"], flat[f"{ADAPTER}/{path}/b"], key)
    return traverse_util.unflatten_dict(out, sep="/")


def added(config: LoraConfig, path: str, w: Any, a: Any, b: Any, key: jax.Array | None = None) -> Any:
    """W + alpha/rank · A · B, see `merged`."""
    if key is not None and config.dropout:
        path_key = jax.random.fold_in(key, zlib.crc32(path.encode()))
        keep_mask = jax.random.bernoulli(path_key, 1 - config.dropout, (*a.shape[:-1], 1))
        a = jnp.where(keep_mask, a / (1 - config.dropout), 0)
    scale = config.alpha / config.rank
    if all(isinstance(x, np.ndarray) for x in (w, a, b)):
        return w + (scale * np.matmul(a, b)).astype(w.dtype)
    return w + scale * jnp.matmul(a, b, precision="highest")
