"""One of several labels for a text or a pair of texts (SST-2, MNLI, MRPC, …)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from jaxpt import metrics
from jaxpt.config import unaffected
from jaxpt.config.kinds import nearest
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.rows import check_label, check_labels, label_of
from jaxpt.data.tasks.base import Answer, LocatedRow, names_of
from jaxpt.data.tasks.texts import TextsTask
from jaxpt.errors import UserError
from jaxpt.metrics import Targets, calibration
from jaxpt.metrics.text_tasks import TASKS


class GroupedLabel(NamedTuple):
    """A target of a metric over groups."""

    label: int
    group: tuple[str, ...]


class ClassificationTask(TextsTask):
    """A task with one label per row.

    Example:
      >>> task = ClassificationTask(text="sentence", labels=("negative", "positive"))
      >>> task.target(Row(2, {"sentence": "A joy.", "label": "positive"}), "line 2")
      1
      >>> task.answer_one(np.array([0.0, 2.0]))["label"]
      'positive'
    """

    kind: Literal["classification"] = "classification"
    labels: tuple[str, ...] | None = None
    """The labels as they stand in the column, in the order of the head's outputs; by default those of the training set,
    numbers by value and words by alphabet. The run saves them."""
    names: tuple[str, ...] | None = None
    """What the labels mean, in the same order (`["negative", "positive"]` for 0 and 1); predictions have these."""

    positive: Annotated[str | None, unaffected("records", "program")] = None
    """The label, or its name, that the metric f1 is of; by default the second of two."""
    group: str | tuple[str, ...] | None = None
    """Column, or columns, of the rows that are scored together: the answers to one question of MultiRC."""
    split_by: Literal["text", "group"] | None = None
    """What stays in one split where rows are held out: rows of the same text, or of the same `group`; by default the
    latter where `group` is given. The run saves it; without it, as in older runs, it is the text."""

    temperature: Annotated[float | None, Field(gt=0), unaffected("records", "program")] = None
    """Outputs are divided by it before they are probabilities; by default it is fitted on the validation set, where
    that has 50 rows. The run saves it with its metrics. It changes no label."""

    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    metric_targets: ClassVar[Targets | None] = "label"
    grouped_metrics: ClassVar[tuple[str, ...]] = ("multirc", "axg")

    @model_validator(mode="after")
    def _consistent(self) -> ClassificationTask:
        check_labels(self.labels)
        if self.names is not None and len(self.names) != (count := len(self.labels or ())):
            raise ValueError(f"names: wants one for each of labels, {count}, got {len(self.names)}")
        if self.split_by == "group" and self.group is None:
            raise ValueError("split_by: group: wants group, the column of the rows that stay together")
        return self

    target_dtype: ClassVar[type] = np.int32

    @property
    def shown(self) -> tuple[str, ...]:
        """Names of the labels."""
        return self.names or self.labels or ()

    def check_metrics(self) -> None:
        super().check_metrics()
        if self.group is None and (metric := next((m for m in self.scored if m in self.grouped_metrics), None)):
            raise UserError(f"task.metrics: {metric}: wants task.group, the column of what is scored together")
        if self.positive is not None and "f1" not in self.scored:
            raise UserError("task.positive: only the metric f1 is of one label; add it to task.metrics")
        if self.labels is not None:
            self._check_positive(self.labels)

    def _check_positive(self, labels: Sequence[str]) -> None:
        """Raises UserError where a metric of one label does not know which."""
        if self.positive is not None and self.positive not in (*labels, *self.shown):
            known = nearest(self.positive, list(labels))
            raise UserError(f"task.positive: {self.positive!r} is none of task.labels{known}")
        of_one = {"f1": self.positive is None, "multirc": True}
        if len(labels) > 2 and (metric := next((m for m in self.scored if of_one.get(m)), None)):
            named = ", ".join(self.shown)
            how = "take macro_f1, micro_f1 or weighted_f1, or name the label with task.positive"
            raise UserError(
                f"task.metrics: {metric}: is of one of two labels, task.labels has {len(labels)}: {named}; "
                + (how if metric == "f1" else "wants two")
            )

    @property
    def _positive(self) -> int:
        """The index of the label that f1 is of."""
        if self.positive is None:
            return 1
        return self.labels.index(self.positive) if self.positive in self.labels else self.shown.index(self.positive)

    def options(self, metric: str) -> dict[str, Any]:
        if metric == "f1":
            return {"labels": range(self.outputs), "positive": self._positive}
        return {"labels": range(self.outputs)} if metric in ("cb", "multirc") else super().options(metric)

    def computed(self, metric: str, targets: Sequence[Any]) -> str | None:
        if metric in ("f1", "multirc"):
            return f"of the label {self.shown[self._positive if metric == 'f1' else 1]}"
        return "means over the labels that occur" if metric == "macro_f1" else None

    def grouped(self, rows: Sequence[LocatedRow]) -> tuple[list[LocatedRow], list[Any]]:
        """The rows that are scored, and the target of each; with `group` a `GroupedLabel`."""
        rows, targets = super().grouped(rows)
        if self.group is None:
            return rows, targets
        groups = (self._group_of(row.row, row.where) for row in rows)
        return rows, [GroupedLabel(target, group) for target, group in zip(targets, groups, strict=True)]

    def row_target(self, target: GroupedLabel | int) -> int:
        return target.label if isinstance(target, GroupedLabel) else target

    def _group_of(self, row: Row, where: str) -> tuple[str, ...]:
        return tuple(tables.label(tables.column(row, name, where)) for name in names_of(self.group))

    def held_out_by(self, row: Row, where: str) -> tuple[str, ...]:
        """The row's text, or its group."""
        return self._group_of(row, where) if self.split_by == "group" else super().held_out_by(row, where)

    def score(self, predictions: Sequence[int], targets: Sequence[Any], metric: str) -> dict[str, float]:
        labels, options = self._labels_and_options(targets, metric)
        return metrics.score(metric, predictions, labels, **options)

    def majority(
        self, metric: str, trained: Sequence[LocatedRow], rows: Sequence[LocatedRow], targets: Sequence[Any]
    ) -> dict[str, float] | None:
        labels, options = self._labels_and_options(targets, metric)
        return metrics.majority(metric, [self.target(row.row, row.where) for row in trained], labels, **options)

    def _labels_and_options(self, targets: Sequence[Any], metric: str) -> tuple[list[int], dict[str, Any]]:
        """Labels, and the options of a metric: the groups of one that wants them."""
        options = self.options(metric)
        if self.group is None:
            return list(targets), options
        if metric in self.grouped_metrics:
            options["groups"] = [target.group for target in targets]
        return [target.label for target in targets], options

    def labels_in(self, row: Row, where: str) -> list[str]:
        """The labels of a row."""
        return [label_of(row, self.label, where)]

    def stratum(self, row: Row, where: str) -> str:
        """The label of the row; all groups are one stratum, as a group may have several labels."""
        return "" if self.split_by == "group" else label_of(row, self.label, where)

    def target(self, row: Row, where: str) -> int:
        label = label_of(row, self.label, where)
        check_label(label, self.labels, where)
        return self.labels.index(label)

    def loss(self, outputs: Sequence[np.ndarray], target: int) -> float:
        """−log softmax(outputs)[label]."""
        return float(metrics.negative_log_softmax(self.pooled(outputs))[target])

    def named(self, value: int, row: Row, where: str) -> str | None:
        """The name of a label; None of text that is no label's word."""
        return None if value < 0 else self.shown[value]

    def parsed(self, value: str | None) -> int:
        if self.group is not None:
            raise NotImplementedError("the group of a row is not named")
        return -1 if value is None else self.shown.index(value)

    def confusions(self, predictions: Sequence[int], targets: Sequence[int]) -> list[str]:
        return metrics.confusions(predictions, targets, self.shown)

    @property
    def words(self) -> tuple[str, ...]:
        """The labels as generated text: their names; T5's words for the numbers of a task that its code knows."""
        known = TASKS[self.name].labels if self.name in TASKS else ()
        are_numbers = self.labels == tuple(str(n) for n in range(len(known)))
        return known if self.names is None and known and are_numbers else self.shown

    def target_text(self, row: Row, where: str) -> str:
        return self.words[self.target(row, where)]

    def parse(self, text: str, row: Row, where: str) -> int:
        """The index of a label's word; −1, which is never right, of any other text."""
        return self.words.index(text) if text in self.words else -1

    def answer_text(self, text: str, row: Row, where: str) -> Answer:
        """The text, and its label; None if it is no label's word."""
        index = self.parse(text, row, where)
        return {"text": text, "label": None if index < 0 else self.shown[index]}

    def candidates(self) -> tuple[str, ...]:
        return self.words

    def decide_one(self, logits: np.ndarray) -> int:
        return int(logits.argmax())

    def calibration(self, outputs: Sequence[Sequence[np.ndarray]], targets: Sequence[Any]) -> dict[str, float]:
        """Temperature, and the expected calibration error with it and without."""
        if len(targets) < calibration.MIN_ROWS:
            return {}
        logits = np.stack([self.pooled(of_row) for of_row in outputs]).astype(np.float64)
        labels = [self.row_target(target) for target in targets]
        temperature = self.temperature or calibration.fit_temperature(logits, labels)
        is_correct = logits.argmax(-1) == np.asarray(labels)
        errors = {
            name: calibration.expected_calibration_error(_softmax(logits / divisor).max(-1), is_correct)
            for name, divisor in (("calibration_error", temperature), ("calibration_error_raw", 1.0))
        }
        return {"temperature": temperature, **errors}

    def with_measured(self, metrics: Mapping[str, float]) -> ClassificationTask:
        """The task with the temperature of the validation set, where the recipe gives none."""
        fitted = next((value for name, value in metrics.items() if name.rpartition("/")[2] == "temperature"), None)
        if self.temperature is not None or fitted is None:
            return self
        return self.model_copy(update={"temperature": float(fitted)})

    def confidence(self, outputs: Sequence[np.ndarray]) -> float:
        return float(_softmax(self.pooled(outputs).astype(np.float64) / (self.temperature or 1.0)).max())

    def answer_one(self, logits: np.ndarray) -> Answer:
        p = _softmax(logits / (self.temperature or 1.0)).tolist()
        return {"label": self.shown[self.decide_one(logits)], "probabilities": dict(zip(self.shown, p))}


def _softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(-metrics.negative_log_softmax(logits))
