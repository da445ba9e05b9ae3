"""All rows of a split, or of a file, with their records: for scoring and for predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jaxpt import tables
from jaxpt.config import Config
from jaxpt.data.labelled.files import RowFile, files
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.tables import HeldOut
from jaxpt.tasks.base import LocatedRow, Task


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
    encoder = config.objective.batches.encoder(config.data.length, tokenizer.vocabulary)
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
    return [
        LocatedRow(row, file.where(row), (number, row.number))
        for number, file in enumerate(files)
        for row in file.rows(task)
    ]


def split_rows(config: Config, split: str) -> list[LocatedRow]:
    """The rows of a split.

    Args:
      config: the run's configuration.
      split: "train", "validation" or "test".
    """
    data, task = config.data, config.task
    if own := files(data, split) if split != "train" else []:
        return read(task, own)
    rows = read(task, files(data, "train"))
    if files(data, "validation"):
        return rows
    held = held_out(task, rows, data.validation_fraction)
    return [row for row in rows if is_held_out(held, task, row) == (split == "validation")]


def held_out(task: Task, rows: Iterable[LocatedRow], fraction: float) -> HeldOut:
    """The split of a training set that has no validation set beside it."""
    return tables.held_out(
        rows,
        lambda row: task.content(row.row, row.where),
        lambda row: task.stratum(row.row, row.where),
        fraction,
        task.quantiles,
    )


def is_held_out(held: HeldOut, task: Task, row: LocatedRow) -> bool:
    """Whether a row of the training set belongs to the validation split."""
    return held.is_held_out(task.content(row.row, row.where), task.stratum(row.row, row.where))
