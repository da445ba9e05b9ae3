"""Any number of labels for a text or a pair of texts (topics, emotions)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from jaxpt import metrics
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.rows import check_label
from jaxpt.data.tasks.base import Answer, TextsTask
from jaxpt.metrics import Targets


class MultiLabelTask(TextsTask):
    """A task with a set of labels per row, each predicted by itself.

    Example:
      >>> task = MultiLabelTask(labels=("joy", "anger", "fear"))
      >>> task.target(Row(2, {"text": "…", "label": "fear, joy"}), "line 2")
      (1, 0, 1)
    """

    kind: Literal["multi_label"] = "multi_label"
    labels: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The labels, in the order of the head's outputs; by default those of the training set."""
    separator: str = ","
    """What stands between labels, where the column is text and no list."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A label with a higher probability is predicted."""

    default_metrics: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "exact_match")
    metric_targets: ClassVar[Targets | None] = "labels"

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.outputs,)

    def labels_in(self, row: Row, where: str) -> list[str]:
        """The labels of a row; possibly none."""
        value: Any = tables.column(row, self.label, where)
        if value is None:
            return []
        raw_labels = value if isinstance(value, list) else tables.label(value).split(self.separator)
        return [label for label in (tables.label(raw_label).strip() for raw_label in raw_labels) if label]

    def target(self, row: Row, where: str) -> tuple[int, ...]:
        labels = self.labels_in(row, where)
        for label in labels:
            check_label(label, self.labels, where)
        return tuple(int(label in labels) for label in self.labels)

    def loss(self, outputs: Sequence[np.ndarray], target: tuple[int, ...]) -> float:
        """Mean over the labels of −log p(label is there, or not)."""
        logits = outputs[0][0].astype(np.float64)
        return float(np.logaddexp(0, np.where(np.array(target) > 0, -logits, logits)).mean())

    def named(self, value: tuple[int, ...], row: Row, where: str) -> list[str]:
        """The labels."""
        return list(itertools.compress(self.labels, value))

    def parsed(self, value: list[str]) -> tuple[int, ...]:
        return tuple(int(label in value) for label in self.labels)

    def confusions(self, predictions: Sequence[tuple[int, ...]], targets: Sequence[tuple[int, ...]]) -> list[str]:
        return metrics.label_errors(predictions, targets, self.labels)

    def decide_one(self, logits: np.ndarray) -> tuple[int, ...]:
        return tuple((_sigmoid(logits) > self.threshold).astype(int).tolist())

    def answer_one(self, logits: np.ndarray) -> Answer:
        p = dict(zip(self.labels, _sigmoid(logits).tolist()))
        return {"labels": list(itertools.compress(self.labels, self.decide_one(logits))), "probabilities": p}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
