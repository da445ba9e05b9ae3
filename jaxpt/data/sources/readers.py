"""Corpora in files: which files there are, their documents from any place on, and where they can be cut. No TensorFlow.

How the files of a format are read, and cut, is the matter of `jaxpt.data.tables`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxpt.config import DataConfig, SourceConfig
from jaxpt.data import tables
from jaxpt.data.tables.rows import START, NoRowsError, Offset
from jaxpt.errors import UserError

SUFFIXES = {
    suffix: name for name, format in tables.FORMATS.items() if format.cuts for suffix in format.suffixes
} | {".json": "jsonl"}  # fmt: skip
"""Suffix → format; each also as `.gz`. A .json of a corpus has an object a line (C4's), and can be cut."""
CHECKED_FILES, CHECKED_DOCUMENTS = 20, 20
"""Files of a split, and documents of each, that are read before a run starts."""
PAIR_SEPARATOR = "\x1f"
"""Stands between the two texts of a document, a text and its translation: ASCII's unit separator."""


def is_builtin(data: SourceConfig) -> bool:
    """Whether the text is the built-in corpus: by name, or because no path is given."""
    return data.source == "builtin" or (data.source == "auto" and data.path is None)


def is_files(data: SourceConfig) -> bool:
    """True if the text is in files of one of `SUFFIXES`' formats."""
    return not is_builtin(data) and data.source in ("auto", *SUFFIXES.values())


def check_path(data: SourceConfig) -> None:
    """Raises UserError where `path` is missing."""
    if data.path is None:
        raise UserError(f"data.path is missing: data.source: {data.source} needs one")


def text_files(data: SourceConfig, report: Callable[[str], None] = lambda line: None) -> dict[str, list[str]]:
    """The files of both splits of a source of text files.

    Args:
      data: `path` and `validation_path`; `source` is `auto`, `text`, `jsonl` or `parquet`.
      report: is given a line for each directory.

    Returns:
      {"train": files, "validation": files}; without a `validation_path` the latter is empty.

    Raises:
      UserError: no path, a file is missing, a glob matches nothing, or a suffix is unknown.
    """
    check_path(data)
    suffixes = list(SUFFIXES) if data.source == "auto" else [""]
    files = {"train": tables.expand(data.path, "data.path", suffixes, report), "validation": []}
    if data.validation_path:
        files["validation"] = tables.expand(data.validation_path, "data.validation_path", suffixes, report)
    for path in [*files["train"], *files["validation"]]:
        _format(path, data)
    return files


def idle_field(data: SourceConfig) -> str | None:
    """A line where `field` changes nothing, since all files are text; None elsewhere.

    Of `documents` nothing is said: recipes for text have it, and take JSONL as well.
    """
    if data.field == SourceConfig.model_fields["field"].default:
        return None
    if any(_format(path, data) != "text" for of_split in text_files(data).values() for path in of_split):
        return None
    return f"data.field: {data.field}: has no effect on text files; remove it, or name files of JSONL or Parquet"


def check_beginnings(data: DataConfig) -> None:
    """Reads the first documents of each file, of many files those of the first ones.

    Args:
      data: of text files.

    Raises:
      UserError: as `text_files` and `read`; there is no document in any file.
    """
    for of_split in text_files(data).values():
        blank = [_is_blank(path, data) for path in of_split[:CHECKED_FILES] if "://" not in path]
        if blank and all(blank) and len(blank) == len(of_split):
            raise no_documents(of_split)


def _is_blank(path: str, data: DataConfig) -> bool:
    """True if a file has no document; its first ones are read."""
    have_text = [bool(text.strip()) for _, text in itertools.islice(read(path, data, START), CHECKED_DOCUMENTS)]
    return len(have_text) < CHECKED_DOCUMENTS and not any(have_text)


def no_documents(paths: Sequence[str]) -> UserError:
    """What is said where no file of a split has a document."""
    others = f", nor in {len(paths) - 1:,} other file{'s' * (len(paths) > 2)}" if len(paths) > 1 else ""
    return UserError(f"{paths[0]}: no documents in it{others}")


def _format(path: str, data: SourceConfig) -> str:
    """The format of a file: that of `data.source`, or by its suffix."""
    if data.source != "auto":
        return data.source
    name = path.removesuffix(".gz")
    if format := next((format for suffix, format in SUFFIXES.items() if name.endswith(suffix)), None):
        return format
    if name.endswith(tuple(tables.SUFFIXES)):
        raise UserError(
            f"{path}: a table is no corpus; write its column of texts to .jsonl or .parquet (data.field), or give the "
            "recipe a task"
        )
    known = ", ".join(dict.fromkeys(SUFFIXES.values()))
    raise UserError(f"{path}: the suffix says nothing of the format; set data.source to one of {known}")


def _options(format: str, data: DataConfig) -> dict[str, Any]:
    """How a file is read, as `tables.read` takes it."""
    return {"documents": data.documents} if format == "text" else {"columns": data.fields or (data.field,)}


def read(path: str, data: DataConfig, start: Offset) -> Iterator[tuple[int, str]]:
    """A file's documents.

    Args:
      path: the file.
      data: says how it is read.
      start: where to begin.

    Yields:
      (number of the document in the file, text); "" where a field has no value. Nothing of a file without rows.

    Raises:
      UserError: names the file and line that is not as it should be.
    """
    format = _format(path, data)
    if format == "text" and data.fields is not None:
        raise UserError(f"{path}: a text file has no fields (data.fields); wants JSONL or Parquet")
    fields = ("text",) if format == "text" else data.fields or (data.field,)
    key = "data.field" if data.fields is None else "data.fields"
    with contextlib.suppress(NoRowsError):
        for row in tables.read(path, format, start=start, **_options(format, data)):
            values = [row.values.get(field) for field in fields]
            if not all(isinstance(value, str) for value in values):
                place = f"{tables.where(path, row, format)} ({key})"
                values = [_text(row, field, place) for field in fields]
            yield row.number - 1, document(values)


def _text(row: tables.Row, field: str, place: str) -> str:
    return "" if row.values.get(field, "") is None else tables.text(row, field, place)


def cuts(path: str, data: DataConfig, every: int, ascii_blanks: bool = False) -> Iterator[tuple[Offset, int]]:
    """Cuts a file into pieces of whole documents.

    Args:
      path: the file.
      data: says how it is read.
      every: bytes of text that a piece has at least, but for the last.
      ascii_blanks: of text files, as `tables.plain_text.cuts` takes it.

    Yields:
      (where a piece begins, its bytes).
    """
    format = _format(path, data)
    options = _options(format, data) | ({"ascii_blanks": ascii_blanks} if format == "text" else {})
    yield from tables.FORMATS[format].cuts(path, every, **options)


def document(texts: Sequence[str]) -> str:
    """A text, or two with `PAIR_SEPARATOR` between them; none where one of the two is missing.

    Example:
      >>> document(["the cat sat", ""])
      ''
    """
    if len(texts) == 1:
        return texts[0]
    if not all(text.strip() for text in texts):
        return ""
    return PAIR_SEPARATOR.join(text.replace(PAIR_SEPARATOR, " ") for text in texts)
