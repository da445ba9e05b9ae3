"""Adamax: Adam with the largest gradient in the place of the root mean square. Paper: https://arxiv.org/abs/1412.6980"""

from __future__ import annotations

from typing import Any, Literal

import optax

from jaxpt.config import Fraction, OptimizerConfig, PositiveFloat
from jaxpt.train.optimizers.base import decayed


class Adamax(OptimizerConfig):
    """Adamax with decoupled weight decay: −η·(m̂/u + λ·p), u = max(b2·u, |g| + ε)."""

    kind: Literal["adamax"] = "adamax"
    b1: Fraction = 0.9
    """First-moment decay."""
    b2: Fraction = 0.999
    """Decay of the largest gradient."""
    eps: PositiveFloat = 1e-8
    """ε."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        scale = optax.scale_by_adamax(self.b1, self.b2, self.eps)
        return decayed(scale, self, schedule, logical_axes)
