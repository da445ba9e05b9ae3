"""Rows of labelled files, for a recipe with a task. A row is a document whose text is JSON: {column: value}.

Without a `validation_path` a fraction of each label's rows is held out, by a hash of their texts; with
`task.split_by: group` a fraction of the groups. With `data.test_fraction` a part of the others is for the test, with
`data.train_rows` so many of the rest are trained on.

The rows are cut into shards of 4,096, whatever their files are; in version 1 of the order of records
(`stream/order.py`) each file is a shard.
"""

from __future__ import annotations

import itertools
import json
import platform
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jaxpt.config import DataConfig
from jaxpt.data.labelled.examples import divided
from jaxpt.data.labelled.files import RowFile, files
from jaxpt.data.records.store import MOST_SHARDS
from jaxpt.data.sources.base import Piece, Pieces, Source
from jaxpt.data.tables import Offset, Row, built_in, hf_datasets, tfds
from jaxpt.data.tables.files import size
from jaxpt.data.tasks.base import LocatedRow, Task

ROWS_PER_SHARD = 4096

_as_json = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` makes an encoder for each row


class _Reader(NamedTuple):
    """A file that was read up to the end of a piece."""

    file: RowFile
    rows: Iterator[tuple[int, Row]]
    """The next one is the first row of the next piece."""
    index: int
    """Of that row in the file, from 0."""


class Rows(Source):
    """The rows of a task's files."""

    def __init__(
        self, data: DataConfig, task: Task, rows_per_shard: int | None = ROWS_PER_SHARD, null_fields: bool = False
    ) -> None:
        """Finds the files, and reads those of the training set where a part of it is chosen.

        `rows_per_shard` is a minimum; None: each file is a shard. With `null_fields` dialogues keep those that Arrow
        gives to them.
        """
        self._rows_per_shard = rows_per_shard
        self._drops_nulls = not null_fields and task.kind == "dialogue"
        self._reader: _Reader | None = None
        lines: list[str] = []
        train, held, _ = (files(data, split, lines.append) for split in ("train", "validation", "test"))
        self._task, self._chosen = task, None
        self._of = {"train": train, "validation": held or train}
        self._by_name = {file.name: file for of_split in self._of.values() for file in of_split}
        paths = {split: [file.name for file in of_split] for split, of_split in self._of.items()}
        super().__init__(paths, self._documents, None)
        self.found = tuple(lines)
        if not held or data.train_rows is not None or data.test_fraction is not None:
            self._chosen = divided(data, task).chosen
            self._identity["split"] = repr(self._chosen)
        if data.source in ("hf", "tfds"):
            revision = {"hf": hf_datasets, "tfds": tfds}[data.source].revision
            self._identity[data.source] = {
                file.name: revision(file.path, file.split) for file in self._by_name.values()
            }
        if data.source == "builtin":
            self._identity["builtin"] = {"python": platform.python_version(), "code": built_in.VERSION}

    def place(self, split: str, file: int, number: int, text: str) -> LocatedRow:
        """The row of a document."""
        row = Row(number, json.loads(text))
        return LocatedRow(row, self._of[split][file].where(row), (file, number))

    def is_of(self, split: str, text: str) -> bool:
        return self._is_in(split, LocatedRow(Row(0, json.loads(text)), "", (0, 0)))

    def _is_in(self, split: str, row: LocatedRow) -> bool:
        if self._chosen is None or (split == "validation" and self._chosen.held is None):
            return True
        return self._chosen.split(self._task, row) == split

    def shards(self, split: str) -> list[Pieces]:
        """Cuts a split into runs of rows; the files are read through for it.

        Args:
          split: "train" or "validation".

        Returns:
          Pieces by shard, in the order of the rows; a mark of a piece is the row's place in its file, from 0.
        """
        if self._rows_per_shard is None:
            return super().shards(split)
        counts = [sum(1 for _ in file.rows(self._task)) for file in self._of[split]]
        every = max(self._rows_per_shard, -(-sum(counts) // MOST_SHARDS))
        shards, room = [Pieces()], every
        for number, (file, count) in enumerate(zip(self._of[split], counts)):
            num_bytes = size(file.path) if file.split is None else 0
            for start, stop in _runs(count, room, every):
                if not room:
                    shards.append(Pieces())
                    room = every
                end = None if stop == count else stop
                shards[-1].append(Piece(number, Offset(number=start), end, num_bytes * (stop - start) // max(count, 1)))
                room -= stop - start
        return shards

    def rows(self, split: str, pieces: Iterable[Piece]) -> Iterator[LocatedRow]:
        """Reads the rows of a split, as `documents` reads their texts.

        Args:
          split: "train" or "validation".
          pieces: which of them.

        Yields:
          The rows with their places.

        Raises:
          UserError: names the file and line that is not as it should be.
        """
        counts: dict[str, Any] = {"documents": 0, "empty": 0, "files": {}}
        for piece in pieces:
            file, in_file = self._of[split][piece.file], 0
            for row in self._rows_of(file, piece):
                in_file += 1
                located = LocatedRow(row, file.where(row), (piece.file, row.number))
                if self._is_in(split, located):
                    counts["documents"] += 1
                    yield _without_nulls(located) if self._drops_nulls and file.is_arrow else located
            counts["files"][str(piece.file)] = counts["files"].get(str(piece.file), 0) + in_file
            self.consumed += piece.size
        self.counts[split] = counts

    def texts(self, split: str) -> Iterator[str]:
        """The texts of the rows, without names of columns and what no model reads."""
        for row in self.rows(split, map(Piece, range(len(self._of[split])))):
            yield from self._task.vocabulary_texts(row.row, row.where)
        self.check(split, self.counts[split])

    def _rows_of(self, file: RowFile, piece: Piece) -> Iterator[Row]:
        """The rows of a piece; where the last one ended before it in this file, the file is read on."""
        start, reader = piece.start.number, self._reader
        self._reader = None
        if reader is None or reader.file != file or reader.index > start:
            reader = _Reader(file, enumerate(file.rows(self._task)), 0)
        num_skipped = start - reader.index
        for index, row in itertools.islice(reader.rows, num_skipped, None):
            yield row
            if index + 1 == piece.stop:
                self._reader = reader._replace(index=piece.stop)
                return

    def _documents(self, path: str, mark: Offset) -> Iterator[tuple[int, str]]:
        for row in self._by_name[path].rows(self._task):
            yield row.number, _as_json(row.values)


def has_null_fields(data: DataConfig, task: Task) -> bool:
    """Whether Arrow may have given null fields to dialogues: it gives all structs of a column the same fields."""
    splits = (files(data, split) for split in ("train", "validation") if task.kind == "dialogue")
    return any(file.is_arrow for of_split in splits for file in of_split)


def _without_nulls(row: LocatedRow) -> LocatedRow:
    """A row whose objects have no null fields, so that a template renders add(a=2) as {"a": 2}, not with "b": null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: clean(field) for name, field in value.items() if field is not None}
        return [clean(element) for element in value] if isinstance(value, list) else value

    values = {name: clean(value) for name, value in row.row.values.items()}
    return row._replace(row=row.row._replace(values=values))


def _runs(count: int, room: int, every: int) -> Iterator[tuple[int, int]]:
    """Cuts `count` rows, the first `room` of them and then by `every`: (start, stop); of none there is one run.

    Example:
      >>> list(_runs(10, 3, 4)), list(_runs(0, 3, 4))
      ([(0, 3), (3, 7), (7, 10)], [(0, 0)])
    """
    stops = [*range(room or every, count, every), count]
    yield from zip([0, *stops[:-1]], stops)
