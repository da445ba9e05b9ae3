"""The formats of files: how each is read, and the suffixes that stand for it. A new format is a line of `FORMATS`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jaxpt.config.kinds import nearest
from jaxpt.data.tables.array_record import array_record
from jaxpt.data.tables.array_record import cuts as record_numbers
from jaxpt.data.tables.built_in import rows as builtin
from jaxpt.data.tables.conll import conll, conllu
from jaxpt.data.tables.delimited import csv, tsv
from jaxpt.data.tables.hf_datasets import hf
from jaxpt.data.tables.json_files import json_file, jsonl
from jaxpt.data.tables.parquet import cuts as row_groups
from jaxpt.data.tables.parquet import parquet
from jaxpt.data.tables.plain_text import cuts as line_ends
from jaxpt.data.tables.plain_text import text
from jaxpt.data.tables.rows import Offset, Row
from jaxpt.data.tables.super_glue import is_nested
from jaxpt.data.tables.tfds import tfds
from jaxpt.errors import UserError


class Format(NamedTuple):
    """A format of files."""

    read: Callable[..., Iterator[Row]]
    """A path → its rows; the arguments after the path are the format's options."""
    suffixes: tuple[str, ...] = ()
    """Of its files; each also as `.gz`."""
    unit: str = "line"
    """What the numbers of rows count."""
    cuts: Callable[..., Iterator[tuple[Offset, int]]] | None = None
    """Path, bytes → the places where a corpus in such a file can be cut, and the bytes from each to the next. It takes
    the options of `read`, among them `start` and `columns`. None: it is no format of a corpus."""


FORMATS = {
    "tsv": Format(tsv, (".tsv",)),
    "csv": Format(csv, (".csv",)),
    "jsonl": Format(jsonl, (".jsonl", ".ndjson"), cuts=line_ends),
    "json": Format(json_file, (".json",), "row"),
    "parquet": Format(parquet, (".parquet",), "row", row_groups),
    "conllu": Format(conllu, (".conllu",)),
    "conll": Format(conll, (".conll", ".iob", ".iob2", ".bio")),
    "text": Format(text, (".txt", ".text", ".md"), cuts=line_ends),
    "array_record": Format(array_record, (".array_record", ".arrayrecord"), "row", record_numbers),
    "tfds": Format(tfds, unit="row"),
    "hf": Format(hf, unit="row"),
    "builtin": Format(builtin, unit="row"),
}
_SUFFIXES = {suffix: name for name, format in FORMATS.items() for suffix in format.suffixes}
SUFFIXES = [suffix for suffix, name in _SUFFIXES.items() if name != "text"]
"""Suffixes of files with columns: those of a directory of labelled files."""
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")


def read(path: str, format: str = "auto", **options: Any) -> Iterator[Row]:
    """Reads the rows of a file.

    Args:
      path: the file, local or remote, also as `.gz`; for `format="tfds"` or `"hf"` the name of a data set, for
        `"builtin"` the name of a table made of the built-in corpus.
      format: one of `FORMATS`; "auto" goes by the suffix.
      **options: of the format: `header`, `quoted`, `delimiter`, `encoding` (tsv, csv), `header`, `comments` (conll),
        `split` (tfds, hf, builtin), `start` (text, jsonl, parquet, array_record, hf), `columns` (jsonl, parquet,
        array_record), `documents` (text).

    Yields:
      The rows in the order of the file.

    Raises:
      UserError: at once for an unknown format or option; names the file and the line for what is wrong in it.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "dev.tsv")
      >>> _ = path.write_text("sentence\\tlabel\\na fine film\\t1\\n")
      >>> next(read(str(path)))
      Row(number=2, values={'sentence': 'a fine film', 'label': '1'})
    """
    path, format = str(path), file_format(str(path), format)
    reader = FORMATS[format].read
    known = list(inspect.signature(reader).parameters)[1:]
    if unknown := next((option for option in options if option not in known), None):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(f"{path}: format {format} has no option {unknown!r}; {has}")
    return reader(path, **options)


def file_format(path: str, format: str = "auto") -> str:
    """How a file is read.

    Args:
      path: its name.
      format: one of `FORMATS`, or "auto".

    Returns:
      One of `FORMATS`.

    Raises:
      UserError: no such format, or the suffix says nothing.

    Example:
      >>> file_format("en_ewt-ud-dev.conllu.gz"), file_format("eng.testa", "conll")
      ('conllu', 'conll')
    """
    if format != "auto":
        if format not in FORMATS:
            raise UserError(f"{path}: no format {format!r}{nearest(format, [*FORMATS])}")
        return format
    if by_suffix := _by_suffix(path):
        return by_suffix
    if path.lower().endswith(_SPREADSHEETS):
        raise UserError(f"{path}: is a spreadsheet, which is not read; save its sheet as .csv")
    raise UserError(
        f"{path}: the suffix says nothing of the format; wants {', '.join(_SUFFIXES)}, or a format: "
        f"{', '.join(FORMATS)}"
    )


@functools.lru_cache(1 << 10)  # asked for each row of a file
def _by_suffix(path: str) -> str | None:
    name = path.removesuffix(".gz")
    return next((format for suffix, format in _SUFFIXES.items() if name.endswith(suffix)), None)


def where(path: str, row: Row, format: str = "auto") -> str:
    """Names a row in a message.

    Args:
      path: the file.
      row: of this file.
      format: as `read` was called with.

    Returns:
      The file and the line, or the row where a file has no lines.

    Example:
      >>> where("train.tsv", Row(12, {})), where("train.parquet", Row(12, {}))
      ('train.tsv: line 12', 'train.parquet: row 12')
    """
    format = _by_suffix(path) if format == "auto" else format
    unit = "row" if is_nested(row.values) else FORMATS[format].unit if format else "line"
    return f"{path}: {unit} {row.number}"
