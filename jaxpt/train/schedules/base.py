"""What schedules of the learning rate share: the linear warm-up, put together with optax's schedules."""

from __future__ import annotations

import optax

from jaxpt.config import ScheduleConfig
from jaxpt.errors import UserError


def warmed_up(config: ScheduleConfig, peak: float, total_steps: int, schedule: optax.Schedule) -> optax.Schedule:
    """A linear ramp from 0 to the peak over `warmup_steps`, then another schedule.

    Args:
      config: has `warmup_steps`.
      peak: the learning rate at the end of the ramp.
      total_steps: updates in the whole run.
      schedule: what follows; it counts its steps from the end of the ramp.

    Returns:
      A function from the step to the learning rate.

    Raises:
      UserError: the ramp is longer than the run.
    """
    warmup = config.warmup_steps
    if warmup > total_steps:
        raise UserError(
            f"optimizer.schedule.warmup_steps: {warmup} is longer than the run, train.steps is {total_steps}; "
            f"such a short run takes optimizer.schedule.warmup_steps={total_steps // 10}, "
            f"a resume, which keeps its schedule, train.steps={warmup} or more"
        )
    if not warmup:
        return schedule
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), schedule], [warmup])
