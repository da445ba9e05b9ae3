"""The tables of a study's fine-tunings: test metrics over seeds, and what pretraining or a strategy changes.

    difference    mean over the seeds of (one run − the other run of the same seed)
    s.e.          √(s.e. over seeds² + s.e. over test examples²)

The first is the standard deviation of the differences by √seeds; the second a jackknife over groups of test examples of
the difference of the means over seeds, which holds for any metric. Where one of them is not known, the sum is not.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt import config as configs
from jaxpt.config.finetunings import SIMPLE, Cell, cells, points, ways
from jaxpt.config.kinds import is_unread
from jaxpt.config.studies import Study
from jaxpt.data.tasks.base import Task
from jaxpt.errors import UserError
from jaxpt.metrics import describe
from jaxpt.metrics.base import Unit, in_percent
from jaxpt.metrics.jackknife import GROUPS, scorer_of, standard_error, without_groups
from jaxpt.study import finetunings
from jaxpt.study.charts import Table
from jaxpt.train.run_dir import receipt

_File = tuple[str, str, int]
NOTE = """\
- Each cell: the mean of the test metric over the seeds ± its standard deviation, in percent (squared errors as they
  are); in brackets the median and the best seed, and the number of seeds. The best checkpoint of each run and the point
  of the grid are chosen on the
  validation set, the point with the first seed alone. **n of m points**: the others failed or are still to be run,
  and this search is smaller than those that it is compared with. **(validation)**: there is no test set; scores of
  the rows that have chosen are too good.
- **constant baseline**: one prediction for all, the best of the training set: the most frequent label; of tags no
  constant, but the most-frequent-tag baseline. **simple**: a model of `jaxpt baseline`, such as a linear one on counts
  of words. A model that is not better by two standard errors has learnt nothing that shows beside it.
- **difference**: between runs of the same seed, with its standard error over seeds and test examples together; **t** is
  their ratio. Above 2 it is hardly chance, where the examples' part is the larger one: three seeds tell theirs roughly.
  Of two models it is a difference of these two: each was pretrained once, with one seed.
- **average**: the mean over the tasks, as in GLUE's table: of a task with several metrics the mean of one value of
  each, that which would choose the best checkpoint."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """The finished runs of a cell."""

    row: str
    task: str
    start: str
    strategy: str
    metric: str
    point: tuple[str, ...] | None
    """What of the grid was best on the validation set."""
    by_seed: Mapping[int, float]
    """Test metric of each seed."""
    others: Mapping[str, float]
    """Means of one value of each of the other metrics of which high values are better, in percent."""
    unit: Unit
    """Of the stored values."""
    constant: Mapping[str, float]
    """Test metrics of a constant prediction, chosen on the training set."""
    searched: int = 0
    """Points of the grid that were tried to the end."""
    points: int = 0
    """All of them; 0 in a table that was written before this was counted."""
    lower_is_better: bool = False
    over_seeds: float | None = None
    """Standard error of the mean over the seeds; None with one seed."""
    over_examples: float | None = None
    """Its standard error over test examples; None where predictions cannot be scored again."""
    split: str = "test"
    """Which was scored: the validation set where there is no test set."""

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Scores:
        """The scores of a cell of table.json, also of one that was written before metrics had units."""
        fields = dict(fields)
        if "in_percent" in fields:
            unit = "percent" if fields.pop("in_percent") else "fraction"
            others = {name: in_percent(value, unit) for name, value in fields["others"].items()}
            fields |= {"unit": unit, "others": others, "lower_is_better": fields.pop("falls", False)}
        return cls(**fields)

    def percent(self, value: float) -> float:
        """A value of the metric as tables print it."""
        return in_percent(value, self.unit)

    @property
    def average(self) -> float | None:
        """The mean over seeds and metrics in percent, as GLUE counts a task."""
        if not self.by_seed or self.lower_is_better:
            return None
        return statistics.fmean([self.percent(statistics.fmean(self.by_seed.values())), *self.others.values()])

    @property
    def error(self) -> float | None:
        """Standard error of the mean, over seeds and examples; None if one of them is not known."""
        return _hypot(self.over_seeds, self.over_examples)


@dataclasses.dataclass(frozen=True)
class Difference:
    """A cell's runs minus those of another one, of the same seeds."""

    mean: float
    over_seeds: float | None
    """Standard error; None with one seed."""
    over_examples: float | None
    """Standard error; None where predictions cannot be scored again."""

    @property
    def error(self) -> float | None:
        """Of both; None if one of them is not known."""
        return _hypot(self.over_seeds, self.over_examples)


