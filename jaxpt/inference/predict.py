"""`jaxpt predict`: a fine-tuned model's answer for every row of a file."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data.parts import chosen_task
from jaxpt.data.tasks.base import Answer, LocatedRow, Task, names_of
from jaxpt.data.tasks.multi_label import PredictedLabels
from jaxpt.errors import UserError, listed
from jaxpt.inference import prediction_files
from jaxpt.inference.predictor import RunPredictor, check_task
from jaxpt.metrics.glue import GLUE, glue_labels, glue_submission, glue_test
from jaxpt.parallel import processes
from jaxpt.runtime import disk
from jaxpt.runtime.progress import Report
from jaxpt.train import checkpoint
from jaxpt.train.display import console, say

TOP_K = 3
"""Labels whose probabilities are written."""


def predict(
    path: str,
    file: str | None = None,
    out: str | None = None,
    overrides: Sequence[str] = (),
    glue: bool = False,
    texts: Sequence[str] = (),
    top_k: int | None = None,
    average: Sequence[str] = (),
) -> None:
    """Writes each row of a file with what is predicted of it: a label and its probability, a value, tags, an answer.

    Of a classifier it says the task's metrics too, where the rows have labels.

    Args:
      path: a run_dir (its best checkpoint), or `RUN_DIR/checkpoints/STEP`.
      file: rows as in training; they need no labels. "-" or None: a text a line on stdin.
      out: the file to write, in the format of its suffix; it appears when it is complete. With several processes the
        first one writes it. None: JSON lines on stdout.
      overrides: `key=value` of the run's configuration, such as `task.text=review`; with several tasks
        `task.use=NAME`.
      glue: write the file that GLUE's leaderboard takes instead, into the directory `out`, or the .tsv that it names;
        `file` is one of GLUE's test sets.
      texts: texts instead of `file`.
      top_k: the likeliest labels whose probabilities are written (3); for tasks with labels alone.
      average: further runs of the same task: the mean of all runs' probabilities is written. Its metrics are said
        beside those of each run.

    Raises:
      UserError: the run has no task, or none of GLUE's, or several and none is named; `out` exists or has an unknown
        suffix, or a row is not as it must be.
    """
    file, overrides = _file_and_overrides(file, overrides)
    to = None if out is None or glue else Path(out)
    if to is not None:
        prediction_files.check_out(to)
    if glue and (out is None or file is None):
        raise UserError("--glue: writes GLUE's submission: give FILE, one of its test sets, and --out DIR")
    run_dir, step = checkpoint.find(path)
    config = configs.load(run_dir, overrides)
    processes.start(config.distributed)
    console.quiet = not checkpoint.is_primary()
    check_task(config, run_dir)
    task = chosen_task(config).task
    if top_k is not None:
        check_top_k(chosen_task(config), run_dir, glue)
    if glue and average:
        raise UserError("--average: writes no --glue submission; leave one of them out")
    if glue:
        _submit(config, run_dir, step, file, out)
        return
    rows = prediction_files.read_rows(task, file, texts)
    predictor = RunPredictor(config, run_dir, step)
    answers: Iterable[Answer] = predictor(rows)
    report = _to_stderr if to is None else say
    if average:
        answers = _predict_together(predictor, path, average, rows, overrides, report)
    elif task.kind in ("classification", "multi_label"):
        answers = list(answers)
        report_metrics(path, task, rows, answers, report)
    records = prediction_files.to_records(task, rows, answers, top_k or TOP_K, prediction_files.is_table(to))
    if not checkpoint.is_primary():
        collections.deque(records, maxlen=0)
    elif to is None:
        for line in prediction_files.json_lines(records):
            print(line)
    else:
        prediction_files.write(to, records)
        say(f"{to}: {len(rows):,} rows, by {run_dir} at step {step}")


def _file_and_overrides(file: str | None, overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """Tells FILE, which may be left out and may stand behind options, from overrides.

    Example:
      >>> _file_and_overrides("task.text=review", ()), _file_and_overrides(None, ["a.csv", "task.text=review"])
      ((None, ['task.text=review']), ('a.csv', ['task.text=review']))
    """
    words = [*([] if file is None else [file]), *overrides]
    files = [word for word in words if "=" not in word or Path(word).exists()]
    if not files:
        return None, words
    words.remove(files[0])
    return files[0], words


def _to_stderr(line: str) -> None:
    """For lines beside those that are written to stdout."""
    if checkpoint.is_primary():
        print(line, file=sys.stderr)


def _predict_together(
    first: RunPredictor,
    path: str,
    others: Sequence[str],
    rows: Sequence[LocatedRow],
    overrides: Sequence[str],
    report: Report,
) -> list[Answer]:
    """Predicts with several runs as one, by the mean of their probabilities, such as ULMFiT's forward and backward
    models; where rows have labels, says the metrics of each run and of the mean.

    Args:
      first: the first run's predictor.
      path: how the user named that run.
      others: the other runs, as the user named them.
      rows: the rows.
      overrides: `key=value` of each run's configuration.
      report: is given the lines of metrics.

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
    means = [_mean(answers) for answers in zip(*answers_by_run, strict=True)]
    for name, answers in zip([*paths, f"mean of {len(paths)}"], [*answers_by_run, means], strict=True):
        report_metrics(name, first.config.task, rows, answers, report)
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


