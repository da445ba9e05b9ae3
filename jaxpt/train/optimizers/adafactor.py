"""Adafactor: second moments kept as rows and columns. Paper: https://arxiv.org/abs/1804.04235"""

from __future__ import annotations

from typing import Any, Literal

import optax

from jaxpt.config import Fraction, OptimizerConfig, PositiveFloat
from jaxpt.train.optimizers.logical import decay_mask, per_layer


class Adafactor(OptimizerConfig):
    """Adafactor: −η·(u/max(1, rms(u))·max(rms(p), 1e-3) + λ·p), u = g/√v; v is factored into rows and columns where
    both are 128 or more, and decays by 1 − t^−b2."""

    kind: Literal["adafactor"] = "adafactor"
    b1: Fraction | None = None
    """Adds momentum."""
    b2: Fraction = 0.8
    """Exponent of the second moment's decay."""
    eps: PositiveFloat = 1e-30
    """Added to g²."""
    scale_by_parameter: bool = True
    """Multiply the step by the parameter's root mean square, as T5 does."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        transform = optax.adafactor(
            schedule,
            decay_rate=self.b2,
            multiply_by_parameter_scale=self.scale_by_parameter,
            momentum=self.b1,
            eps=self.eps,
        )
        if not self.weight_decay:
            return per_layer(transform, logical_axes)
        mask = decay_mask(logical_axes, self.decay_all)
        decay = optax.add_decayed_weights(lambda step: -schedule(step) * self.weight_decay, mask)
        return optax.chain(per_layer(transform, logical_axes), decay)
