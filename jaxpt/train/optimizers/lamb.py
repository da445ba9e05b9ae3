"""LAMB: Adam whose step has the length of the parameter, for large batches. Paper: https://arxiv.org/abs/1904.00962"""

from __future__ import annotations

from typing import Any, Literal

import jax
import optax

from jaxpt.config import Fraction, OptimizerConfig, PositiveFloat
from jaxpt.train.optimizers.logical import per_layer


class Lamb(OptimizerConfig):
    """LAMB: −η·‖p‖/‖r‖·r, r = m̂/(√v̂ + ε) + λ·p."""

    kind: Literal["lamb"] = "lamb"
    b1: Fraction = 0.9
    """First-moment decay."""
    b2: Fraction = 0.999
    """Second-moment decay."""
    eps: PositiveFloat = 1e-6
    """ε."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        def matrices(params: Any) -> Any:  # `per_layer` has taken the stacks' axes away
            return jax.tree.map(lambda x: x.ndim >= 2, params)

        lamb = optax.lamb(schedule, self.b1, self.b2, self.eps, 0.0, self.weight_decay, matrices)
        return per_layer(lamb, logical_axes)
