"""`jaxpt predict`: a fine-tuned model's answer for every row of a file."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import tables, tokenizers
from jaxpt.data.labelled import examples
from jaxpt.data.labelled.files import RowFile
from jaxpt.data.parts import chosen_task
from jaxpt.data.tasks.base import Answer, LocatedRow, Task
from jaxpt.errors import UserError
from jaxpt.evals import predictors
from jaxpt.evals.task import of_part, with_measured
from jaxpt.metrics.glue import GLUE, glue_labels, glue_submission, glue_test
from jaxpt.parallel import processes
from jaxpt.runtime import disk
from jaxpt.runtime.progress import track
from jaxpt.train import checkpoint, state
from jaxpt.train.display import console, say

CHUNK = 4096
"""Rows whose tokens are in memory together."""


def predict(path: str, file: str, out: str, overrides: Sequence[str] = (), glue: bool = False) -> None:
    """Writes a line of JSON for each row of a file, in its order: id, label and probabilities (or value, tags, answer).

    Args:
      path: a run_dir (its best checkpoint), or `RUN_DIR/checkpoints/STEP`.
      file: rows as in training; they need no labels.
      out: the file to write; it appears when it is complete. With several processes the first one writes it.
      overrides: `key=value` of the run's configuration, such as `task.text=review`; with several tasks
        `task.use=NAME`.
      glue: write the file that GLUE's leaderboard takes instead, into the directory `out`, or the .tsv that it names;
        `file` is one of GLUE's test sets.

    Raises:
      UserError: the run has no task, or none of GLUE's, or several and none is named; `out` exists, or a row is not as
        it must be.
    """
    run_dir, step = checkpoint.find(path)
    config = configs.load(run_dir, overrides)
    processes.start(config.distributed)
    console.quiet = not checkpoint.is_primary()
    if config.task is None:
        raise UserError(f"{run_dir}: was not fine-tuned on a task; `jaxpt generate` completes and fills texts")
    if config.task.kind == "dialogue":
        raise UserError(
            f"{run_dir}: was fine-tuned on dialogues; `jaxpt chat {shlex.quote(str(run_dir))}` talks with it"
        )
    task = chosen_task(config).task
    submission = Submission(chosen_task(config), file) if glue else None
    to = submission.file(out) if submission else Path(out)
    if to.exists():
        raise UserError(f"{to}: already exists; choose a new file")
    disk.check_writable(to.parent)
    files = [RowFile(file_path) for file_path in tables.expand(file, "FILE")]
    rows = examples.read(submission.task if submission else task, files)
    if not rows:
        raise UserError(f"{file}: has no rows")
    predictions = predicted(config, run_dir, step, rows, "decide" if glue else "answer")
    lines = submission.lines(rows, predictions) if submission else _lines(task, rows, predictions)
    if checkpoint.is_primary():
        _write(to, lines)
    else:
        for _ in lines:
            pass
    say(f"{to}: {len(rows):,} rows, by {run_dir} at step {step}")


def _lines(task: Task, rows: Sequence[LocatedRow], answers: Iterable[Answer]) -> Iterator[str]:
    """Lines of JSON."""
    for row, answer in zip(rows, answers, strict=True):
        yield json.dumps({"id": task.row_id(row.row), **answer}, ensure_ascii=False)


def _write(out: Path, lines: Iterable[str]) -> None:
    """Writes a file, which appears when it is complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with disk.whole_file(out) as to:
        to.writelines(f"{line}\n".encode() for line in lines)


def predicted(config: Config, run_dir: Path, step: int, rows: Sequence[LocatedRow], how: str) -> Iterator[Any]:
    """What a run says of some rows, in their order.

    Args:
      config: the run's configuration.
      run_dir: the run.
      step: its checkpoint.
      rows: the rows; all processes have to take all of them.
      how: method of the objective: "answer" for people, or "decide".
    """
    setup = state.setup(config).for_evaluation()
    reader = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
    params: Any = reader.restore_params(setup, step)
    metrics = reader.metrics(step)
    reader.close()
    task_config = chosen_task(config)
    config = with_measured(task_config, metrics if task_config is config else of_part(metrics, task_config.task.name))
    settings = config.data.tokenizer
    tokenizer = tokenizers.load(run_dir / "tokenizer", settings.kind, extra_ids=settings.extra_ids)
    predictor = predictors.build(dataclasses.replace(setup, config=config), tokenizer)
    say = getattr(config.objective, how)
    for first in range(0, len(rows), CHUNK):
        encoded = examples.examples(config, tokenizer, rows[first : first + CHUNK], has_targets=False)
        with track("predicting", len(rows), "rows", first):
            outputs = predictor(params, encoded.records)
        for row, of_row in zip(encoded.rows, examples.by_row(encoded, outputs), strict=True):
            yield say(of_row, row.row, row.where)


class Submission:
    """Predictions as GLUE's leaderboard takes them, for one of its test sets."""

    def __init__(self, config: Config, file: str) -> None:
        """For a run.

        Args:
          config: the run's configuration.
          file: the test set; its name tells those of MNLI apart.

        Raises:
          UserError: the task is none of GLUE's, or its labels are not.
        """
        self._name, self._labels = glue_test(config.task.name, file), None
        expected_kind = "classification" if GLUE[self._name].labels else "regression"
        if config.task.kind != expected_kind:
            raise UserError(f"task.kind: {config.task.kind}: {GLUE[self._name].submission} wants {expected_kind}")
        if expected_kind == "classification":
            self._labels = glue_labels(self._name, config.task.labels, config.task.names)
        # GLUE's test sets have a line of names, also where its training set has none.
        self.task: Task = config.task.model_copy(update={"header": None})

    def file(self, out: str) -> Path:
        """The file: `out`, or the leaderboard's name in this directory."""
        return Path(out) if out.endswith(".tsv") else Path(out) / GLUE[self._name].submission

    def lines(self, rows: Sequence[LocatedRow], predictions: Iterable[Any]) -> Iterator[str]:
        """The lines of the file; a generated text that is no label counts as the first label, and is said."""
        predicted = list(predictions)
        if self._labels is not None:
            if none := sum(index < 0 for index in predicted):
                say(f"texts that are no label: {none:,}, written as {self._labels[0]}")
            predicted = [self._labels[max(index, 0)] for index in predicted]
        ids = [tables.row_id(row.row, self.task.id, default=number) for number, row in enumerate(rows)]
        yield from glue_submission(self._name, ids, predicted)
