"""All metrics of a task at once, and the one by which models are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxpt.config import Config
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.metrics import describe
from jaxpt.metrics.base import Unit
from jaxpt.metrics.jackknife import scorer_of


class Selection(NamedTuple):
    """The value that chooses among models."""

    value: str
    """Its name, such as "accuracy"."""
    lower_is_better: bool
    unit: Unit

    def key(self, metrics: dict[str, float]) -> float:
        """What is larger for a better model."""
        return -metrics[self.value] if self.lower_is_better else metrics[self.value]


def selection(config: Config) -> Selection:
    """The value of `checkpoint.best_metric`; where that is none of the task's, that of its first metric.

    Args:
      config: of one task.
    """
    named = config.checkpoint.best_metric.rpartition("/")[2]
    metric = scorer_of(config.task, named) or describe(config.task.scored[0])
    value = named if named in metric.values else metric.selection_value
    return Selection(value, metric.lower_is_better, metric.unit)


def all_metrics(task: Task, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
    """All metrics of a task: {name: value}.

    Args:
      task: the task.
      predictions: of each row.
      targets: likewise.
    """
    return {name: x for metric in task.scored for name, x in task.score(predictions, targets, metric).items()}


def constant_baseline(
    task: Task, trained: Sequence[LocatedRow], rows: Sequence[LocatedRow], targets: Sequence[Any]
) -> dict[str, float]:
    """The metrics of the best constant prediction of the training set: {name: value}; see `Task.majority`.

    Args:
      task: the task.
      trained: the rows of the training set.
      rows: those that are scored.
      targets: their targets.
    """
    majorities = (task.majority(metric, trained, rows, targets) for metric in task.scored)
    return {name: x for metrics in majorities for name, x in (metrics or {}).items()}