def _hypot(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else math.hypot(first, second)


def _over_seeds(values: Sequence[float]) -> float | None:
    """Standard error of a mean over seeds; None of one seed, and where a seed diverged."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def scores(study: Study, cell: Cell) -> Scores:
    """What the finished runs of a cell reached on the test set; on the validation set where there is none.

    Args:
      study: with `evaluate.finetune`.
      cell: which.
    """
    runs, best = finetunings.run_dirs(study, cell), finetunings.best_point(study, cell)
    metrics_by_seed = {seed: _metrics(run_dir) for seed, run_dir in runs.items()}
    receipts = [receipt(run_dir) for run_dir in runs.values()]
    constant = next(
        (run_receipt.get("test_constant") or run_receipt.get("task_constant") for run_receipt in receipts), None
    )
    task = _task_of(next(iter(runs.values()))) if runs else None
    metric = cell.task.metric or ("" if task is None else describe(task.scored[0]).selection_value)
    scorer = None if task is None else scorer_of(task, metric)
    if metric and metrics_by_seed and not any(metric in metrics for metrics in metrics_by_seed.values()):
        has = ", ".join(next(iter(metrics_by_seed.values()))) or "none"
        raise UserError(
            f"evaluate.finetune.tasks: {cell.task.name}: metric: no {metric!r} was measured; there is {has}"
        )
    by_seed = {seed: metrics[metric] for seed, metrics in metrics_by_seed.items() if metric in metrics}
    return Scores(
        *cell.name.split("/"),
        metric=metric,
        point=None if best is None else points(study.evaluate.finetune, cell)[best],
        searched=len(finetunings.searched(study, cell)),
        points=len(points(study.evaluate.finetune, cell)),
        by_seed=by_seed,
        others={} if task is None else others(task, metric, list(metrics_by_seed.values())),
        unit=scorer.unit if scorer else "fraction",
        constant=constant or {},
        lower_is_better=scorer is not None and scorer.lower_is_better,
        over_seeds=_over_seeds(list(by_seed.values())),
        over_examples=_over_examples(metric, [_file_of(runs[seed]) for seed in by_seed]),
        split="test" if all(receipt(runs[seed]).get("test") for seed in by_seed) else "validation",
    )


def _task_of(run_dir: Path) -> Task | None:
    """None also where the code of the task is not run here."""
    task = configs.load(run_dir).task
    return None if is_unread(task) else task


def others(task: Task, metric: str, runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """A value of each other metric of a task of which high values are better: the mean over runs, in percent."""
    means, scorer = {}, scorer_of(task, metric)
    for other in map(describe, task.scored):
        name = other.selection_value
        if other != scorer and not other.lower_is_better and all(name in metrics for metrics in runs):
            means[name] = other.percent(statistics.fmean(metrics[name] for metrics in runs))
    return means


def _metrics(run_dir: Path) -> dict[str, float]:
    known = receipt(run_dir)
    return known.get("test") or known.get("best") or known.get("task") or {}


def head(task: str, of_task: Sequence[Scores]) -> str:
    """The head of a task's column: its name and metric, and whether the scores are of the validation set.

    Args:
      task: the name.
      of_task: the scores in the column.
    """
    metric = next((cell_scores.metric for cell_scores in of_task if cell_scores.metric), "")
    is_validation = any(cell_scores.split == "validation" for cell_scores in of_task)
    return f"{task}, {metric}".removesuffix(", ") + (" (validation)" if is_validation else "")


def difference(study: Study, cell: Cell, other: Cell) -> Difference | None:
    """What a cell's runs have more than those of another one.

    Args:
      study: with `evaluate.finetune`.
      cell: which.
      other: of the same task.

    Returns:
      None while no seed of both is finished.
    """
    first, second = scores(study, cell), scores(study, other)
    seeds = sorted(first.by_seed.keys() & second.by_seed.keys())
    if not seeds:
        return None
    by_seed = [first.by_seed[seed] - second.by_seed[seed] for seed in seeds]
    files = [[_file_of(finetunings.run_dirs(study, compared)[seed]) for seed in seeds] for compared in (cell, other)]
    return Difference(statistics.fmean(by_seed), _over_seeds(by_seed), _over_examples(first.metric, *files))


def _file_of(run_dir: Path) -> tuple[str, str, int]:
    """(run_dir, its predictions of the test set, else of the validation set, when they were written)."""
    files = [run_dir / "evaluations" / f"predictions_{split}.jsonl" for split in ("test", "validation")]
    file = next((path for path in files if path.is_file()), files[0])
    return str(run_dir), str(file), file.stat().st_mtime_ns if file.is_file() else 0


def _over_examples(metric: str, *sides: Sequence[_File]) -> float | None:
    """Standard error of a group's mean, or of the difference of two groups, over their test examples: a jackknife."""
    runs = [[_without_each_group(run, metric) for run in side] for side in sides]
    known = [run for side in runs for run in side if run is not None]
    if not known or len(known) < sum(map(len, sides)) or len({ids for ids, _ in known}) > 1:  # or other test sets
        return None
    first, *others = [np.mean([values for _, values in side], 0) for side in runs]
    return standard_error(first - sum(others))


@functools.lru_cache(1024)  # a run is compared in several differences, and a table written after each cell
def _without_each_group(run: _File, metric: str) -> tuple[tuple[str, ...], np.ndarray] | None:
    """(ids of the test examples, `without_groups` of a run); None where its predictions cannot be scored again."""
    run_dir, file, _ = run
    task = _task_of(Path(run_dir))
    if task is None or task.kind == "mixture" or scorer_of(task, metric) is None:
        return None
    try:
        ids, targets, predictions = _predictions(Path(file), task)
        groups = min(GROUPS, len(ids))
        return None if groups < 2 else (tuple(ids), without_groups(task, targets, predictions, metric, groups))
    except (NotImplementedError, OSError):
        return None


def _predictions(file: Path, task: Task) -> tuple[list[Any], list[Any], list[Any]]:
    """(ids, targets, predictions) of a file."""
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]  # text has other ends of lines
    named = [[task.parsed(row[name]) for row in rows] for name in ("target", "prediction")]
    return [str(row.get("id")) for row in rows], *named


