"""All rows of a split, or of a file, with their records: for scoring and for predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jaxpt.config import Config, DataConfig
from jaxpt.data import tables
from jaxpt.data.labelled.files import RowFile, files
from jaxpt.data.tables import HeldOut
from jaxpt.data.tables.files import size
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.data.tokenizers.base import Tokenizer


class Examples(NamedTuple):
    """Rows and their records."""

    rows: list[LocatedRow]
    records: list[dict[str, Any]]
    row_of: list[int]
    """The row of each record: a long text may have several."""


def examples(config: Config, tokenizer: Tokenizer, rows: Sequence[LocatedRow], has_targets: bool = True) -> Examples:
    """Encodes rows as in training.

    Args:
      config: the run's configuration.
      tokenizer: its tokenizer.
      rows: the rows.
      has_targets: False: they need no labels.

    Raises:
      UserError: names the row that is not as it should be.
    """
    encoder = config.objective.encoder(config.data.length, tokenizer.vocabulary)
    number = {row.origin: index for index, row in enumerate(rows)}
    records = list(encoder(rows, tokenizer, has_targets, train=False))
    return Examples(list(rows), records, [number[tuple(record["origin"].tolist())] for record in records])


def by_row(found: Examples, outputs: Sequence[Any]) -> list[list[Any]]:
    """What was computed of each record, as a list for each row."""
    of_row: list[list[Any]] = [[] for _ in found.rows]
    for row, output in zip(found.row_of, outputs, strict=True):
        of_row[row].append(output)
    return of_row


def read(task: Task, files: Iterable[RowFile]) -> list[LocatedRow]:
    """The rows of some files."""
    rows = ((number, file, row) for number, file in enumerate(files) for row in file.rows(task))
    return [
        LocatedRow(row, file.where(row), (number, row.number), row_number)
        for row_number, (number, file, row) in enumerate(rows)
    ]


def split_rows(config: Config, split: str) -> list[LocatedRow]:
    """The rows of a split.

    Args:
      config: the run's configuration.
      split: "train", "validation" or "test".
    """
    data, task = config.data, config.task
    split_files = files(data, split) if split != "train" else []
    of_files = read(task, split_files)
    if split_files and not (split == "test" and data.test_fraction):
        return of_files
    of_path = list(divided(data, task).splits.get(split, []))
    if split_files:  # their rows come first
        of_path = [row._replace(origin=(row.origin[0] + len(split_files), row.origin[1])) for row in of_path]
    return of_files + of_path


class Divided(NamedTuple):
    """The rows of the training files, each in its split."""

    chosen: Chosen
    splits: dict[str | None, list[LocatedRow]]
    """None: rows that are left out."""
    size: int
    """Bytes of text."""


KEPT_BYTES = 16 << 20
"""Text up to which the rows of training files are kept. A run asks for its splits a dozen times (records, evaluators,
simple models), and the next run of a study for the same; 16 MB of short texts take about 200 MB of memory."""
_kept: dict[Any, Divided] = {}


def divided(data: DataConfig, task: Task) -> Divided:
    """The rows of the training files by split; of small files those that were read last, while they have not changed.

    Args:
      data: of the recipe.
      task: its task.

    Raises:
      UserError: names the row that is not as it should be.
    """
    train_files = files(data, "train")
    states = [file.state for file in train_files]
    key = type(task), repr((data, task, states))
    if key in _kept:
        return _kept[key]
    rows = read(task, train_files)
    is_known = None not in states
    found = Divided(choose(data, task, rows), {}, sum(size(file.path) for file in train_files) if is_known else 0)
    for row in rows:
        found.splits.setdefault(found.chosen.split(task, row), []).append(row)
    if is_known and found.size <= KEPT_BYTES:
        if sum(kept.size for kept in _kept.values()) + found.size > KEPT_BYTES:
            _kept.clear()
        _kept[key] = found
    return found


class Chosen(NamedTuple):
    """Whose the rows of the training files are. It is small, and its `repr` says all of it."""

    held: HeldOut | None
    """The validation set, where it has no files."""
    trained: HeldOut | None
    """What is trained on of the others (`data.train_rows`); None: all."""
    tested: HeldOut | None = None
    """What of `data.path` is in the test set."""

    def __repr__(self) -> str:
        # Prepared records and runs from before there was `tested` have an identity with the other two.
        named = [f"{name}={value!r}" for name, value in self._asdict().items() if name != "tested" or value is not None]
        return f"Chosen({', '.join(named)})"

    def split(self, task: Task, row: LocatedRow) -> str | None:
        """The row's split; None: it is left out."""
        if self.held is not None and _is_in(self.held, task, row):
            return "validation"
        if self.tested is not None and _is_in(self.tested, task, row):
            return "test"
        return "train" if self.trained is None or _is_in(self.trained, task, row) else None


def choose(data: DataConfig, task: Task, rows: Sequence[LocatedRow]) -> Chosen:
    """The splits of the training files.

    Args:
      data: of the recipe.
      task: its task.
      rows: all rows of the files.

    Returns:
      By the hashes of texts or groups, in each stratum of the task alike: a validation set where none has files of its
      own, of the others `data.test_fraction` for the test, and of what is left about `data.train_rows` rows. Prepared
      batches were divided when they were written: all rows of their training file are in the training set.
    """
    if data.source == "batches":
        return Chosen(None, None)
    held = None if files(data, "validation") else _part(task, rows, data.validation_fraction)
    others = [row for row in rows if held is None or not _is_in(held, task, row)]
    tested = None if data.test_fraction is None else _part(task, others, data.test_fraction)
    others = [row for row in others if tested is None or not _is_in(tested, task, row)]
    share = 1.0 if data.train_rows is None else data.train_rows / max(len(others), 1)
    return Chosen(held, _part(task, others, share) if share < 1 else None, tested)


def _part(task: Task, rows: Iterable[LocatedRow], fraction: float) -> HeldOut:
    """A part of rows, of each stratum the same fraction."""
    return tables.held_out(
        rows,
        lambda row: task.held_out_by(row.row, row.where),
        lambda row: task.stratum(row.row, row.where),
        fraction,
        task.quantiles,
    )


def _is_in(part: HeldOut, task: Task, row: LocatedRow) -> bool:
    return part.is_held_out(task.held_out_by(row.row, row.where), task.stratum(row.row, row.where))
