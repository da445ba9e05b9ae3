"""Results of a task, for people and for files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxpt.evals.few_shot import measures
from jaxpt.evals.few_shot.measures import SampleResult, Value
from jaxpt.evals.few_shot.task import HarnessTask


@dataclasses.dataclass(frozen=True)
class Result:
    """The metrics of a task."""

    task: HarnessTask
    shots: int
    examples: int
    metrics: Mapping[str, Value]
    baselines: Mapping[str, Mapping[str, Value]]
    groups: Mapping[str, Value]
    """Accuracy of each group, of a task with groups that are few."""
    computed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{metric: how it is computed}, where its name does not say all."""

    def plain(self) -> dict[str, Any]:
        """As JSON."""

        def as_json(metrics: Mapping[str, Value]) -> dict[str, Any]:
            return {
                name: {"value": estimate.value, "standard_error": estimate.error, "unit": estimate.unit}
                for name, estimate in metrics.items()
            }

        return {
            "task": self.task.name, "shots": self.shots, "examples": self.examples, "metrics": as_json(self.metrics),
            "baselines": {name: as_json(metrics) for name, metrics in self.baselines.items()},
            "groups": as_json(self.groups), "computed": dict(self.computed), "settings": settings(self.task),
        }  # fmt: skip


def settings(task: HarnessTask) -> dict[str, Any]:
    """The keys of a task that are not the defaults, as JSON."""
    return task.model_dump(mode="json", exclude_defaults=True, exclude={"source"})


def result(
    task: HarnessTask,
    shots: int,
    outcomes: Sequence[SampleResult],
    baselines: Mapping[str, Mapping[str, Value]],
) -> Result:
    """The result of a task from its outcomes.

    Args:
      task: the task.
      shots: examples shown before each.
      outcomes: at least one.
      baselines: of `baselines.baselines`.
    """
    has_groups = task.form == "pair" and task.group is not None
    return Result(
        task, shots, len(outcomes), measures.measure(task, outcomes), baselines,
        measures.by_group(outcomes) if has_groups else {}, measures.computed(task, outcomes),
    )  # fmt: skip


def table(results: Sequence[Result]) -> Any:
    """A `rich` table of results: a row for each metric, the baselines beside it."""
    from rich.table import Table

    names = list(dict.fromkeys(name for entry in results for name in entry.baselines))
    rich_table = Table()
    for name in ("task", "shots", "n", "metric", "value", *names):
        rich_table.add_column(name, no_wrap=True)
    for entry in results:
        for number, (metric, value) in enumerate(entry.metrics.items()):
            head = (entry.task.name, str(entry.shots), f"{entry.examples:,}") if number == 0 else ("", "", "")
            beside = [
                str(entry.baselines[name][metric]) if metric in entry.baselines.get(name, {}) else "" for name in names
            ]
            rich_table.add_row(*head, metric, str(value), *beside)
    return rich_table