# ---- tables ---------------------------------------------------------------------------------------------------------


def as_json(study: Study) -> list[dict[str, Any]]:
    """The cells with their scores, for table.json.

    Args:
      study: with `evaluate.finetune`.
    """
    return [dataclasses.asdict(scores(study, cell)) for cell in cells(study)]


def tables(study: Study) -> list[Table]:
    """The scores of all cells, and below them what pretraining or a strategy changes, where something is compared.

    Args:
      study: with `evaluate.finetune`.
    """
    tuned = study.evaluate.finetune
    scores_by_cell = {cell.name: scores(study, cell) for cell in cells(study)}
    of_tasks = [[cell_scores for cell_scores in scores_by_cell.values() if cell_scores.task == task.name]
                for task in tuned.tasks]  # fmt: skip
    many = len(tuned.strategies) > 1
    constants = [_constant(of_task) for of_task in of_tasks]
    heads = ["model", "weights", *["strategy"] * many]
    numeric = range(len(heads), len(heads) + len(tuned.tasks) + 1)
    heads += [head(task.name, of_task) for task, of_task in zip(tuned.tasks, of_tasks)] + ["average"]
    rows = [("constant baseline", *[""] * (1 + many), *constants, "")] if any(constants) else []
    for row in study.tuned_rows:
        for start, strategy in ways(tuned, row):
            row_scores = [scores_by_cell[Cell(row, task, start, strategy).name] for task in tuned.tasks]
            averages = [cell_scores.average for cell_scores in row_scores]
            known = None not in averages and len(row_scores) > 1
            average = f"{statistics.fmean(averages):.1f}" if known else ""
            way = (f"simple: {row.simple_model}", *[""] * many) if start == SIMPLE else (start, *[strategy.name] * many)
            rows.append((row.name, *way, *map(_scored, row_scores), average))
    study_tables = [Table("Fine-tuned", tuple(heads), tuple(numeric), tuple(rows))]
    if pairs := _pairs(study):
        below = ("model", "task", "difference", "by", "± s.e.", "seeds", "examples", "t")
        compared = tuple(line for pair in pairs if (line := _compared(study, *pair)))
        study_tables.append(Table("Differences", below, (3, 4, 5, 6, 7), compared))
    return study_tables


