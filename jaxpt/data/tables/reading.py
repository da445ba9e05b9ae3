"""From a path to its rows: the format by the file's suffix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from jaxpt.config.kinds import nearest
from jaxpt.data.tables.built_in import rows as builtin
from jaxpt.data.tables.conll import conll, conllu
from jaxpt.data.tables.delimited import csv, tsv
from jaxpt.data.tables.json_files import json_file, jsonl, squad
from jaxpt.data.tables.parquet import parquet
from jaxpt.data.tables.rows import Row
from jaxpt.data.tables.tfds import tfds
from jaxpt.errors import UserError

FORMATS: dict[str, Callable[..., Iterator[Row]]] = {
    "tsv": tsv, "csv": csv, "jsonl": jsonl, "json": json_file, "squad": squad, "parquet": parquet, "conllu": conllu,
    "conll": conll, "tfds": tfds, "builtin": builtin,
}  # fmt: skip
"""Format → its reader; the arguments after the path are the format's options."""
SUFFIXES = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet",
    ".conllu": "conllu", ".conll": "conll", ".iob": "conll", ".iob2": "conll", ".bio": "conll",
}  # fmt: skip
"""Suffix → format; each also as `.gz`."""


def read(path: str, format: str = "auto", **options: Any) -> Iterator[Row]:
    """Reads the rows of a labelled file.

    Args:
      path: the file, local or remote, also as `.gz`; for `format="tfds"` the name of a data set, for `"builtin"` the
        name of a table made of the built-in corpus.
      format: one of `FORMATS`; "auto" goes by the suffix.
      **options: of the format: `header`, `delimiter`, `quoted`, `ragged` (tsv, csv), `names`, `columns`, `comments`
        (conll), `columns` (conllu), `split` (tfds, builtin).

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
    path = str(path)
    reader = FORMATS[file_format(path, format)]
    known = list(inspect.signature(reader).parameters)[1:]
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"{path}: format {file_format(path, format)} has no option {option!r}; {has}")
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
    name = path.removesuffix(".gz")
    for suffix, suffix_format in SUFFIXES.items():
        if name.endswith(suffix):
            return suffix_format
    suffixes = ", ".join(suffix for suffix in SUFFIXES)
    raise UserError(
        f"{path}: the suffix says nothing of the format; wants {suffixes}, or a format: {', '.join(FORMATS)}"
    )
