"""Optimizers see one logical matrix at a time: the layers of a scanned stack and stacked experts as separate arrays.

A scanned stack of L layers keeps its parameters as [L, ...], E experts theirs as [E, ...] or [L, E, ...]. Read naively,
a stacked bias looks like a matrix, and norms taken over an array mix layers. Here the logical axes decide: an update of
a stacked model equals that of the same model unrolled.

`Axes` of an array: its logical names, such as ("layers", "embed", "mlp"); leading "layers" and "expert" mark stacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

Axes = tuple[str | None, ...]

LAYERS, EXPERT = "layers", "expert"


def is_axes(x: Any) -> bool:
    """True for a tuple of logical names (or None), the leaf of a tree of axes; states of optax are tuples as well."""
    return type(x) is tuple and all(name is None or isinstance(name, str) for name in x)


def stack_axes(axes: Axes) -> Axes:
    """The leading axes that count separate arrays: layers, then experts.

    A vector over the experts, such as a router's bias, is one array.

    Example:
      >>> stack_axes(("layers", "expert", "embed", "mlp")), stack_axes(("layers", "expert")), stack_axes(("embed",))
      (('layers', 'expert'), ('layers',), ())
    """
    layers = axes[:1] if axes[:1] == (LAYERS,) else ()
    rest = axes[len(layers) :]
    return (*layers, EXPERT) if rest[:1] == (EXPERT,) and len(rest) > 1 else layers


def rank(axes: Axes) -> int:
    """Axes of one logical array."""
    return len(axes) - len(stack_axes(axes))


def is_matrix(axes: Axes) -> bool:
    """Whether one logical array is a matrix, or a table; not one that is a vector for each head.

    Example:
      >>> is_matrix(("layers", "embed", "heads")), is_matrix(("layers", "heads", "norm")), is_matrix(("layers", "mlp"))
      (True, False, False)
    """
    return rank(axes) == 2 and axes[-2:] != ("heads", "norm")


def decay_mask(logical_axes: Any, decay_all: bool = False) -> Any:
    """Which parameters are decayed: those with two or more axes, stacks not counted.

    Args:
      logical_axes: a tree of tuples of names.
      decay_all: the others too.

    Returns:
      A tree of bools.

    Example:
      >>> decay_mask({"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")})
      {'bias': False, 'kernel': True}
    """
    return jax.tree.map(lambda axes: decay_all or rank(axes) >= 2, logical_axes, is_leaf=is_axes)


def per_layer(transform: optax.GradientTransformation, logical_axes: Any) -> optax.GradientTransformation:
    """Applies a transformation to each layer of the scanned stacks and to each expert as if alone in a model.

    Parameters of equal stack sizes are mapped together (`jax.vmap`) over their leading axes; those outside of stacks
    are transformed as they are. For transformations that treat each array by itself, such as Adafactor and LAMB.

    Args:
      transform: sees the arrays without their "layers" and "expert" axes.
      logical_axes: a tree like the parameters, which are nested dicts.

    Returns:
      A transformation whose state is {"unstacked": …, "stack_<L>": a state with a leading axis L in every array,
      "experts_<E>": …, "stack_<L>_experts_<E>": …}.
    """
    axes_by_path = flatten_dict(logical_axes)

    def split(tree: Any) -> dict[str, Any]:
        groups: dict[str, Any] = {}
        for path, x in flatten_dict(tree).items():
            groups.setdefault(_group(axes_by_path[path], x.shape), {})[path] = x
        return {name: unflatten_dict(group) for name, group in groups.items()}

    def mapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        for _ in name.split("_")[1::2]:
            function = jax.vmap(function)
        return function

    def init(params: Any) -> dict[str, Any]:
        return {name: mapped(name, transform.init)(group) for name, group in split(params).items()}

    def update(updates: Any, state: dict[str, Any], params: Any = None) -> tuple[Any, dict[str, Any]]:
        groups, params = split(updates), split(params)
        new = {name: mapped(name, transform.update)(groups[name], state[name], params[name]) for name in groups}
        flat = {path: x for updates, _ in new.values() for path, x in flatten_dict(updates).items()}
        return unflatten_dict(flat), {name: state for name, (_, state) in new.items()}

    return optax.GradientTransformation(init, update)


def _group(axes: Axes, shape: tuple[int, ...]) -> str:
    """The name of the arrays that are mapped together: "stack_12_experts_8"."""
    words = {LAYERS: "stack", EXPERT: "experts"}
    return "_".join(f"{words[axis]}_{size}" for axis, size in zip(stack_axes(axes), shape)) or "unstacked"


def state_axes(transform: optax.GradientTransformation, params: Any, logical_axes: Any) -> Any:
    """The logical axes of each array of an optimizer's state, so that it is sharded as its parameters are.

    An array of the state belongs to the parameter whose path ends its own path. Moments have the parameter's axes;
    Adafactor's row and column averages those that they keep; counters have none.

    Args:
      transform: what `jaxpt.train.optimizers.make` gave.
      params: the parameters or their ShapeDtypeStructs.
      logical_axes: a tree like the parameters, a tuple of names for each.

    Returns:
      A tree like the state with, for each array, a tuple of as many names (or None) as it has dimensions.

    Example:
      >>> import jax.numpy as jnp
      >>> params, axes = {"w": jax.ShapeDtypeStruct((256, 512), jnp.float32)}, {"w": ("embed", "mlp")}
      >>> tx = per_layer(optax.adafactor(1.0), axes)
      >>> factored = state_axes(tx, params, axes)["unstacked"][0]
      >>> factored.count, factored.v_row, factored.v_col, factored.v
      ((), {'w': ('embed',)}, {'w': ('mlp',)}, {'w': (None,)})
    """
    shapes = {path: x.shape for path, x in flatten_dict(params).items()}
    axes_by_path = flatten_dict(logical_axes)
    stacks = {_group(axes, shapes[path]): stack_axes(axes) for path, axes in axes_by_path.items()}

    def axes_of(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Axes:
        names = tuple(str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path)
        owner = next((names[i:] for i in range(len(names)) if names[i:] in shapes), None)
        if owner is None:
            stack = next((stacks[name] for name in names if name in stacks), ())
            return (*stack, *[None] * (leaf.ndim - len(stack)))
        role = names[len(names) - len(owner) - 1]
        return _kept(axes_by_path[owner], shapes[owner], leaf.shape, role)

    return jax.tree_util.tree_map_with_path(axes_of, jax.eval_shape(transform.init, params))


def _kept(axes: Axes, shape: tuple[int, ...], leaf_shape: tuple[int, ...], role: str) -> Axes:
    """Axes of an array of the state that is named `role` and belongs to a parameter of these axes and this shape."""
    stack = len(stack_axes(axes))
    if len(leaf_shape) == len(shape) and leaf_shape[stack:] == shape[stack:]:  # of some layers, where groups share them
        return axes
    if len(leaf_shape) == len(shape) - 1 and role in ("v_row", "v_col"):
        by_size = np.argsort(shape[stack:]) + stack  # as optax does: rows are means over the largest axis
        dropped = by_size[-1] if role == "v_row" else by_size[-2]
        return tuple(name for i, name in enumerate(axes) if i != dropped)
    return (*axes[:stack], *[None] * (len(leaf_shape) - stack))