def markdown(study: Study) -> str:
    """The tables that have rows, and below them what they mean.

    Args:
      study: with `evaluate.finetune`.
    """
    shown = [study_table.markdown() for study_table in tables(study) if study_table.rows]
    return "\n\n".join(["## Fine-tuned", *shown, f"{NOTE}\n"])


def _constant(of_task: Sequence[Scores]) -> str:
    known = (
        cell_scores.percent(cell_scores.constant[cell_scores.metric])
        for cell_scores in of_task
        if cell_scores.metric in cell_scores.constant
    )
    return next((f"{value:.1f}" for value in known), "")


def _scored(cell_scores: Scores) -> str:
    of_seeds = [cell_scores.percent(value) for value in cell_scores.by_seed.values()]
    if not of_seeds:
        return ""
    is_spread = len(of_seeds) > 1 and all(map(math.isfinite, of_seeds))
    spread = f" ± {statistics.stdev(of_seeds):.1f}" if is_spread else ""
    best = min(of_seeds) if cell_scores.lower_is_better else max(of_seeds)
    details = f"{statistics.median(of_seeds):.1f}, {best:.1f}; {len(of_seeds)}"
    if cell_scores.searched < cell_scores.points:
        details += f"; {cell_scores.searched} of {cell_scores.points} points"
    return f"{statistics.fmean(of_seeds):.1f}{spread} ({details})"


def _pairs(study: Study) -> list[tuple[Cell, Cell, str]]:
    """What is compared: pretrained with random weights, each strategy with the first; without these models; and models
    with each simple one."""
    tuned, pairs = study.evaluate.finetune, []
    simple = [row for row in study.tuned_rows if row.simple_model is not None]
    models = [row for row in study.tuned_rows if row.simple_model is None]
    first, base = tuned.strategies[0], next(iter(models), None)
    of_models = len(tuned.starts) == len(tuned.strategies) == 1
    for cell in (cell for cell in cells(study) if cell.start != SIMPLE):
        if cell.start == "pretrained" and "random" in tuned.starts:
            pairs.append((cell, cell._replace(start="random"), "pretrained − random"))
        if cell.strategy != first and cell.start == tuned.starts[0]:
            pairs.append((cell, cell._replace(strategy=first), f"{cell.strategy.name} − {first.name}"))
        if of_models and cell.row != base:
            pairs.append((cell, cell._replace(row=base), f"{cell.row.name} − {base.name}"))
        if cell.start == tuned.starts[0] and cell.strategy == first:
            pairs += [(cell, cell._replace(row=row, start=SIMPLE), f"{cell.row.name} − {row.name}") for row in simple]
    return pairs


def _compared(study: Study, cell: Cell, other: Cell, comparison: str) -> tuple[str, ...] | None:
    delta = difference(study, cell, other)
    if delta is None:
        return None
    percent = scores(study, cell).percent
    if comparison.startswith("pretrained") and len(study.evaluate.finetune.strategies) > 1:
        comparison = f"{comparison} ({cell.strategy.name})"
    numbers = [delta.mean, delta.error, delta.over_seeds, delta.over_examples]
    columns = ["" if value is None else f"{percent(value):.1f}" for value in numbers]
    columns[0] = f"{percent(delta.mean):+.1f}"
    t = f"{delta.mean / delta.error:.1f}" if delta.error else ""
    return (cell.row.name, cell.task.name, comparison, *columns, t)
