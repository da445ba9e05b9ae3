"""ULMFiT's slanted triangle: a short linear rise, then a long linear fall. Paper: https://arxiv.org/abs/1801.06146"""

from __future__ import annotations

import fractions
from typing import Annotated, Literal

import jax.numpy as jnp
import optax
from pydantic import Field

from jaxpt.config import ScheduleConfig
from jaxpt.errors import UserError


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
