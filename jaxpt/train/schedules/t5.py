"""T5's: the inverse square root of the step, constant at first. Paper: https://arxiv.org/abs/1910.10683"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import optax

from jaxpt.config import PositiveInt, ScheduleConfig


class T5(ScheduleConfig):
    """T5's schedule: factor η, w steps; η/sqrt(max(t, w)) at step t. No ramp: a run may be shorter than w."""

    kind: Literal["t5"] = "t5"
    warmup_steps: PositiveInt
    """Steps at the first, constant rate (T5: 10000)."""

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        return lambda step: learning_rate / jnp.sqrt(jnp.maximum(step, self.warmup_steps))
