"""What all optimizers share: clipping before the update rule, decay and learning rate after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optax
from flax import traverse_util

from jaxpt.config import OptimizerConfig
from jaxpt.train import patterns
from jaxpt.train.optimizers.groups import Group, grouped, scale_by_rates
from jaxpt.train.optimizers.logical import decay_mask


def make(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    logical_axes: Any,
    rates: Mapping[str, np.ndarray] | None = None,
    groups: Sequence[Group] = (),
) -> optax.GradientTransformation:
    """The optimizer of a run: clipping by the norm, then the update rule.

    Args:
      config: kind and hyperparameters.
      schedule: from the step to the learning rate, `learning_rate` included.
      logical_axes: a tree like the trained parameters, a tuple of names for each.
      rates: {path: factors of the learning rate, [layers] or []}; all 1 by default.
      groups: parameters with state and decay of their own; by default all are of one group, which has no name.

    Returns:
      An optax transformation of the gradients of the mean loss.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxpt.train.optimizers.sgd import SGD
      >>> axes, params = {"w": ("layers", "embed", "mlp")}, {"w": jnp.ones((2, 3, 3))}
      >>> tx = make(SGD(), optax.constant_schedule(0.5), axes)
      >>> print(tx.update(params, tx.init(params), params)[0]["w"][0, 0])
      [-0.5 -0.5 -0.5]
    """
    config.check(logical_axes)
    clip = _clip(config.clip_norm, config.clip_separately, logical_axes) if config.clip_norm else []

    def of_group(group: Group, logical_axes: Any) -> optax.GradientTransformation:
        group_config = config.model_copy(update={"weight_decay": config.weight_decay * group.decay})
        return group_config.build(schedule, logical_axes)

    rule = grouped(of_group, groups, logical_axes) if groups else config.build(schedule, logical_axes)
    return optax.chain(*clip, rule, *([scale_by_rates(rates)] if rates else []))


def _clip(norm: float, separately: Sequence[str], logical_axes: Any) -> list[optax.GradientTransformation]:
    """Clipping by the global norm, or by that of the parameters of each pattern and that of the others."""
    if not separately:
        return [optax.clip_by_global_norm(norm)]
    flat = traverse_util.flatten_dict(logical_axes, sep="/")
    held = {path: [] for path in flat}
    for pattern in separately:
        for path, holds in patterns.held([pattern], flat, "optimizer.clip_separately").items():
            held[path].append(holds)
    number = {path: (*holds, True).index(True) for path, holds in held.items()}  # of the first pattern that holds

    def masked_clip(n: int) -> optax.GradientTransformation:
        mask = {path: m == n for path, m in number.items()}
        return optax.masked(optax.clip_by_global_norm(norm), traverse_util.unflatten_dict(mask, sep="/"))

    return [masked_clip(n) for n in range(len(separately) + 1)]


def decayed(
    scale: optax.GradientTransformation, config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any
) -> optax.GradientTransformation:
    """`scale`, then decoupled weight decay, then the learning rate.

    Args:
      scale: the update rule, which treats each element by itself.
      config: its `weight_decay` is λ; `decay_all` says what has it.
      schedule: from the step to the learning rate.
      logical_axes: a tree like the parameters, a tuple of names for each.

    Returns:
      The transformation −η·(scale(g) + λ·p).
    """
    decay = optax.add_decayed_weights(config.weight_decay, decay_mask(logical_axes, config.decay_all))
    return optax.chain(scale, decay, optax.scale_by_learning_rate(schedule))
