"""A number for a text or a pair of texts (STS-B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.rows import empty_label
from jaxpt.data.tasks.base import Answer
from jaxpt.data.tasks.texts import TextsTask
from jaxpt.errors import UserError, shown
from jaxpt.metrics import Targets
from jaxpt.metrics.text_tasks import parse_number


class RegressionTask(TextsTask):
    """A task with a number per row.

    Example:
      >>> RegressionTask(label="score").target(Row(2, {"text": "…", "score": "3.8"}), "line 2")
      3.8
    """

    kind: Literal["regression"] = "regression"

    default_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    metric_targets: ClassVar[Targets | None] = "number"

    quantiles: ClassVar[int] = 5

    outputs: ClassVar[int] = 1

    def stratum(self, row: Row, where: str) -> float:
        return self.target(row, where)

    def target(self, row: Row, where: str) -> float:
        value: Any = tables.column(row, self.label, where)
        if not tables.label(value).strip():
            raise empty_label(where, self.label, "a number")
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not np.isfinite(number):
            raise UserError(f"{where}: column {self.label!r} (task.label) wants a number, got {shown(value)}")
        return number

    def loss(self, outputs: Sequence[np.ndarray], target: float) -> float:
        """(output − target)²."""
        return float((np.float64(self.pooled(outputs)[0]) - target) ** 2)

    def target_text(self, row: Row, where: str) -> str:
        """The number rounded to the nearest 0.2, with one decimal (T5's STS-B)."""
        return f"{np.round(np.float32(self.target(row, where)) * np.float32(5)) / np.float32(5):.1f}"

    def parse(self, text: str, row: Row, where: str) -> float:
        return parse_number(text)

    def answer_text(self, text: str, row: Row, where: str) -> Answer:
        """The text, and the number that it is; None if it is none."""
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        return {"text": text, "value": value if np.isfinite(value) else None}

    def decide_one(self, logits: np.ndarray) -> float:
        return float(logits[0])

    def answer_one(self, logits: np.ndarray) -> Answer:
        return {"value": float(logits[0])}
