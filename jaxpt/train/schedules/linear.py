"""Linear warm-up, then linear decay to the end of the run."""

from __future__ import annotations

from typing import Literal

import optax

from jaxpt.config import Fraction, ScheduleConfig
from jaxpt.train.schedules.base import warmed_up


class Linear(ScheduleConfig):
    """Linear decay: peak η, warm-up w, T steps, end fraction e; η·t/w for t < w, then
    η·(1 − (1 − e)·(t − w)/(T − w))."""

    kind: Literal["linear"] = "linear"
    end_fraction: Fraction = 0.0
    """Learning rate at the end, as a fraction of the peak."""

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        after = max(1, total_steps - self.warmup_steps)
        decay = optax.linear_schedule(learning_rate, self.end_fraction * learning_rate, after)
        return warmed_up(self, learning_rate, total_steps, decay)
