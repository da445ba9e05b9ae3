"""Learning rates over the steps: `schedule.kind: cosine` names the class of that kind.

Steps count from 0: the first update sees `schedule(0)`, the last one `schedule(total_steps - 1)`. A schedule keeps no
state, so a run can be continued under a larger `total_steps`: constant, inverse_sqrt and t5 do not depend on it, wsd
only in its final decay.

Papers: bert https://arxiv.org/abs/1810.04805 · cosine https://arxiv.org/abs/1608.03983 · inverse_sqrt
https://arxiv.org/abs/1706.03762 · slanted_triangular https://arxiv.org/abs/1801.06146 · t5
https://arxiv.org/abs/1910.10683 · wsd https://arxiv.org/abs/2404.06395
"""

from __future__ import annotations

import fractions
from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
import optax
from pydantic import Field

from jaxpt.config import Fraction, PositiveInt, ScheduleConfig
from jaxpt.errors import UserError, shown


def make(config: ScheduleConfig, learning_rate: float, total_steps: int) -> optax.Schedule:
    """The schedule of a configuration, whose class may be anyone's.

    Args:
      config: kind and hyperparameters.
      learning_rate: the peak.
      total_steps: updates in the whole run.

    Returns:
      A function from the step to the learning rate.

    Raises:
      UserError: `build` returns something else, or the schedule does not fit into the run.
    """
    schedule = config.build(learning_rate, total_steps)
    if not callable(schedule):
        raise UserError(
            f"optimizer.schedule.kind: {config.kind}: build must return a function of the step, it returns "
            f"{shown(schedule)}"
        )
    return schedule


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
            f"`within({total_steps})` has a shorter one"
        )
    if not warmup:
        return schedule
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), schedule], [warmup])


class Constant(ScheduleConfig):
    """Constant after the warm-up: peak η, warm-up w; η·min(1, t/w) at step t."""

    kind: Literal["constant"] = "constant"

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        return warmed_up(self, learning_rate, total_steps, optax.constant_schedule(learning_rate))


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

    def peak(self, learning_rate: float, total_steps: int) -> float:
        ramp = max(self.warmup_steps - 1, 0) / max(self.warmup_steps, 1)
        return learning_rate * max(ramp, 1 - self.warmup_steps / total_steps)

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        decay = optax.linear_schedule(learning_rate, 0.0, total_steps)
        return warmed_up(self, learning_rate, total_steps, lambda step: decay(step + self.warmup_steps))


class T5(ScheduleConfig):
    """T5's schedule: factor η, w steps; η/sqrt(max(t, w)) at step t. No ramp: a run may be shorter than w."""

    kind: Literal["t5"] = "t5"
    warmup_steps: PositiveInt
    """Steps at the first, constant rate (T5: 10000)."""

    has_ramp: ClassVar[bool] = False

    def peak(self, learning_rate: float, total_steps: int) -> float:
        return learning_rate / self.warmup_steps**0.5

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        return lambda step: learning_rate / jnp.sqrt(jnp.maximum(step, self.warmup_steps))


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


class SlantedTriangular(ScheduleConfig):
    """Slanted triangle: peak η, T steps, ratio r, cut = ⌊cut_fraction·T⌋; η·(1 + p·(r − 1))/r at step t, where
    p = t/cut for t ≤ cut, then p = 1 − (t − cut)/(T − cut).

    As in the released code (fastai's `CircularLR`) the fall ends at T. The paper divides by cut·(1/cut_fraction − 1),
    which is T − cut where cut_fraction·T is whole; elsewhere the paper's rate would fall below 0.

    Example:
      >>> rate = SlantedTriangular(ratio=4).build(1.0, 100)
      >>> [round(float(rate(t)), 3) for t in (0, 5, 10, 55, 100)]
      [0.25, 0.625, 1.0, 0.625, 0.25]
    """

    kind: Literal["slanted_triangular"] = "slanted_triangular"
    cut_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Part of the run in which the rate rises."""
    ratio: Annotated[float, Field(ge=1)] = 32.0
    """How many times lower the lowest rate is than the peak."""

    def build(self, learning_rate: float, total_steps: int) -> optax.Schedule:
        if self.warmup_steps:
            raise UserError(
                "optimizer.schedule.warmup_steps: slanted_triangular has no warm-up; cut_fraction is its rise"
            )
        cut = int(fractions.Fraction(str(self.cut_fraction)) * total_steps)  # 0.29 · 100 is 28.999… as a float

        def rate(step: int) -> float:
            rise, fall = step / max(cut, 1), jnp.maximum(1 - (step - cut) / (total_steps - cut), 0)
            return learning_rate * (1 + jnp.where(step < cut, rise, fall) * (self.ratio - 1)) / self.ratio

        return rate


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
