"""Any number of labels for a text or a pair of texts (topics, emotions)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from jaxpt import metrics
from jaxpt.config import unaffected
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.rows import check_label
from jaxpt.data.tasks.base import Answer, names_of
from jaxpt.data.tasks.texts import TextsTask
from jaxpt.errors import UserError, shown
from jaxpt.metrics import Targets, calibration

SEPARATORS = ("|", ";", ",")
"""What stands between labels, in the order in which it is looked for."""
_THRESHOLD = "threshold_"  # and the number of a label: its metric


class PredictedLabels(tuple[int, ...]):
    """0 or 1 of each label, as targets are, with the probabilities that decided it."""

    probabilities: np.ndarray

    @classmethod
    def above(cls, probabilities: np.ndarray, thresholds: float | Sequence[float]) -> PredictedLabels:
        """The labels whose probabilities are above their thresholds.

        Args:
          probabilities: of each label, [K].
          thresholds: of each label, or one of all.
        """
        labels = cls((probabilities > np.array(thresholds)).astype(int).tolist())
        labels.probabilities = probabilities
        return labels


class MultiLabelTask(TextsTask):
    """A task with a set of labels per row, each predicted by itself.

    Example:
      >>> task = MultiLabelTask(labels=("joy", "anger", "fear"))
      >>> task.target(Row(2, {"text": "…", "label": "fear, joy"}), "line 2")
      (1, 0, 1)
      >>> task = MultiLabelTask(label=("joy", "fear"), labels=("joy", "fear"))  # a column for each label
      >>> task.target(Row(2, {"text": "…", "joy": "1", "fear": "0"}), "line 2")
      (1, 0)
    """

    kind: Literal["multi_label"] = "multi_label"
    label: str | tuple[str, ...] = "label"
    """Column of the labels, a list (also as text: `["a", "b"]`) or text with `separator`; or a column for each label,
    with 1 or 0, true or false."""
    labels: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The labels, in the order of the head's outputs; by default those of the training set, or the label columns."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """What stands between labels, where the column is text and no list; by default the first of `|`, `;` and `,` that
    divides the text into labels."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A label with a higher probability is predicted, where it has none of its own in `thresholds`."""
    thresholds: Annotated[tuple[float, ...] | None, unaffected("records", "program")] = None
    """Threshold of each label; by default that of the largest F1 on the validation set, where 10 rows have the label
    and 10 do not. The run saves them with its metrics."""

    default_metrics: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "exact_match")
    metric_targets: ClassVar[Targets | None] = "labels"

    @model_validator(mode="after")
    def _consistent(self) -> MultiLabelTask:
        columns = names_of(self.label)
        if len(set(columns)) < len(columns):
            raise ValueError("label: a column is named twice")
        count = self.outputs or len(columns) * (not isinstance(self.label, str))  # 0: labels are not known yet
        if self.thresholds is not None and count and len(self.thresholds) != count:
            raise ValueError(f"thresholds: expected one for each of labels, {count}, got {len(self.thresholds)}")
        if not isinstance(self.label, str) and self.labels is not None and set(self.labels) != set(columns):
            raise ValueError("labels: expected the names of the columns in label, each once; leave labels out")
        if not isinstance(self.label, str) and self.separator is not None:
            raise ValueError("separator: is of labels in one column, and label names a column for each; drop separator")
        return self

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.outputs,)

    def labels_in(self, row: Row, where: str) -> list[str]:
        """The labels of a row, each once; possibly none."""
        if not isinstance(self.label, str):
            return [name for name in self.label if _flag(row, name, where)]
        value = self._cell(row, where)
        if value is None:
            return []
        raw_labels = value if isinstance(value, list) else self._split(tables.label(value).strip())
        labels = dict.fromkeys(tables.label(raw_label).strip() for raw_label in raw_labels)
        return [label for label in labels if label]

    def _cell(self, row: Row, where: str) -> Any:
        """The labels of a row as its column has them; text that is a list as a list, unless it is a label."""
        value: Any = tables.column(row, self.label, where)
        if value in (self.labels or ()):
            return value
        return tables.parse_list(value, f"{where}: column {self.label!r} (task.label)")

    def _split(self, text: str) -> list[str]:
        """The labels in a text."""
        if self.separator is not None:
            return text.split(self.separator)
        if text in (self.labels or ()):
            return [text]
        divided = [text.split(separator) for separator in SEPARATORS if separator in text] or [[text]]
        known = (labels for labels in divided if {label.strip() for label in labels} <= {"", *(self.labels or ())})
        return next(known, divided[0])

    def before_labels(self, rows: Iterable[tuple[Row, str]]) -> MultiLabelTask:
        """The task with the separator of its rows, where labels are not given: the first of `SEPARATORS` there is."""
        if self.separator is not None or self.labels is not None or not isinstance(self.label, str):
            return self
        values = (self._cell(row, where) for row, where in rows)
        occurring = {
            separator for value in values if isinstance(value, str) for separator in SEPARATORS if separator in value
        }
        return self.model_copy(update={"separator": next((s for s in SEPARATORS if s in occurring), SEPARATORS[-1])})

    def target(self, row: Row, where: str) -> tuple[int, ...]:
        labels = self.labels_in(row, where)
        for label in labels:
            check_label(label, self.labels, where)
        return tuple(int(label in labels) for label in self.labels)

    def score(self, predictions: Sequence[tuple[int, ...]], targets: Sequence[Any], metric: str) -> dict[str, float]:
        """A metric: of probabilities where its constant prediction is the mean of each label.

        Raises:
          NotImplementedError: the metric is of probabilities, and predictions have none: they were saved by name.
        """
        if metrics.find(metric).constant == "means":
            if not all(isinstance(prediction, PredictedLabels) for prediction in predictions):
                raise NotImplementedError(f"{metric} wants probabilities of the labels")
            predictions = [prediction.probabilities for prediction in predictions]
        return super().score(predictions, targets, metric)

    def loss(self, outputs: Sequence[np.ndarray], target: tuple[int, ...]) -> float:
        """Mean over the labels of −log p(label is there, or not)."""
        logits = self.pooled(outputs).astype(np.float64)
        return float(np.logaddexp(0, np.where(np.array(target) > 0, -logits, logits)).mean())

    def named(self, value: tuple[int, ...], row: Row, where: str) -> list[str]:
        """The labels."""
        return list(itertools.compress(self.labels, value))

    def parsed(self, value: list[str]) -> tuple[int, ...]:
        return tuple(int(label in value) for label in self.labels)

    def confusions(self, predictions: Sequence[tuple[int, ...]], targets: Sequence[tuple[int, ...]]) -> list[str]:
        return metrics.label_errors(predictions, targets, self.labels)

    def calibration(self, outputs: Sequence[Sequence[np.ndarray]], targets: Sequence[Any]) -> dict[str, float]:
        """The threshold of each label that has enough rows, as `threshold_<number>`."""
        if self.thresholds is not None:
            return {}
        p = self._probabilities(outputs)
        fitted = [calibration.fit_threshold(*columns) for columns in zip(p.T, np.asarray(targets).T, strict=True)]
        return {f"{_THRESHOLD}{n}": value for n, value in enumerate(fitted) if value is not None}

    def reliability(self, outputs: Sequence[Sequence[np.ndarray]], targets: Sequence[Any]) -> dict[str, Any]:
        """Share of rows with a label against its probability, of all labels together; its error and the threshold of
        each label."""
        p_NxK, is_labelled_NxK = self._probabilities(outputs), np.asarray(targets, bool)
        columns = zip(self.labels, p_NxK.T, is_labelled_NxK.T, strict=True)
        return {
            "bins": [list(bin) for bin in calibration.reliability(p_NxK.ravel(), is_labelled_NxK.ravel(), 10)],
            "errors": {label: calibration.expected_calibration_error(*values) for label, *values in columns},
            "thresholds": dict(zip(self.labels, self.thresholds or (self.threshold,) * self.outputs)),
        }

    def _probabilities(self, outputs: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
        """Of each label in each row: float64 [rows, labels]."""
        return _sigmoid(np.stack([self.pooled(of_row) for of_row in outputs]).astype(np.float64))

    def with_measured(self, metrics: Mapping[str, float]) -> MultiLabelTask:
        """The task with the thresholds of the validation set, where the recipe gives none."""
        last = {name.rpartition("/")[2]: value for name, value in metrics.items()}
        fitted = [last.get(f"{_THRESHOLD}{n}") for n in range(self.outputs)]
        if self.thresholds is not None or not any(value is not None for value in fitted):
            return self
        values = tuple(self.threshold if value is None else float(value) for value in fitted)
        return self.model_copy(update={"thresholds": values})

    def decide_one(self, logits: np.ndarray) -> PredictedLabels:
        return PredictedLabels.above(_sigmoid(logits.astype(np.float64)), self.thresholds or self.threshold)

    def answer_one(self, logits: np.ndarray) -> Answer:
        p = dict(zip(self.labels, _sigmoid(logits).tolist()))
        return {"labels": list(itertools.compress(self.labels, self.decide_one(logits))), "probabilities": p}


def _flag(row: Row, name: str, where: str) -> bool:
    """Whether a row has the label of a column."""
    value = tables.column(row, name, where)
    if (has_label := tables.flag(value)) is not None:
        return has_label
    raise UserError(
        f"{where}: column {name!r} (task.label) expects 1 or 0, true or false, got {shown(value)}; labels by name "
        "stand in one column, such as a|b"
    )


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
