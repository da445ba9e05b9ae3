"""Warm-up, stable, decay: linear, constant, linear. Paper: https://arxiv.org/abs/2404.06395"""

from __future__ import annotations

from typing import Literal

import optax

from jaxpt.config import Fraction, PositiveInt, ScheduleConfig
from jaxpt.errors import UserError
from jaxpt.train.schedules.base import warmed_up


class WarmupStableDecay(ScheduleConfig):
    """Warm-up, stable, decay: peak η, warm-up w, decay d, T steps, end fraction e; η·t/w for t < w, η up to T − d,
    then linearly to e·η at T.

    Only the final decay depends on T: a run may be continued from before it.
    """

    kind: Literal["wsd"] = "wsd"
    decay_steps: PositiveInt | None = None
    """Length of the final decay; a tenth of the run by default."""
    end_fraction: Fraction = 0.0
    """Learning rate at the end, as a fraction of the peak."""

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        warmup, after = self.warmup_steps, max(1, total_steps - self.warmup_steps)
        if self.decay_steps and warmup <= total_steps < warmup + self.decay_steps:
            raise UserError(
                f"optimizer.schedule.decay_steps: {self.decay_steps} + {warmup} warm-up steps are longer than the "
                f"run, train.steps is {total_steps}"
            )
        decay = self.decay_steps or max(1, min(total_steps // 10, after))
        start = total_steps - decay - warmup
        falling = optax.linear_schedule(learning_rate, self.end_fraction * learning_rate, decay, start)
        return warmed_up(self, learning_rate, total_steps, falling)
