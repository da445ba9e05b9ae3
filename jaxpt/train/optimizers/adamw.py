"""Adam with decoupled weight decay, and BERT's Adam. Paper: https://arxiv.org/abs/1711.05101"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxpt.config import Fraction, OptimizerConfig, PositiveFloat
from jaxpt.train.optimizers.base import decayed


class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay: −η·(m̂/(√v̂ + ε) + λ·p); with `bias_correction: false` (BERT) m and v in place of
    m̂ and v̂."""

    kind: Literal["adamw"] = "adamw"
    b1: Fraction = 0.9
    """First-moment decay."""
    b2: Fraction = 0.999
    """Second-moment decay."""
    eps: PositiveFloat | None = None
    """ε; 1e-8 by default, 1e-6 without bias correction."""
    bias_correction: bool = True
    """False is BERT's Adam."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        eps = self.eps or (1e-8 if self.bias_correction else 1e-6)
        return decayed(scale_by_adam(self.b1, self.b2, eps, self.bias_correction), self, schedule, logical_axes)


def scale_by_adam(b1: float, b2: float, eps: float, bias_correction: bool) -> optax.GradientTransformation:
    """Adam's m̂/(√v̂ + ε), or BERT's m/(√v + ε), whose first steps are up to (1 − b1)/√(1 − b2) times as large."""
    adam = optax.scale_by_adam(b1, b2, eps)
    if bias_correction:
        return adam

    def update(updates: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    return optax.GradientTransformation(adam.init, update)
