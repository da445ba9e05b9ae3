"""Linear warm-up, then half a cosine down to the end of the run. Paper: https://arxiv.org/abs/1608.03983"""

from __future__ import annotations

from typing import Literal

import optax

from jaxpt.config import Fraction, ScheduleConfig
from jaxpt.train.schedules.base import warmed_up


class Cosine(ScheduleConfig):
    """Half a cosine: peak η, warm-up w, T steps, end fraction e; η·t/w for t < w, then
    η·(e + (1 − e)·(1 + cos(π·p))/2), where p = (t − w)/(T − w)."""

    kind: Literal["cosine"] = "cosine"
    end_fraction: Fraction = 0.0
    """Learning rate at the end, as a fraction of the peak."""

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        after = max(1, total_steps - self.warmup_steps)
        decay = optax.cosine_decay_schedule(learning_rate, after, alpha=self.end_fraction)
        return warmed_up(self, learning_rate, total_steps, decay)
