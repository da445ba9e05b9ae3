"""BERT's: linear warm-up, then linear decay to 0. Paper: https://arxiv.org/abs/1810.04805"""

from __future__ import annotations

from typing import Literal

import optax

from jaxpt.config import ScheduleConfig
from jaxpt.train.schedules.base import warmed_up


class Bert(ScheduleConfig):
    """BERT's schedule: peak η, warm-up w, T steps; η·t/w for t < w, then η·(1 − t/T).

    As in the released code the decay counts from step 0, so that the rate falls from η to η·(1 − w/T) where the warm-up
    ends.

    Example:
      >>> rate = Bert(warmup_steps=10).build(1.0, 100)
      >>> [round(float(rate(t)), 2) for t in (0, 5, 9, 10, 99)]
      [0.0, 0.5, 0.9, 0.9, 0.01]
    """

    kind: Literal["bert"] = "bert"

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        decay = optax.linear_schedule(learning_rate, 0.0, total_steps)
        return warmed_up(self, learning_rate, total_steps, lambda step: decay(step + self.warmup_steps))
