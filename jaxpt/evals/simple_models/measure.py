"""Fits the simple models of a recipe's task, chooses each one's candidate on the validation rows, and scores it.

Rows, splits, targets and metrics are those of fine-tuning (`jaxpt.data.labelled.examples`, `Task.score`). The last
split of the recipe is the one that counts: its test set, else its validation set, which then chooses as well, as it
does for a fine-tuned model.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpt.config import Config
from jaxpt.config.kinds import nearest
from jaxpt.data.labelled.examples import split_rows
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.errors import UserError
from jaxpt.evals.simple_models import choices, generation, questions, tagging, texts
from jaxpt.evals.simple_models.base import Candidate, SimpleModel, Splits
from jaxpt.evals.task_scores import Selection, all_metrics, constant_baseline, selection
from jaxpt.metrics import jackknife

MODELS: dict[str, tuple[SimpleModel, ...]] = {
    "classification": texts.models("logistic", "svm"),
    "multi_label": texts.models("logistic", "svm"),
    "regression": texts.models("ridge"),
    "tagging": tagging.MODELS,
    "multiple_choice": choices.MODELS,
    "generation": generation.MODELS,
    "text_format": generation.MODELS,
    "question_answering": questions.MODELS,
}
"""Those of each kind of task."""
MAX_ROWS, MAX_CHARACTERS = 100_000, 20_000_000
"""Training rows and characters at most: of more every second, third, … row is taken. A linear model gains little from
the others."""
_SLOW_GROUPS = 10  # of the jackknife, of metrics of a whole corpus of texts, which take a second (BLEU)


@dataclasses.dataclass(frozen=True)
class Score:
    """A simple model with the point of its grid that is best on the validation set."""

    model: str
    setting: str
    features: int
    seconds: float
    """Of features and all fits, predictions included."""
    metrics: dict[str, dict[str, float]]
    """{split: {value: number}}"""
    error: float | None
    """Standard error of the selection value on the last split, over its examples."""
    without: list[float]
    """That value without each group of examples (`jackknife`); [] where it is not known."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The simple models of a task."""

    metric: str
    """The value that chooses."""
    lower_is_better: bool
    unit: str
    rows: dict[str, int]
    """{split: rows}; of the training set those that were used."""
    left_out: int
    """Rows of the training set beyond `MAX_ROWS` or `MAX_CHARACTERS`."""
    constant: dict[str, dict[str, float]]
    """{split: metrics of the best constant prediction}"""
    scores: list[Score]
    """In the order of the models."""
    baseline_names: dict[str, str]
    """{value: name of the constant baseline}, where it is no constant (`Task.baseline_names`)."""

    @property
    def split(self) -> str:
        """The split that counts."""
        return list(self.rows)[-1]

    @property
    def best(self) -> Score:
        """The model that is best on the validation set; the first of equal ones."""
        sign = -1 if self.lower_is_better else 1
        return max(self.scores, key=lambda score: sign * score.metrics["validation"][self.metric])


def offered(config: Config, names: Sequence[str] = ()) -> tuple[SimpleModel, ...]:
    """The simple models of a task, all or some.

    Args:
      config: of one task.
      names: of models; () for all.

    Raises:
      UserError: there are none for this kind of task, or none of this name.
    """
    kind = config.task.kind
    if kind not in MODELS:
        raise UserError(f"task.kind: {kind}: there are no simple models for it; they are for {', '.join(MODELS)}")
    known = {model.name: model for model in MODELS[kind]}
    if unknown := next((name for name in names if name not in known), None):
        raise UserError(f"--models: no model {unknown!r} for task.kind: {kind}{nearest(unknown, list(known))}")
    return tuple(known[name] for name in dict.fromkeys(names or known))


