"""A study in one table and one picture: what each model cost in pretraining, and its score on each task.

    score    mean over the seeds ± √(s.e. over seeds² + s.e. over test examples²)

Rows stand in the order of the study's file.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt.config.finetunings import SIMPLE, Cell
from jaxpt.config.studies import Study, StudyRow
from jaxpt.study import curves, finetuned
from jaxpt.study.charts import Dots, Row, Table
from jaxpt.study.finetuned import Scores
from jaxpt.train.display import duration, number
from jaxpt.train.run_dir import receipt, records

TITLE = "Cost and scores"
NOTE = """\
- **tokens**, **steps**, **FLOPs** and **in steps** are of pretraining, with the rows that a model begins from; **in
  steps** is the time of the steps alone. **wall time** has preparing data, compiling, evaluations and checkpoints too.
  A row from whose earlier checkpoint a model begins counts up to there, with this share of its wall time.
  A simple model and one that was there already have none.{glove}
- Scores: the mean of the test metric over the seeds ± its standard error over seeds and test examples, in percent."""
_GLOVE = """ GloVe reads pairs of words, not text, and multiplies no
  matrices: its tokens and FLOPs are not counted."""


def table(study: Study) -> Table:
    """A line for each model: its cost and, of the first strategy and start, its scores.

    Args:
      study: with `evaluate.finetune`.
    """
    tasks = study.evaluate.finetune.tasks
    heads = ("model", "parameters", "tokens", "steps", "FLOPs", "in steps", "wall time")
    cells = {row.name: [finetuned.scores(study, _cell(study, row, n)) for n in range(len(tasks))]
             for row in study.tuned_rows}  # fmt: skip
    heads += tuple(finetuned.head(task.name, [row[n] for row in cells.values()]) for n, task in enumerate(tasks))
    rows = [(row.name, *_cost(study, row), *map(_score, cells[row.name])) for row in study.tuned_rows]
    return Table(TITLE, heads, tuple(range(1, len(heads))), tuple(rows))


def note(has_glove: bool) -> str:
    """What the columns mean, as a list in Markdown; `has_glove`: of one of the rows, too."""
    return NOTE.format(glove=_GLOVE * has_glove)


def markdown(study: Study, has_glove: bool) -> str:
    """The table, and below it what it means.

    Args:
      study: with `evaluate.finetune`.
      has_glove: as of `note`.
    """
    return f"## {TITLE}\n\n{table(study).markdown()}\n\n{note(has_glove)}\n"


def _cell(study: Study, row: StudyRow, task: int) -> Cell:
    tuned = study.evaluate.finetune
    start = SIMPLE if row.simple_model is not None else tuned.starts[0]
    return Cell(row, tuned.tasks[task], start, tuned.strategies[0])


def _score(scores: Scores) -> str:
    if not scores.by_seed:
        return ""
    error = "" if scores.error is None else f" ± {scores.percent(scores.error):.1f}"
    return f"{scores.percent(statistics.fmean(scores.by_seed.values())):.1f}{error}"


def _cost(study: Study, row: StudyRow) -> tuple[str, ...]:
    """Parameters, tokens, steps, FLOPs, time of the steps and wall time."""
    steps_taken = {row.name: None} | study.ancestors(row) if row.is_trained else {}
    run = receipt(Path(study.run_dir) / row.name) if row.is_trained else {}
    if not run:
        return ("",) * 6
    lines, wall = [], 0.0
    for run_dir, step in ((Path(study.run_dir) / name, step) for name, step in steps_taken.items()):
        of_run = records(run_dir)[0]
        lines.append(_until(of_run, step))
        seconds = curves.train_seconds(of_run)
        share = curves.train_seconds(lines[-1]) / seconds if seconds else 1.0
        wall += share * receipt(run_dir).get("wall_seconds", 0.0)
    last = [list(curves.cumulated(of_run))[-1] for of_run in lines if of_run]
    steps, tokens, flops = sum(map(_steps, lines)), sum(x[1] for x in last), sum(x[2] for x in last)
    return (
        f"{run['parameters']:,}", number(tokens) if tokens else "", f"{steps:,}", number(flops) if flops else "",
        duration(sum(map(curves.train_seconds, lines))), duration(wall),
    )  # fmt: skip


def _until(records: Sequence[Mapping[str, Any]], step: int | None) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl up to the step of a checkpoint, the last one with the speed up to there.

    Args:
      records: the lines.
      step: None for all lines.
    """
    before = [record for record in records if step is None or record["step"] <= step]
    if step is None or not before:
        return before
    after = (record for record in records if record["step"] > step and "speed/steps_per_second" in record)
    return [*before, {**next(after, {}), "step": step}]


def _steps(records: Sequence[Mapping[str, Any]]) -> int:
    """The steps that a run has trained itself: one that goes on from another row's state begins later than step 0.

    Args:
      records: the lines of metrics.jsonl. One that says what a step takes stands where they begin, unless it was lost.
    """
    if not records:
        return 0
    first = records[0]["step"]
    is_whole = any(record["step"] == first and "phase/text_tokens_per_step" in record for record in records)
    return records[-1]["step"] - (first if is_whole else 0)


def charts(scores: Sequence[Scores]) -> list[Dots]:
    """The test metric of each seed and their mean with its standard error, a chart for each task.

    Args:
      scores: of the cells that have any.
    """
    starts = list(dict.fromkeys(score.start for score in scores if score.start != SIMPLE))
    parts = [(score.row, score.strategy, "" if score.start == SIMPLE else score.start) for score in scores]
    varying = [n for n in range(3) if len({part[n] for part in parts if part[n]}) > 1] or [0]
    dots = []
    for task in dict.fromkeys(score.task for score in scores):
        of_task = [(score, part) for score, part in zip(scores, parts) if score.task == task]
        rows = [
            Row(
                " · ".join(part[n] for n in varying if part[n]),
                [score.percent(value) for value in score.by_seed.values()],
                len(starts) + 1 if score.start == SIMPLE else starts.index(score.start),
                None if score.error is None else score.percent(score.error),
            )
            for score, part in of_task
        ]
        first = of_task[0][0]
        if first.metric in first.constant:
            rows.insert(0, Row("constant baseline", [first.percent(first.constant[first.metric])], len(starts)))
        title = f"{task}: a dot for each seed, a line at the mean, a bar of its standard error"
        dots.append(Dots(title, f"{first.metric}{'' if first.unit == 'number' else ', %'}", rows))
    return dots
