"""A number for a text or a pair of texts (STS-B)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from jaxpt.errors import UserError
from jaxpt.tasks.base import Answer, TextsTask, Values, column


class Regression(TextsTask):
    """A task with a number per row.

    Example:
      >>> Regression(label="score").target({"text": "…", "score": "3.8"}, "line 2")
      3.8
    """

    kind: Literal["regression"] = "regression"

    default_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    allowed_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mse")

    @property
    def outputs(self) -> int:
        return 1

    def stratum(self, row: Values, where: str) -> float:
        return self.target(row, where)

    def target(self, row: Values, where: str) -> float:
        value: Any = column(row, self.label, "task.label", where)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not np.isfinite(number):
            raise UserError(f"{where}: column {self.label!r} (task.label) wants a number, got {value!r}")
        return number

    def encoded(self, target: float) -> np.ndarray:
        return np.float32(target)

    def decide(self, logits: np.ndarray) -> float:
        return float(logits[0])

    def answer(self, logits: np.ndarray) -> Answer:
        return {"value": float(logits[0])}
