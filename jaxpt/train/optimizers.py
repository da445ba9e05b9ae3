"""Optimizers, all of optax, applied per logical layer and per logical matrix.

A scanned stack of L layers keeps its parameters as [L, ...]. Read naively, a stacked bias looks like a matrix, and
norms taken over an array mix layers. Here the logical axes decide: an update of a scanned model equals that of the
same model unrolled.

`Axes` of an array: its logical names, such as ("layers", "embed", "mlp"); the leading "layers" marks a scanned stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxpt.config import OptimizerConfig
from jaxpt.errors import UserError

Axes = tuple[str | None, ...]

LAYERS = "layers"

NOT_MATRICES = frozenset({"vocab", "positions", "buckets", "classes"})
"""Axes of tables and output heads, which Muon leaves to AdamW."""

_OPTIONS = {
    "adamw": {"b1", "b2", "eps", "bias_correction"},
    "adafactor": {"b1", "b2", "eps", "scale_by_parameter"},
    "lamb": {"b1", "b2", "eps"},
    "lion": {"b1", "b2"},
    "muon": {"b1", "b2", "eps", "adam_learning_rate"},
    "sgd": {"b1"},
}
"""Which of the keys that only some optimizers know each of them knows."""


def make(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    """The optimizer of a run: clipping by the global norm, then the update rule.

    With gradient g, parameter p, learning rate η and weight decay λ (matrices only), where m and v are moving averages
    of g and g² and a hat is the correction of their bias to zero:

        adamw       −η·(m̂/(√v̂ + ε) + λ·p); with `bias_correction: false` (BERT) m and v, and ε 1e-6
        adafactor   −η·(u/max(1, rms(u))·max(rms(p), 1e-3) + λ·p), u = g/√v, v factored into rows and columns where
                    both are 128 or more and decaying by 1 − t^−0.8; `b1` adds momentum, `b2` replaces the 0.8
        lamb        −η·‖p‖/‖r‖·r, r = m̂/(√v̂ + ε) + λ·p
        lion        −η·(sign(b1·m + (1 − b1)·g) + λ·p)
        muon        −η·(√max(1, out/in)·orthogonal(b1·m̂ + (1 − b1)·ĝ) + λ·p) for matrices inside the network; AdamW at
                    `adam_learning_rate` (on the same schedule, with its own b1 0.9) for everything else
        sgd         −η·(trace + λ·p), trace = g + b1·trace

    Args:
      config: kind and hyperparameters.
      schedule: from the step to the learning rate, `learning_rate` included.
      logical_axes: a tree like the parameters, a tuple of names for each.

    Returns:
      An optax transformation of the gradients of the mean loss.

    Raises:
      UserError: a key is set that this kind does not know.

    Example:
      >>> axes, params = {"w": ("layers", "embed", "mlp")}, {"w": jnp.ones((2, 3, 3))}
      >>> tx = make(OptimizerConfig(kind="sgd"), optax.constant_schedule(0.5), axes)
      >>> print(tx.update(params, tx.init(params), params)[0]["w"][0, 0])
      [-0.5 -0.5 -0.5]

    Papers: adamw https://arxiv.org/abs/1711.05101, adafactor https://arxiv.org/abs/1804.04235, lamb
    https://arxiv.org/abs/1904.00962, lion https://arxiv.org/abs/2302.06675, muon https://arxiv.org/abs/2502.16982
    """
    _check(config)
    transform = _KINDS[config.kind](config, schedule, logical_axes)
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    return optax.chain(*clip, transform)


def decay_mask(logical_axes: Any) -> Any:
    """Which parameters are decayed: those with two or more axes, "layers" not counted.

    Args:
      logical_axes: a tree of tuples of names.

    Returns:
      A tree of bools.

    Example:
      >>> decay_mask({"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")})
      {'bias': False, 'kernel': True}
    """
    return jax.tree.map(lambda axes: _rank(axes) >= 2, logical_axes, is_leaf=is_axes)


def per_layer(transform: optax.GradientTransformation, logical_axes: Any) -> optax.GradientTransformation:
    """Applies a transformation to each layer of the scanned stacks as if it were a model of its own.

    Parameters of equal stack size are mapped together (`jax.vmap`) over their leading axis; those outside of stacks are
    transformed as they are. For transformations that treat each array by itself, such as Adafactor and LAMB.

    Args:
      transform: sees the arrays without their "layers" axis.
      logical_axes: a tree like the parameters, which are nested dicts.

    Returns:
      A transformation whose state is {"unstacked": …, "stack_<L>": a state with a leading axis L in every array}.
    """
    axes_by_path = flatten_dict(logical_axes)

    def split(tree: Any) -> dict[str, Any]:
        groups: dict[str, Any] = {}
        for path, x in flatten_dict(tree).items():
            name = f"stack_{x.shape[0]}" if axes_by_path[path][:1] == (LAYERS,) else "unstacked"
            groups.setdefault(name, {})[path] = x
        return {name: unflatten_dict(group) for name, group in groups.items()}

    def mapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if name == "unstacked" else jax.vmap(function)

    def init(params: Any) -> dict[str, Any]:
        return {name: mapped(name, transform.init)(group) for name, group in split(params).items()}

    def update(updates: Any, state: dict[str, Any], params: Any = None) -> tuple[Any, dict[str, Any]]:
        groups, params = split(updates), split(params)
        new = {name: mapped(name, transform.update)(groups[name], state[name], params[name]) for name in groups}
        flat = {path: x for updates, _ in new.values() for path, x in flatten_dict(updates).items()}
        return unflatten_dict(flat), {name: state for name, (_, state) in new.items()}

    return optax.GradientTransformation(init, update)


# ---- kinds ----------------------------------------------------------------------------------------------------------


def _adamw(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    b1, b2 = _or(config.b1, 0.9), _or(config.b2, 0.999)
    if config.bias_correction:
        scale = optax.scale_by_adam(b1, b2, _or(config.eps, 1e-8))
    else:
        scale = _scale_by_uncorrected_adam(b1, b2, _or(config.eps, 1e-6))
    return _decayed(scale, config, schedule, logical_axes)


def _adafactor(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    transform = optax.adafactor(
        schedule,
        decay_rate=_or(config.b2, 0.8),
        multiply_by_parameter_scale=config.scale_by_parameter,
        momentum=config.b1,
        eps=_or(config.eps, 1e-30),
    )
    if not config.weight_decay:
        return per_layer(transform, logical_axes)
    decay = optax.add_decayed_weights(lambda step: -schedule(step) * config.weight_decay, decay_mask(logical_axes))
    return optax.chain(per_layer(transform, logical_axes), decay)


def _lamb(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    def matrices(params: Any) -> Any:  # `per_layer` has taken the layers' axis away
        return jax.tree.map(lambda x: x.ndim >= 2, params)

    transform = optax.lamb(
        schedule, _or(config.b1, 0.9), _or(config.b2, 0.999), _or(config.eps, 1e-6), 0.0, config.weight_decay, matrices
    )
    return per_layer(transform, logical_axes)


def _lion(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    return _decayed(optax.scale_by_lion(_or(config.b1, 0.9), _or(config.b2, 0.99)), config, schedule, logical_axes)


def _sgd(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    scale = optax.trace(config.b1) if config.b1 else optax.identity()
    return _decayed(scale, config, schedule, logical_axes)


def _muon(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    def is_matrix(axes: Axes) -> bool:
        return _rank(axes) == 2 and NOT_MATRICES.isdisjoint(axes)

    def dimensions(axes: Axes) -> Any:  # a leading layers' axis is a batch of matrices to Muon
        first = len(axes) - 2
        return optax.contrib.MuonDimensionNumbers(first, first + 1) if is_matrix(axes) else optax.MaskedNode()

    muon = optax.chain(
        optax.contrib.scale_by_muon(
            beta=_or(config.b1, 0.95),
            weight_dimension_numbers=jax.tree.map(dimensions, logical_axes, is_leaf=is_axes),
        ),
        optax.stateless_with_tree_map(lambda u, p: u * max(1.0, p.shape[-1] / p.shape[-2]) ** 0.5),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )
    ratio = _or(config.adam_learning_rate, config.learning_rate) / config.learning_rate
    adam = optax.adamw(
        lambda step: ratio * schedule(step),
        b2=_or(config.b2, 0.999),
        eps=_or(config.eps, 1e-8),
        weight_decay=config.weight_decay,
        mask=lambda _: decay_mask(
            jax.tree.map(lambda axes: optax.MaskedNode() if is_matrix(axes) else axes, logical_axes, is_leaf=is_axes)
        ),
    )
    labels = jax.tree.map(lambda axes: "muon" if is_matrix(axes) else "adam", logical_axes, is_leaf=is_axes)
    return optax.partition({"muon": muon, "adam": adam}, labels)


_KINDS = {"adamw": _adamw, "adafactor": _adafactor, "lamb": _lamb, "lion": _lion, "muon": _muon, "sgd": _sgd}


def _decayed(
    scale: optax.GradientTransformation, config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any
) -> optax.GradientTransformation:
    """`scale`, then decoupled weight decay on matrices, then the learning rate."""
    decay = optax.add_decayed_weights(config.weight_decay, decay_mask(logical_axes))
    return optax.chain(scale, decay, optax.scale_by_learning_rate(schedule))


def _scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """m/(√v + ε): BERT's Adam, whose first steps are up to (1 − b1)/√(1 − b2) times as large as Adam's."""

    def update(updates: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2).init, update)


def _check(config: OptimizerConfig) -> None:
    fields = type(config).model_fields
    for key in sorted(set().union(*_OPTIONS.values()) - _OPTIONS[config.kind]):
        if getattr(config, key) != fields[key].default:
            knows = ", ".join(kind for kind, keys in _OPTIONS.items() if key in keys)
            raise UserError(
                f"optimizer.{key}: {config.kind} has no such key, only {knows}; leave it at {fields[key].default}"
            )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


# ---- logical axes ---------------------------------------------------------------------------------------------------


def is_axes(x: Any) -> bool:
    """True for a tuple of logical names (or None), the leaf of a tree of axes; states of optax are tuples as well."""
    return type(x) is tuple and all(name is None or isinstance(name, str) for name in x)


def _rank(axes: Axes) -> int:
    """Axes of one layer's array."""
    return len(axes) - (axes[:1] == (LAYERS,))


