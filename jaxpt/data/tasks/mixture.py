"""Several tasks that one model learns at the same time.

Papers: https://arxiv.org/abs/1901.11504 (a head for each task), https://arxiv.org/abs/1910.10683 (text to text)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from jaxpt import metrics
from jaxpt.config import AnyTask, execution, unaffected
from jaxpt.config.kinds import nearest
from jaxpt.data.tasks.base import Task
from jaxpt.errors import UserError

_OWN = ("metrics", "metric_options", "header", "quoted", "delimiter", "encoding", "comments", "id")
_REFUSED = ("mixture", "dialogue")


class TaskMixture(Task):
    """Several tasks. Their files, and how often each of them comes, are in `data.mixture` under the same names.

    Example:
      >>> tasks = ({"kind": "classification", "name": "sst2"}, {"kind": "regression", "name": "stsb"})
      >>> TaskMixture(tasks=tasks).task_of("stsb").kind
      'regression'
    """

    kind: Literal["mixture"] = "mixture"
    tasks: Annotated[tuple[AnyTask, ...], Field(min_length=2)]
    """The tasks, each with a `name`, which stands before its metrics: `task/sst2/accuracy`."""
    use: Annotated[str | None, unaffected("records", "program")] = execution(None)
    """The task that `jaxpt predict` answers."""

    objective: ClassVar[str] = "mixture"
    default_metrics: ClassVar[tuple[str, ...]] = ("average",)

    @model_validator(mode="after")
    def _consistent(self) -> TaskMixture:
        if key := next((key for key in _OWN if getattr(self, key)), None):
            best = "; checkpoint.best_metric, such as task/NAME/accuracy, chooses the best checkpoint"
            raise ValueError(f"{key}: belongs into the tasks of a mixture{best if key == 'metrics' else ''}")
        for number, task in enumerate(self.tasks):
            if task.name is None:
                raise ValueError(f"tasks: task {number} has no name; data.mixture names its files by it")
            if task.kind in _REFUSED:
                raise ValueError(f"tasks: {task.name}: kind: {task.kind} cannot be part of a mixture")
        if twice := next((name for name in self.task_names if self.task_names.count(name) > 1), None):
            raise ValueError(f"tasks: two have the name {twice!r}; rename one of them")
        if self.use is not None and self.use not in self.task_names:
            raise ValueError(f"use: {self.use!r} is none of the tasks{nearest(self.use, self.task_names)}")
        return self

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks."""
        return [task.name for task in self.tasks]

    def task_of(self, name: str) -> Task:
        """The task of a name."""
        return next(task for task in self.tasks if task.name == name)

    def check_metrics(self) -> None:
        for task in self.tasks:
            task.check_metrics()

    def chosen(self) -> str:
        """The name of the task to use.

        Raises:
          UserError: `use` says none.
        """
        if self.use is None:
            raise UserError(f"task.use is missing: choose one of the model's tasks: {', '.join(self.task_names)}")
        return self.use

    def average(self, measured: Mapping[str, float]) -> dict[str, float]:
        """The mean over the tasks of the mean of each one's metrics, from 0 to 1: GLUE's average.

        Args:
          measured: {"<task>/<value>": value}. Metrics of which low values are better do not count.

        Returns:
          {"average": mean}; {} where a task has no such metric.

        Example:
          >>> tasks = ({"kind": "classification", "name": "sst2"}, {"kind": "regression", "name": "stsb"})
          >>> TaskMixture(tasks=tasks).average({"sst2/accuracy": 0.9, "stsb/pearson": 0.8, "stsb/spearman": 0.6})
          {'average': 0.8}
        """
        if self.without_average():
            return {}
        means = []
        for task in self.tasks:
            scores = [
                metric.percent(measured[f"{task.name}/{metric.selection_value}"]) / 100 for metric in _rising(task)
            ]
            means.append(sum(scores) / len(scores))
        return {"average": sum(means) / len(means)}

    def baseline_names(self) -> dict[str, str]:
        return {f"{task.name}/{value}": name for task in self.tasks for value, name in task.baseline_names().items()}

    def without_average(self) -> str | None:
        """A task without a metric of which high values are better: then there is no average."""
        return next((task.name for task in self.tasks if not _rising(task)), None)


def _rising(task: Any) -> list[metrics.Metric]:
    """The metrics of which high values are better."""
    return [metric for metric in map(metrics.describe, task.scored) if not metric.lower_is_better]
