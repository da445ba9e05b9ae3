"""A task's metrics on the validation or test set, beside those of the best constant prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jaxpt.config import Config
from jaxpt.evals.base import Evaluate, Evaluator, Result
from jaxpt.heads import features
from jaxpt.tasks.base import LocatedRow
from jaxpt.train import predictors
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.datasets import Data


class TaskMetrics(Evaluator):
    """The task's metrics; the first of them chooses the best checkpoint."""

    kind: Literal["task"] = "task"
    split: Literal["validation", "test"] = "validation"
    """Which rows are scored."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        from jaxpt.data.labelled import examples

        config = setup.config
        rows, targets = config.task.grouped(examples.split_rows(config, self.split))
        found = examples.examples(config, data.tokenizer, rows)
        majority = constant(config, examples.split_rows(config, "train"), rows, targets)
        predictor = predictors.build(setup, data.tokenizer)
        predictor.compile(found.records)

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            config = with_measured(setup.config, earlier)
            outputs = predictor(params, found.records, stop)
            if outputs is None:
                return None
            predictions = [
                config.objective.decide(of_row, row.row, row.where)
                for of_row, row in zip(examples.by_row(found, outputs), found.rows)
            ]
            metrics = measured(config, predictions, targets)
            shown = lines(self.called, metrics, majority) + features.report_lines(params)
            return Result(metrics, tuple(shown))

        return evaluate


def with_measured(config: Config, metrics: Mapping[str, float]) -> Config:
    """The configuration whose task has what is chosen on the validation set (`Task.with_measured`)."""
    task = config.task.with_measured(metrics)
    objective = config.objective.model_copy(update={"task": task})
    return config.model_copy(update={"task": task, "objective": objective})


def measured(config: Config, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
    """All metrics of a task: {name: value}."""
    return {
        name: value
        for metric in config.task.scored
        for name, value in config.task.score(predictions, targets, metric).items()
    }


def constant(
    config: Config, trained: Sequence[LocatedRow], rows: Sequence[LocatedRow], targets: Sequence[Any]
) -> dict[str, float]:
    """The metrics of the best constant prediction from the training set: {name: value}."""
    found: dict[str, float] = {}
    for metric in config.task.scored:
        found |= config.task.majority(metric, trained, rows, targets) or {}
    return found


def lines(name: str, metrics: Mapping[str, float], majority: Mapping[str, float]) -> list[str]:
    """What the user is shown."""
    shown = (
        f"{metric} {value:.4f}" + (f" (constant {majority[metric]:.4f})" if metric in majority else "")
        for metric, value in metrics.items()
    )
    return [f"{name}: {'  '.join(shown)}"]