def state_axes(transform: optax.GradientTransformation, params: Any, logical_axes: Any) -> Any:
    """The logical axes of each array of an optimizer's state, so that it is sharded as its parameters are.

    An array of the state belongs to the parameter whose path ends its own path. Moments have the parameter's axes;
    Adafactor's row and column averages those that they keep; counters have none.

    Args:
      transform: what `make` gave.
      params: the parameters or their ShapeDtypeStructs.
      logical_axes: a tree like the parameters, a tuple of names for each.

    Returns:
      A tree like the state with, for each array, a tuple of as many names (or None) as it has dimensions.

    Example:
      >>> params, axes = {"w": jax.ShapeDtypeStruct((256, 512), jnp.float32)}, {"w": ("embed", "mlp")}
      >>> tx = make(OptimizerConfig(kind="adafactor"), optax.constant_schedule(1.0), axes)
      >>> factored = state_axes(tx, params, axes)[0]["unstacked"][0]
      >>> factored.count, factored.v_row, factored.v_col, factored.v
      ((), {'w': ('embed',)}, {'w': ('mlp',)}, {'w': (None,)})
    """
    shapes = {path: x.shape for path, x in flatten_dict(params).items()}
    axes_by_path = flatten_dict(logical_axes)

    def axes_of(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Axes:
        names = tuple(str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path)
        owner = next((names[i:] for i in range(len(names)) if names[i:] in shapes), None)
        if owner is None:
            stacked = leaf.ndim and any(name == f"stack_{leaf.shape[0]}" for name in names)
            return (LAYERS, *[None] * (leaf.ndim - 1)) if stacked else (None,) * leaf.ndim
        role = names[len(names) - len(owner) - 1]
        return _kept(axes_by_path[owner], shapes[owner], leaf.shape, role)

    return jax.tree_util.tree_map_with_path(axes_of, jax.eval_shape(transform.init, params))


def _kept(axes: Axes, shape: tuple[int, ...], leaf_shape: tuple[int, ...], role: str) -> Axes:
    """Axes of an array of the state that is named `role` and belongs to a parameter of these axes and this shape."""
    if leaf_shape == shape:
        return axes
    stack = len(axes) - _rank(axes)
    if len(leaf_shape) == len(shape) - 1 and role in ("v_row", "v_col"):
        by_size = np.argsort(shape[stack:]) + stack  # as optax does: rows are means over the largest axis
        dropped = by_size[-1] if role == "v_row" else by_size[-2]
        return tuple(name for i, name in enumerate(axes) if i != dropped)
    return (*axes[:stack], *[None] * (len(leaf_shape) - stack))
