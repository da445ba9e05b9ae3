"""Rows of labelled files, for a recipe with a task. A row is a document whose text is JSON: {column: value}.

Without a `validation_path` a fraction of each label's rows is held out, by a hash of their texts. With
`data.test_fraction` a part of the others is for the test, with `data.train_rows` so many of the rest are trained on.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator

from jaxpt.config import DataConfig
from jaxpt.data.labelled.examples import choose, read
from jaxpt.data.labelled.files import files
from jaxpt.data.sources.base import Source
from jaxpt.data.tables import Offset, Row, built_in, hf_datasets
from jaxpt.data.tasks.base import LocatedRow, Task

_as_json = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` makes an encoder for each row


class Rows(Source):
    """The rows of a task's files."""

    def __init__(self, data: DataConfig, task: Task) -> None:
        """Finds the files, and reads those of the training set where a part of it is chosen."""
        lines: list[str] = []
        train, held, _ = (files(data, split, lines.append) for split in ("train", "validation", "test"))
        self._task, self._chosen = task, None
        self._of = {"train": train, "validation": held or train}
        self._by_name = {file.name: file for of_split in self._of.values() for file in of_split}
        paths = {split: [file.name for file in of_split] for split, of_split in self._of.items()}
        super().__init__(paths, self._documents, None)
        self.found = tuple(lines)
        if not held or data.train_rows is not None or data.test_fraction is not None:
            self._chosen = choose(data, task, read(task, train))
            self._identity["split"] = repr(self._chosen)
        if data.source == "hf":
            self._identity["hf"] = {
                file.name: hf_datasets.revision(file.path, file.split) for file in self._by_name.values()
            }
        if data.source == "builtin":
            self._identity["builtin"] = {"python": platform.python_version(), "code": built_in.VERSION}

    def place(self, split: str, file: int, number: int, text: str) -> LocatedRow:
        """The row of a document."""
        row = Row(number, json.loads(text))
        return LocatedRow(row, self._of[split][file].where(row), (file, number))

    def is_of(self, split: str, text: str) -> bool:
        if self._chosen is None or (split == "validation" and self._chosen.held is None):
            return True
        return self._chosen.split(self._task, LocatedRow(Row(0, json.loads(text)), "", (0, 0))) == split

    def _documents(self, path: str, mark: Offset) -> Iterator[tuple[int, str]]:
        for row in self._by_name[path].rows(self._task):
            yield row.number, _as_json(row.values)
