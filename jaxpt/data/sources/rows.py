"""Rows of labelled files, for a recipe with a task. A row is a document whose text is JSON: {column: value}.

Without a `validation_path` a fraction of each label's rows is held out, by a hash of their text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from jaxpt import tables
from jaxpt.config import DataConfig
from jaxpt.data.sources.base import Source
from jaxpt.data.sources.readers import Offset
from jaxpt.tables import splits
from jaxpt.tasks.base import Task


class Rows(Source):
    """The rows of a task's files.

    Attributes:
      task: says what the columns are.
    """

    def __init__(self, data: DataConfig, task: Task) -> None:
        """Finds the files; without a validation file it reads those of the training set for the split."""
        train = tables.expand(data.path, "data.path")
        held = tables.expand(data.validation_path, "data.validation_path") if data.validation_path else None
        self.task = task
        self._split = None
        files = {"train": train, "validation": held or train}
        super().__init__(files, self._rows, None)
        if held is None:
            every = (json.loads(text) for file in train for _, text in self._rows(file, Offset()))
            self._split = splits.held_out(
                every, lambda row: task.content(row, ""), lambda row: task.stratum(row, ""), data.validation_fraction
            )
            self._identity["split"] = repr(self._split)

    def where(self, split: str, file: int, number: int) -> str:
        """File and line of a row, for messages."""
        return tables.where(self._files[split][file], number)

    def is_of(self, split: str, text: str) -> bool:
        if self._split is None:
            return True
        row = json.loads(text)
        is_held = self._split.is_held_out(self.task.content(row, ""), self.task.stratum(row, ""))
        return is_held == (split == "validation")

    def _rows(self, path: str, mark: Offset) -> Iterator[tuple[int, str]]:
        for row in tables.read(path, header=self.task.header):
            yield row.number, json.dumps(row.values, ensure_ascii=False)
