"""Linear warm-up, then the inverse square root of the step: the Transformer's. Paper: https://arxiv.org/abs/1706.03762"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import optax

from jaxpt.config import PositiveInt, ScheduleConfig
from jaxpt.train.schedules.base import warmed_up


class InverseSqrt(ScheduleConfig):
    """Inverse square root: peak η, warm-up w; η·min(t/w, sqrt(w/t)) at step t."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup_steps: PositiveInt
    """Steps of a linear ramp from 0 to the peak."""

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        warmup = self.warmup_steps
        return warmed_up(
            self,
            learning_rate,
            total_steps,
            lambda step: learning_rate * jnp.sqrt(warmup / (jnp.maximum(step, 0) + warmup)),
        )
