"""Rows of labelled files, for a recipe with a task. A row is a document whose text is JSON: {column: value}.

Without a `validation_path` a fraction of each label's rows is held out, by a hash of their texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from jaxpt import tables
from jaxpt.config import DataConfig
from jaxpt.data.labelled.examples import held_out, is_held_out
from jaxpt.data.sources.base import Source
from jaxpt.data.sources.readers import Offset
from jaxpt.errors import UserError
from jaxpt.tables import Row
from jaxpt.tasks.base import LocatedRow, Task


class Rows(Source):
    """The rows of a task's files."""

    def __init__(self, data: DataConfig, task: Task) -> None:
        """Finds the files; without a validation file it reads those of the training set for the split."""
        if data.path is None:
            raise UserError("data.path is missing: the training set of the task")
        train = tables.expand(data.path, "data.path")
        held = tables.expand(data.validation_path, "data.validation_path") if data.validation_path else None
        self._task = task
        super().__init__({"train": train, "validation": held or train}, self._documents, None)
        self._split = None
        if held is None:
            rows = (LocatedRow(row, tables.where(file, row), (0, 0)) for file in train for row in task.read(file))
            self._split = held_out(task, rows, data.validation_fraction)
            self._identity["split"] = repr(self._split)

    def place(self, split: str, file: int, number: int, text: str) -> LocatedRow:
        """The row of a document."""
        row = Row(number, json.loads(text))
        return LocatedRow(row, tables.where(self._files[split][file], row), (file, number))

    def is_of(self, split: str, text: str) -> bool:
        if self._split is None:
            return True
        row = LocatedRow(Row(0, json.loads(text)), "", (0, 0))
        return is_held_out(self._split, self._task, row) == (split == "validation")

    def _documents(self, path: str, mark: Offset) -> Iterator[tuple[int, str]]:
        for row in self._task.read(path):
            yield row.number, json.dumps(row.values, ensure_ascii=False)
