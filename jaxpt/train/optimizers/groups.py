"""Groups of parameters with a transformation each, and rates of their own along the layers of a stack.

`optax.partition` puts `MaskedNode`s where a group has no parameter. Here a group is a smaller tree with logical axes of
its own, which any optimizer takes as a whole model's, and may have some layers alone of a stacked parameter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util


@dataclasses.dataclass(frozen=True)
class Group:
    """Parameters that one transformation updates."""

    name: str
    """Of its state."""
    rows: Mapping[str, np.ndarray | None]
    """{path: which of its layers; None for the whole parameter}."""
    decay: float = 1.0
    """Factor of the weight decay."""


def grouped(
    build: Callable[[Group, Any], optax.GradientTransformation], groups: Sequence[Group], logical_axes: Any
) -> optax.GradientTransformation:
    """A transformation for each group.

    Args:
      build: from a group and the logical axes of its parameters to its transformation.
      groups: each parameter, or each of its layers, is in exactly one.
      logical_axes: a tree like the parameters, which are nested dicts.

    Returns:
      A transformation whose state is {group's name: state}.
    """
    axes = traverse_util.flatten_dict(logical_axes, sep="/")
    trees = {group.name: {path: axes[path] for path in group.rows} for group in groups}
    transforms = {group.name: build(group, _tree(trees[group.name])) for group in groups}

    def part(tree: Any, group: Group) -> Any:
        flat = traverse_util.flatten_dict(tree, sep="/")
        return _tree({path: flat[path] if rows is None else flat[path][rows] for path, rows in group.rows.items()})

    def init(params: Any) -> dict[str, Any]:
        return {group.name: transforms[group.name].init(part(params, group)) for group in groups}

    def update(updates: Any, state: dict[str, Any], params: Any = None) -> tuple[Any, dict[str, Any]]:
        pieces: dict[str, list[tuple[np.ndarray | None, Any]]] = {}
        new = {}
        for group in groups:
            args = part(updates, group), state[group.name], part(params, group)
            group_updates, new[group.name] = transforms[group.name].update(*args)
            for path, x in traverse_util.flatten_dict(group_updates, sep="/").items():
                pieces.setdefault(path, []).append((group.rows[path], x))
        return _tree({path: _in_order(param_pieces) for path, param_pieces in pieces.items()}), new

    return optax.GradientTransformation(init, update)


def scale_by_rates(rates: Mapping[str, np.ndarray]) -> optax.GradientTransformation:
    """Multiplies each parameter's update, of a stacked one each layer's.

    Every update is its learning rate times something else, so this is a learning rate of its own, whatever the
    optimizer: no transformation of its own is needed.

    Args:
      rates: {path: factors, [layers] or []}, of others too.

    Returns:
      A transformation without state.

    Example:
      >>> tx = scale_by_rates({"w": np.array([1.0, 0.5])})
      >>> print(tx.update({"w": jnp.ones((2, 2))}, tx.init(None))[0]["w"])
      [[1.  1. ]
       [0.5 0.5]]
    """

    def scale(path: str, update: Any) -> Any:
        factors = rates[path]
        if (factors == 1).all():
            return update
        return update * factors.reshape(*factors.shape, *[1] * (update.ndim - factors.ndim)).astype(update.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        flat = traverse_util.flatten_dict(updates, sep="/")
        return _tree({path: scale(path, x) for path, x in flat.items()}), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


ROUTER_BIAS = "router_bias/bias"


def step_router_biases(
    transform: optax.GradientTransformation, rate: float, logical_axes: Any
) -> optax.GradientTransformation:
    """Moves the routers' biases by −rate · sign(gradient), which is the excess of each expert's load.

    Args:
      transform: of all parameters.
      rate: what a bias moves in a step.
      logical_axes: a tree like the parameters.

    Returns:
      `transform` itself if there are no such biases.

    Paper: https://arxiv.org/abs/2408.15664
    """
    paths = [path for path in traverse_util.flatten_dict(logical_axes, sep="/") if path.endswith(ROUTER_BIAS)]
    if not paths:
        return transform

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = transform.update(gradients, state, params)
        flat, slopes = (traverse_util.flatten_dict(tree, sep="/") for tree in (updates, gradients))
        return _tree(flat | {path: -rate * jnp.sign(slopes[path]) for path in paths}), state

    return optax.GradientTransformation(transform.init, update)


def _tree(flat: Mapping[str, Any]) -> Any:
    return traverse_util.unflatten_dict(flat, sep="/")


def _in_order(pieces: list[tuple[np.ndarray | None, Any]]) -> Any:
    """The layers of a parameter, of all groups that have some."""
    if len(pieces) == 1:
        return pieces[0][1]
    rows = np.concatenate([rows for rows, _ in pieces])
    return jnp.concatenate([x for _, x in pieces])[np.argsort(rows)]
