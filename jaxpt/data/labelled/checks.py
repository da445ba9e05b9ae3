"""What a run says of its labelled data before the first step, and what it refuses."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxpt.config import Config
from jaxpt.config.kinds import nearest
from jaxpt.data import tables
from jaxpt.data.labelled.examples import split_rows
from jaxpt.data.labelled.files import files
from jaxpt.data.parts import each_task, named
from jaxpt.data.tables import Row
from jaxpt.data.tables.rows import EmptyLabelError, UnknownLabelError, check_empty_labels
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.errors import UserError
from jaxpt.metrics import METRICS, describe
from jaxpt.metrics.registry import NotFiniteError
from jaxpt.runtime.progress import track

if TYPE_CHECKING:
    from jaxpt.data.parts import Part
    from jaxpt.data.records.store import Store

ROWS_PER_LABEL = 5
"""Rows of a validation set for each label, below which it is called small."""


BEGINNING = 20
"""Rows of each file that metrics of other modules are tried with before a run starts."""
_DECIDED_AS_TARGETS = ("label", "labels", "number", "tags")
"""What metrics score where predictions have the form of targets."""
_checked: set[Any] = set()
"""Tasks and files, with their state, in which nothing was wrong: a run looks several times, in each of its phases."""


def check(config: Config) -> None:
    """Finds what is wrong with a task's metrics, files and first rows.

    Args:
      config: the run's configuration in one phase, with a task.

    Raises:
      UserError: a metric that the task has not, or that returns no numbers by name; a file of one split that is given
        for another one, too; a test set without metrics; a row without a column that the task reads, or with a label
        that it has not, of the training, validation or test set.
    """
    config.task.check_metrics()
    for name, task_config in each_task(config).items():
        with named(name):
            _check_files(task_config)
            _check_rows(task_config)
    _check_best(config)


def _check_rows(config: Config) -> None:
    """Raises UserError where a row of a file is not as it should be: a column that is missing, or a wrong label.

    SST-2's 67,349 rows take half a second; of millions progress is shown.
    """
    if config.data.source == "batches":
        return
    task = config.task
    for split in ("train", "validation", "test"):
        local = [file for file in files(config.data, split) if file.state is not None]
        key = repr((type(task), task, split, local, [file.state for file in local]))
        if key in _checked:
            continue
        with track(f"checking the rows of the {split} set", unit="rows") as work:
            for file in local:
                first: list[LocatedRow] = []
                empty: list[tuple[str, EmptyLabelError]] = []
                for row in work.count(file.rows(task)):
                    where = file.where(row)
                    task.content(row, where)
                    if len(first) < BEGINNING:
                        first.append(LocatedRow(row, where, (0, row.number)))
                    _check_target(config, split, row, where, empty)
                check_empty_labels(empty)
                _check_own_metrics(task, first)
        _checked.add(key)


def _source_of_labels(config: Config) -> str:
    """The end of a message about a label: a run has those of its config.yaml, whatever is in the files now."""
    saved = Path(config.run_dir) / "config.yaml"
    return f"; these are in {saved}: restore the run's data, or choose another run_dir" if saved.is_file() else ""


def _check_target(config: Config, split: str, row: Row, where: str, empty: list[tuple[str, EmptyLabelError]]) -> None:
    """Raises UserError where a row has not the target that it is trained or scored with; adds those without a label to
    `empty`."""
    task = config.task
    try:
        if getattr(task, "labels", ()) is None:  # they are still to be found, in the training set
            task.labels_in(row, where)
        elif (split != "train" and task.scored) or task.shown or task.kind in ("regression", "multiple_choice"):
            task.target(row, where)
    except EmptyLabelError as error:
        empty.append((where, error))
    except UnknownLabelError as error:
        raise UserError(f"{error}{_source_of_labels(config)}") from None


def _check_test_targets(config: Config, rows: Sequence[LocatedRow]) -> None:
    """Raises UserError where a row of a test set that `check` has not read, a data set or files elsewhere, has not its
    target: no records are made of it, which would find that."""
    if all(file.state is not None for file in files(config.data, "test")):
        return
    empty: list[tuple[str, EmptyLabelError]] = []
    for row in rows:
        _check_target(config, "test", row.row, row.where, empty)
    check_empty_labels(empty)


def _check_own_metrics(task: Task, rows: Sequence[LocatedRow]) -> None:
    """Raises UserError where a metric of another module does not return numbers by name: it is given the targets of
    some rows as their predictions. What it raises itself may be due to these few rows."""
    own = [metric for metric in task.scored if "." in metric and metric in METRICS]
    if not own or not rows or task.metric_targets not in _DECIDED_AS_TARGETS or getattr(task, "labels", ()) is None:
        return
    predictions = [task.target(row.row, row.where) for row in rows]
    _, targets = task.grouped(rows)
    for metric in own:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                task.score(predictions, targets, metric)
            except NotFiniteError:  # undefined where the first rows have one label
                continue
            except UserError as error:
                raise UserError(f"task.metrics: {error}") from None
            except Exception:  # whatever anyone's module raises
                continue


def _check_best(config: Config) -> None:
    """Raises UserError where `checkpoint.best_metric` is not the task's; of a mixture a task's, or their average."""
    evaluator, _, metric = config.checkpoint.best_metric.partition("/")
    if evaluator not in [eval_config.called for eval_config in config.evals if eval_config.kind == "task"]:
        return
    if config.task.kind != "mixture":
        _check_value(config.task, evaluator, metric)
        return
    known = [*config.task.task_names, "average"]
    if (name := metric.partition("/")[0]) not in known:
        such = f"{evaluator}/average, or a task's own, such as {evaluator}/{known[0]}/{config.task.tasks[0].scored[0]}"
        raise UserError(f"checkpoint.best_metric: {evaluator}/{metric}: wants {such}{nearest(name, known, '')}")
    if name == "average" and (lacking := config.task.without_average()):
        raise UserError(
            f"checkpoint.best_metric: {evaluator}/average: task {lacking} has no metric of which high values are "
            "better; add one to task.tasks, or name another best_metric"
        )
    if name != "average":
        _check_value(config.task.task_of(name), f"{evaluator}/{name}", metric.partition("/")[2])


def _check_value(task: Task, prefix: str, value: str) -> None:
    """Raises UserError where the evaluator of a task gives no such value; which values metrics of other modules give is
    not known."""
    known = [name for metric in task.scored for name in describe(metric).values]
    is_fitted = value.startswith(("temperature", "calibration_error", "threshold_"))
    are_known = all(metric in METRICS and "." not in metric for metric in task.scored)
    if are_known and value not in known and not is_fitted:
        raise UserError(
            f"checkpoint.best_metric: {prefix}/{value}: task.metrics gives no such value; it gives {', '.join(known)}"
            f"{nearest(value, known, '')}"
        )


def _check_files(config: Config) -> None:
    if config.data.has_test and not config.task.scored:
        key = "test_path" if config.data.test_path is not None else "test_fraction"
        raise UserError(f"data.{key}: a task of kind {config.task.kind} has no metrics; give data.validation_path")
    keys = {"train": "path", "validation": "validation_path", "test": "test_path"}
    key_by_path: dict[str, str] = {}
    for split, key in keys.items():
        for file in (row_file.name for row_file in files(config.data, split)):
            real = os.path.realpath(file)
            if key_by_path.setdefault(real, key) != key:
                raise UserError(f"data.{key}: {file} is a file of data.{key_by_path[real]}, too; name another one")


def _check_targets(config: Config, targets: np.ndarray) -> Iterator[str]:
    """Says which label has no row in the training set, though its files have some.

    Args:
      config: the run's configuration.
      targets: of all training rows.

    Yields:
      A line for the user.

    Raises:
      UserError: the files have no such row either.
    """
    labels = getattr(config.task, "labels", None)
    if labels is None:
        return
    counts = targets.sum(0) if targets.ndim == 2 else np.bincount(targets, minlength=len(labels))
    empty = [label for label, count in zip(labels, counts) if not count]
    if not empty:
        return
    rows = ((row, file.where(row)) for file in files(config.data, "train") for row in file.rows(config.task))
    occurring = {label for row, where in rows for label in config.task.labels_in(row, where)}
    if (missing := next((label for label in empty if label not in occurring), None)) is not None:
        raise UserError(f"data.path: no row has the label {missing!r}; add some, or take it out of task.labels")
    chosen = "data.validation_fraction, data.test_fraction or data.train_rows chose other rows"
    yield f"labels without a row to train on, as {empty[0]!r}: {len(empty):,} of {len(labels):,}; {chosen}"


def lines(config: Config, truncated: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """What is said of the data: texts that were cut, tags that were repaired, and texts that stand in two splits.

    Args:
      config: the run's configuration.
      truncated: {split: (rows that were cut, rows)}.

    Yields:
      Lines.

    Raises:
      UserError: a row of the test set has not the target that it is scored with.
    """
    cut_to = getattr(config.objective, "cut_to", "data.length {}".format)  # a dialogue has no other limit
    for split, (cut, rows) in truncated.items():
        if cut:
            yield f"{split}: {cut:,} of {rows:,} examples were cut to {cut_to(config.data.length)}"
    splits = ("train", "validation", "test") if config.data.has_test else ("train", "validation")
    rows = {split: split_rows(config, split) for split in splits}
    _check_test_targets(config, rows.get("test", ()))
    for split in splits if config.task.kind == "tagging" else ():
        if repairs := sum(config.task.repairs(row.row, row.where) for row in rows[split]):
            yield f"{split}: {repairs:,} tags I-X that continue no entity were read as B-X (task.scheme: auto)"
    if config.task.kind in ("classification", "multi_label"):
        yield from _small_validation(config, rows["validation"])
    train = _contents(config, rows["train"])
    for split in splits[1:]:
        of_split = _contents(config, rows[split])
        if twice := tables.overlap(train, of_split):
            yield f"{twice:,} of {len(of_split):,} {split} texts stand in the training set too"


def _small_validation(config: Config, rows: Sequence[LocatedRow]) -> Iterator[str]:
    """Says of a validation set that it is too small for its labels: it chooses the best checkpoint."""
    labels = config.task.labels or ()
    occurring = {label for row in rows for label in config.task.labels_in(row.row, row.where)}
    missing = len([label for label in labels if label not in occurring])
    if missing or len(rows) < ROWS_PER_LABEL * len(labels):
        key = "data.validation_fraction" if config.data.validation_path is None else "data.validation_path"
        without = f", {missing} of them without a row" if missing else ""
        yield (
            f"validation: {len(rows):,} rows for {len(labels)} labels{without}: few to choose the best checkpoint by; "
            f"more rows: {key}"
        )


def _contents(config: Config, rows: Sequence[LocatedRow]) -> list[Any]:
    return [config.task.content(row.row, row.where) for row in rows]


def store_lines(parts: Sequence[Part], stores: dict[str, list[Store]]) -> Iterator[str]:
    """What is said of the records of labelled data.

    Args:
      parts: the tasks.
      stores: of each split the records of each task.

    Yields:
      Lines for the user.

    Raises:
      UserError: there is something that cannot be learnt from, such as a label without rows.
    """
    for number, part in enumerate(parts):
        name = part.name if len(parts) > 1 else ""
        with named(name):
            for line in _task_lines(part.config, {split: of_split[number] for split, of_split in stores.items()}):
                yield f"{name}: {line}" if name else line


def _task_lines(config: Config, stores: dict[str, Store]) -> Iterator[str]:
    """Of one task."""
    cut: dict[str, tuple[int, int]] = {}
    for split, store in stores.items():
        cut[split] = int(store.values("truncated").sum()), len(store)
        counts = store.manifest["counts"]
        for name, why in (("too_long", "they are longer than data.length"), ("without_answer", "they have no answer")):
            if count := counts.get(name, 0):
                yield f"{split}: {count:,} of {counts['documents']:,} rows were left out: {why}"
        features = store.manifest["features"]
        if split == "train" and "target" in features:
            yield from _check_targets(config, store.values("target"))
        elif split == "train" and {"targets", "positions"} <= features.keys():  # of each word
            yield from _check_targets(config, store.values("targets"))
    yield from lines(config, cut)