def check_top_k(config: Config, path: str | Path, glue: bool = False) -> None:
    """Raises UserError where no probabilities of labels are written.

    Args:
      config: the run's configuration, of one task.
      path: the run, for messages.
      glue: GLUE's submission is written.
    """
    task = config.task
    if glue:
        raise UserError("--top-k: has no effect beside --glue, whose files have no probabilities; leave it out")
    if task.metric_targets not in ("label", "labels", "choice"):
        reason = f"task.kind: {task.kind} gives no probabilities of labels"
    elif getattr(config.objective, "decide_by", None) == "generation":
        reason = "it writes its labels as text and has no probabilities"
    else:
        return
    raise UserError(f"--top-k: has no effect on {path}: {reason}; leave it out")


def _mean(answers: Sequence[dict[str, Any]]) -> Answer:
    """One answer from several: the mean of their probabilities, and the likeliest label.

    Example:
      >>> _mean([{"label": "a", "probabilities": {"a": 0.75, "b": 0.25}},
      ...       {"label": "b", "probabilities": {"b": 0.875, "a": 0.125}}])
      {'label': 'b', 'probabilities': {'a': 0.4375, 'b': 0.5625}}
    """
    labels = list(answers[0]["probabilities"])
    means = np.mean([[answer["probabilities"][label] for label in labels] for answer in answers], axis=0)
    return {"label": labels[int(means.argmax())], "probabilities": dict(zip(labels, means.tolist()))}


def report_metrics(
    name: str, task: Task, rows: Sequence[LocatedRow], answers: Sequence[Answer], report: Report
) -> None:
    """Says the task's metrics of answers; nothing where rows have no labels, or several rows are scored together.

    Args:
      name: of what answered.
      task: of classification, or of multi_label.
      rows: the rows.
      answers: to each of them.
      report: is given a line.
    """
    if not _are_labelled(task, rows) or getattr(task, "group", None) is not None:
        return
    try:
        targets = [task.target(row.row, row.where) for row in rows]
    except UserError as error:
        report(f"{name}: no metrics: {error}")
        return
    predictions = [_prediction(task, answer) for answer in answers]
    scores = {name: x for metric in task.scored for name, x in task.score(predictions, targets, metric).items()}
    report(f"{name}: {'  '.join(f'{metric} {score:.4f}' for metric, score in scores.items())}")


def _are_labelled(task: Task, rows: Sequence[LocatedRow]) -> bool:
    """True if there are rows and each has a label. Some of multi_label have none: there one has, and all have the
    columns."""
    columns = names_of(task.label)
    has_label = [any(row.row.values.get(name) not in (None, "", []) for name in columns) for row in rows]
    if task.kind == "multi_label":
        return any(has_label) and all(row.row.values.keys() >= set(columns) for row in rows)
    return bool(rows) and all(has_label)


def _prediction(task: Task, answer: Answer) -> Any:
    """What `Task.score` takes, from an answer."""
    if task.kind == "multi_label":
        labels = PredictedLabels(int(label in answer["labels"]) for label in task.shown)
        labels.probabilities = np.array([answer["probabilities"][label] for label in task.shown])
        return labels
    return task.shown.index(answer["label"]) if answer["label"] in task.shown else -1  # a text may be no label


def _submit(config: Config, run_dir: Path, step: int, file: str, out: str) -> None:
    """Writes the file that GLUE's leaderboard takes."""
    submission = Submission(chosen_task(config), file)
    to = submission.file(out)
    if to.exists():
        raise UserError(f"{to}: already exists; choose a new file")
    rows = prediction_files.read_rows(submission.task, file, ())
    lines = submission.lines(rows, RunPredictor(config, run_dir, step)(rows, "decide"))
    if not checkpoint.is_primary():
        collections.deque(lines, maxlen=0)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    with disk.whole_file(to) as written:
        written.writelines(f"{line}\n".encode() for line in lines)
    say(f"{to}: {len(rows):,} rows, by {run_dir} at step {step}")


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
        ids = [self.task.row_id(row) for row in rows]
        yield from glue_submission(self._name, ids, predicted)
