"""Lion: the sign of a momentum. Paper: https://arxiv.org/abs/2302.06675"""

from __future__ import annotations

from typing import Any, Literal

import optax

from jaxpt.config import Fraction, OptimizerConfig
from jaxpt.train.optimizers.base import decayed


class Lion(OptimizerConfig):
    """Lion: −η·(sign(b1·m + (1 − b1)·g) + λ·p)."""

    kind: Literal["lion"] = "lion"
    b1: Fraction = 0.9
    """Share of the momentum in the step."""
    b2: Fraction = 0.99
    """Decay of the momentum."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        return decayed(optax.scale_by_lion(self.b1, self.b2), self, schedule, logical_axes)
