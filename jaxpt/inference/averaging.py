"""Several runs of one task as one model, by the mean of their probabilities, such as
ULMFiT's forward and backward models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data.tasks.base import Answer, LocatedRow, Task
from jaxpt.errors import UserError, listed
from jaxpt.inference.predictor import RunPredictor, check_task
from jaxpt.train import checkpoint
from jaxpt.train.display import say


def predict(
    first: RunPredictor, path: str, others: Sequence[str], rows: Sequence[LocatedRow], overrides: Sequence[str]
) -> list[Answer]:
    """Predicts with several runs together; where rows have labels, says the metrics of each run and of the mean.

    Args:
      first: the first run's predictor.
      path: how the user named that run.
      others: the other runs, as the user named them.
      rows: the rows.
      overrides: `key=value` of each run's configuration.

    Returns:
      The answer to each row.

    Raises:
      UserError: a run does not choose one of the same labels.
    """
    predictors, paths = [first], [path, *others]
    for other in others:
        run_dir, step = checkpoint.find(other)
        config = configs.load(run_dir, overrides)
        check_task(config, run_dir)
        predictors.append(RunPredictor(config, run_dir, step))
    check_runs([predictor.config for predictor in predictors], paths)
    answers_by_run = [list(predictor(rows)) for predictor in predictors]
    means = [mean(answers) for answers in zip(*answers_by_run, strict=True)]
    for name, answers in zip([*paths, f"mean of {len(paths)}"], [*answers_by_run, means], strict=True):
        for metric, score in metrics(first.config.task, rows, answers).items():
            say(f"{name}: {metric} {score:.4f}")
    return means


def check_runs(configurations: Sequence[Config], paths: Sequence[str]) -> None:
    """Raises UserError where a run does not choose one of several labels by their probabilities, or not of the same
    ones as the first.

    Args:
      configurations: of each run.
      paths: how the user named the runs.
    """
    tasks = [config.task for config in configurations]
    for task, config, path in zip(tasks, configurations, paths, strict=True):
        if task.kind != "classification":
            raise UserError(f"--average: is for task.kind: classification; {path} has {task.kind}")
        if getattr(config.objective, "decide_by", None) == "generation":
            wants = "objective.decide_by=likelihood gives them"
            raise UserError(f"--average: {path} writes its labels as text and has no probabilities; {wants}")
        if set(task.shown) != set(tasks[0].shown):
            raise UserError(
                f"--average: {path} has the labels {listed(task.shown, 8)}, {paths[0]} has {listed(tasks[0].shown, 8)}"
            )


def mean(answers: Sequence[dict[str, Any]]) -> Answer:
    """One answer from several: the mean of their probabilities, and the likeliest label.

    Example:
      >>> mean([{"label": "a", "probabilities": {"a": 0.75, "b": 0.25}},
      ...       {"label": "b", "probabilities": {"b": 0.875, "a": 0.125}}])
      {'label': 'b', 'probabilities': {'a': 0.4375, 'b': 0.5625}}
    """
    labels = list(answers[0]["probabilities"])
    means = np.mean([[answer["probabilities"][label] for label in labels] for answer in answers], axis=0)
    return {"label": labels[int(means.argmax())], "probabilities": dict(zip(labels, means.tolist()))}


def metrics(task: Task, rows: Sequence[LocatedRow], answers: Sequence[Answer]) -> dict[str, float]:
    """The task's metrics of answers; {} where a row has no label, or several rows are scored together.

    Args:
      task: of classification.
      rows: the rows.
      answers: to each of them.
    """
    if task.group is not None or any(row.row.values.get(task.label) is None for row in rows):
        return {}
    targets = [task.target(row.row, row.where) for row in rows]
    predictions = [task.shown.index(answer["label"]) for answer in answers]
    return {name: x for metric in task.scored for name, x in task.score(predictions, targets, metric).items()}
