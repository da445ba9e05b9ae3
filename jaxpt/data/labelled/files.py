"""The files of a task's splits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from jaxpt.config import DataConfig
from jaxpt.data import tables
from jaxpt.data.tables import Row, tfds
from jaxpt.data.tables.files import packed_in
from jaxpt.data.tasks.base import Task
from jaxpt.errors import UserError

NAMED = ("builtin", "tfds", "hf")
"""Sources whose `data.path` is the name of a data set, and whose `validation_path` and `test_path` are its splits. The
validation split of `builtin` and `tfds` is `validation` by default, of a TFDS data set only if it has one."""
_DELIMITED = ("header", "quoted", "delimiter", "encoding")
_OPTIONS = {"tsv": _DELIMITED, "csv": _DELIMITED, "conll": ("header", "comments")}
"""Keys of a task that are options of a format; files of other formats name their columns themselves."""


class RowFile(NamedTuple):
    """A file of labelled rows, or a split of a data set by its name."""

    path: str
    format: str = "auto"
    split: str | None = None

    @property
    def name(self) -> str:
        """For messages, and for telling files apart."""
        return self.path if self.split is None else f"{self.path} ({self.split})"

    def rows(self, task: Task) -> Iterator[Row]:
        """Its rows."""
        if self.split is not None:
            return tables.read(self.path, self.format, split=self.split)
        format = tables.file_format(self.path, self.format)
        keys = _OPTIONS.get(format, ())
        options = {key: option for key in keys if (option := getattr(task, key)) is not None}
        return tables.read(self.path, format, **options)

    @property
    def state(self) -> tuple[int, ...] | None:
        """What changes when the file does; None of a data set, or a file elsewhere."""
        if self.split is not None or "://" in self.path:
            return None
        stat = os.stat(packed_in(self.path))
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    @property
    def is_arrow(self) -> bool:
        """True if its rows are read from Arrow's tables, in which all structs of a column have the same fields."""
        return tables.file_format(self.path, self.format) in ("parquet", "hf")

    def where(self, row: Row) -> str:
        """The place of a row, for messages."""
        return tables.where(self.name, row, self.format)


def files(data: DataConfig, split: str, report: Callable[[str], None] = lambda line: None) -> list[RowFile]:
    """The files of a split.

    Args:
      data: of the recipe.
      split: "train", "validation" or "test".
      report: is given a line for each directory.

    Returns:
      Its files; [] where the recipe names none: then a part of the training set is the validation set.

    Raises:
      UserError: a file is missing, there is no training set, or TFDS cannot prepare the data set.
    """
    key = {"train": "path", "validation": "validation_path", "test": "test_path"}[split]
    setting = getattr(data, key)
    if data.path is None:
        raise UserError("data.path is missing: the training set of the task")
    if data.source == "batches":
        file = prepared_rows(data.path, split)
        return [RowFile(str(file), "jsonl")] if file.is_file() else []
    if data.source in NAMED:
        source_split = {"train": "train", "validation": setting or _held_out(data, split), "test": setting}[split]
        return [] if source_split is None else [RowFile(str(data.path), data.source, source_split)]
    if setting is None:
        return []
    return [RowFile(path) for path in tables.expand(setting, f"data.{key}", tables.SUFFIXES, report)]


def _held_out(data: DataConfig, split: str) -> str | None:
    """The validation split of a data set, where the recipe names none; None: a part of the training set is held out."""
    if split != "validation" or data.source == "hf":  # few of the hub's have a split of this name
        return None
    return "validation" if data.source == "builtin" or "validation" in tfds.splits_of(str(data.path)) else None


def prepared_rows(directory: str | Path, split: str) -> Path:
    """The file of a split's rows beside prepared batches.

    Args:
      directory: `data.path`, of a task of a mixture a folder in it.
      split: "train", "validation" or "test".
    """
    return Path(directory) / "rows" / f"{split}.jsonl.gz"