def read_splits(config: Config, last: str | None = None, seed: int = 0) -> tuple[Splits, int]:
    """The rows of a task as fine-tuning reads and scores them, and how many training rows were left out.

    Args:
      config: of one task.
      last: the split that counts, "validation" or "test"; by default "test" where the recipe has one.
      seed: of solvers.

    Raises:
      UserError: a split is empty, or a row is not as it should be.
    """
    task, last = config.task, last or ("test" if config.data.has_test else "validation")
    trained = split_rows(config, "train")
    rows: dict[str, list[LocatedRow]] = {"train": trained}
    targets: dict[str, list[Any]] = {}
    for split in ("validation", "test")[: 1 if last == "validation" else 2]:
        rows[split], targets[split] = task.grouped(split_rows(config, split))
    limit = config.train.eval_examples
    rows["validation"], targets["validation"] = rows["validation"][:limit], targets["validation"][:limit]
    for split, of_split in rows.items():
        if not of_split:
            key = "data.path" if split == "train" else f"data.{split}_path"
            more = " or data.validation_fraction" if split == "validation" else ""
            raise UserError(f"{key}: the {split} split has no rows; give it some by {key}{more}")
    excess = max(len(trained) / MAX_ROWS, characters(task, trained) / MAX_CHARACTERS)
    rows["train"] = trained[:: max(1, math.ceil(excess))]
    targets["train"] = [task.target(row.row, row.where) for row in rows["train"]]
    return Splits(task, rows, targets, seed), len(trained) - len(rows["train"])


def characters(task: Task, rows: Sequence[LocatedRow]) -> int:
    """Of the texts of rows."""
    return sum(len(text) for row in rows for text in task.content(row.row, row.where))


def measure(
    config: Config,
    models: Sequence[SimpleModel],
    splits: Splits,
    left_out: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[Measured, dict[str, Candidate]]:
    """Fits and scores simple models.

    Args:
      config: of one task.
      models: from `offered`.
      splits: from `read_splits`.
      left_out: likewise.
      report: is given the name of each model that is fitted.

    Returns:
      (the scores, {model: its chosen candidate}).

    Raises:
      UserError: a model cannot be fitted: all rows have one label.
    """
    chosen_by = selection(config)
    scores: list[Score] = []
    chosen: dict[str, Candidate] = {}
    for model in models:
        begun, splits.reused_seconds = time.perf_counter(), 0.0
        candidates = _quietly(model, splits)
        seconds = time.perf_counter() - begun + splits.reused_seconds
        chosen[model.name] = best = max(candidates, key=lambda c: chosen_by.key(_metrics(splits, c, "validation")))
        scores.append(_score(model, best, splits, chosen_by, seconds))
        report(model.name)
    task, trained = config.task, splits.rows["train"]
    constants = {s: constant_baseline(task, trained, splits.rows[s], splits.targets[s]) for s in splits.scored}
    counts = {split: len(rows) for split, rows in splits.rows.items()}
    names = task.baseline_names()
    return Measured(*chosen_by, counts, left_out, constants, scores, names), chosen


def _quietly(model: SimpleModel, splits: Splits) -> list[Candidate]:
    """The candidates. Solvers that stop at their last iteration are as good as they are; of products of sparse matrices
    threads make none faster."""
    from threadpoolctl import threadpool_limits  # scikit-learn has it

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        return list(model.candidates(splits))


def _metrics(splits: Splits, candidate: Candidate, split: str) -> dict[str, float]:
    return all_metrics(splits.task, candidate.predictions[split], splits.targets[split])


def _score(model: SimpleModel, best: Candidate, splits: Splits, chosen_by: Selection, seconds: float) -> Score:
    metrics = {split: _metrics(splits, best, split) for split in splits.scored}
    last = splits.scored[-1]
    without = leave_out(splits.task, splits.targets[last], best.predictions[last], chosen_by.value)
    error = None if without is None else jackknife.standard_error(without)
    values = [] if without is None else without.tolist()
    return Score(model.name, best.setting, best.features, round(seconds, 2), metrics, error, values)


def leave_out(task: Task, targets: Sequence[Any], predictions: Sequence[Any], value: str) -> np.ndarray | None:
    """A value without each group of examples, in as many groups for every model; None where these cannot be parted.

    Args:
      task: the task.
      targets: of the examples.
      predictions: likewise.
      value: its name.
    """
    scorer = jackknife.scorer_of(task, value)
    is_slow = scorer is not None and scorer.aggregation != "mean" and scorer.targets == ("text",)
    groups = min(_SLOW_GROUPS if is_slow else jackknife.GROUPS, len(targets))
    if scorer is None or groups < 2 or getattr(task, "group", None) is not None:  # rows that are scored together
        return None
    return jackknife.without_groups(task, targets, predictions, value, groups)
