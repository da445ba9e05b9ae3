"""A constant learning rate after the warm-up: η·min(1, t/w)."""

from __future__ import annotations

from typing import Literal

import optax

from jaxpt.config import ScheduleConfig
from jaxpt.train.schedules.base import warmed_up


class Constant(ScheduleConfig):
    """Constant after the warm-up: peak η, warm-up w; η·min(1, t/w) at step t."""

    kind: Literal["constant"] = "constant"

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        return warmed_up(self, learning_rate, total_steps, optax.constant_schedule(learning_rate))
