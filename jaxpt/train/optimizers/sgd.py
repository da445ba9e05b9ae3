"""Stochastic gradient descent, with momentum on request."""

from __future__ import annotations

from typing import Any, Literal

import optax

from jaxpt.config import Fraction, OptimizerConfig
from jaxpt.train.optimizers.base import decayed


class SGD(OptimizerConfig):
    """Stochastic gradient descent: −η·(trace + λ·p), trace = g + b1·trace."""

    kind: Literal["sgd"] = "sgd"
    b1: Fraction = 0.0
    """Momentum."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        scale = optax.trace(self.b1) if self.b1 else optax.identity()
        return decayed(scale, self, schedule, logical_axes)
