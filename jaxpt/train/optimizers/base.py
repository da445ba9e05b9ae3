"""What all optimizers share: clipping before the update rule, decay and learning rate after it."""

from __future__ import annotations

from typing import Any

import optax

from jaxpt.config import OptimizerConfig
from jaxpt.train.optimizers.logical import decay_mask


def make(config: OptimizerConfig, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
    """The optimizer of a run: clipping by the global norm, then the update rule.

    Args:
      config: kind and hyperparameters.
      schedule: from the step to the learning rate, `learning_rate` included.
      logical_axes: a tree like the parameters, a tuple of names for each.

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
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    return optax.chain(*clip, config.build(schedule, logical_axes))


def decayed(
    scale: optax.GradientTransformation, weight_decay: float, schedule: optax.Schedule, logical_axes: Any
) -> optax.GradientTransformation:
    """`scale`, then decoupled weight decay on matrices, then the learning rate.

    Args:
      scale: the update rule, which treats each element by itself.
      weight_decay: λ, times the learning rate.
      schedule: from the step to the learning rate.
      logical_axes: a tree like the parameters, a tuple of names for each.

    Returns:
      The transformation −η·(scale(g) + λ·p).
    """
    decay = optax.add_decayed_weights(weight_decay, decay_mask(logical_axes))
    return optax.chain(scale, decay, optax.scale_by_learning_rate(schedule))
