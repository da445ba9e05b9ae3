"""Files of text, JSONL and Parquet: their documents, from any place on, and the places where they can be cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxpt.config import DataConfig
from jaxpt.data._tf import tf
from jaxpt.data.formats import file_format
from jaxpt.data.tables.files import open_file, raw_lines, read_lines
from jaxpt.data.tables.parquet import errors, unreadable
from jaxpt.errors import UserError

_GZIP_RATIO = 3  # text to its .gz
_GZIP_PIECES = 16  # a piece of a .gz is reached by unpacking all before it


PAIR_SEPARATOR = "\x1f"
"""Stands between the two texts of a document, a text and its translation: ASCII's unit separator."""


class Offset(NamedTuple):
    """A place in a file between two documents."""

    offset: int = 0
    """Bytes of (unpacked) text before it; row groups of a Parquet file; any number for other sources."""
    line: int = 0
    """Lines before it."""
    number: int = 0
    """Documents before it."""


def read(path: str, data: DataConfig, mark: Offset) -> Iterator[tuple[int, str]]:
    """A file's documents.

    Args:
      path: the file.
      data: says how it is read.
      mark: where to begin.

    Yields:
      (number of the document in the file, text).

    Raises:
      UserError: names the file and line that is not as it should be.
    """
    kind, fields = file_format(path, data), data.fields or (data.field,)
    if kind == "parquet":
        return _parquet(path, fields, mark)
    if kind == "jsonl":
        return _jsonl(path, fields, mark)
    if data.fields is not None:
        raise UserError(f"{path}: a text file has no fields (data.fields); wants JSONL or Parquet")
    if data.documents == "file":
        return _whole(path)
    return _blocks(path, mark) if data.documents == "blank_line" else _lines(path, mark)


def size(path: str) -> int:
    """Bytes of text in a file, about."""
    packed = tf.io.gfile.stat(path).length
    return packed * _GZIP_RATIO if path.endswith(".gz") else packed


def marks(path: str, data: DataConfig, every: int) -> Iterator[tuple[Offset, int]]:
    """Cuts a file into pieces of whole documents.

    Args:
      path: the file.
      data: says how it is read.
      every: bytes of text that a piece has at least, but for the last.

    Yields:
      (where a piece begins, its bytes).
    """
    total = size(path)
    kind = file_format(path, data)
    if kind == "parquet":
        yield from _row_groups(path, data.fields or (data.field,), every)
    elif total <= every or (kind == "text" and data.documents == "file"):
        yield Offset(), total
    else:
        if path.endswith(".gz"):
            every = max(every, total // _GZIP_PIECES)
        yield from _line_marks(path, every, blocks=kind == "text" and data.documents == "blank_line")


def _line_marks(path: str, every: int, blocks: bool) -> Iterator[tuple[Offset, int]]:
    start, offset, documents, inside = Offset(), 0, 0, False
    for number, line in enumerate(raw_lines(path), 1):
        offset += len(line)
        if blocks:
            blank = not line.strip()
            documents += blank and inside
            inside = not blank
        else:
            documents = number
        if offset - start.offset >= every and not inside:
            yield start, offset - start.offset
            start = Offset(offset, number, documents)
    if offset > start.offset or not offset:
        yield start, offset - start.offset


def _lines(path: str, mark: Offset) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file, its number from 0."""
    for number, line in read_lines(path, mark.offset, mark.line):
        yield number - 1, line.rstrip("\r\n")


def _blocks(path: str, mark: Offset) -> Iterator[tuple[int, str]]:
    """Runs of lines between blank ones."""
    block: list[str] = []
    number = mark.number
    for _, line in _lines(path, mark):
        if line.strip():
            block.append(line)
        elif block:
            yield number, "\n".join(block)
            block, number = [], number + 1
    if block:
        yield number, "\n".join(block)


def _whole(path: str) -> Iterator[tuple[int, str]]:
    """All lines of a file."""
    yield 0, "\n".join(line for _, line in _lines(path, Offset()))


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


def _jsonl(path: str, fields: Sequence[str], mark: Offset) -> Iterator[tuple[int, str]]:
    for number, line in _lines(path, mark):
        if not line.strip():
            continue
        where = f"{path}: line {number + 1}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not JSON ({error}); wants one object a line") from None
        if not isinstance(record, dict):
            raise UserError(f"{where}: wants a JSON object, got {type(record).__name__}")
        for field in fields:
            if field not in record:
                raise UserError(
                    f"{where}: no field {field!r} ({_key(fields)}); it has {', '.join(map(repr, record)) or 'none'}"
                )
            if not isinstance(record[field], str):
                raise UserError(f"{where}: field {field!r} wants a string, got {type(record[field]).__name__}")
        text = document([record[field] for field in fields])
        yield number, text.encode("utf-8", "replace").decode()  # JSON can spell half a surrogate pair


def _key(fields: Sequence[str]) -> str:
    """The setting that names them."""
    return "data.field" if len(fields) == 1 else "data.fields"


def _parquet(path: str, fields: Sequence[str], mark: Offset) -> Iterator[tuple[int, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = mark.number
    try:
        with open_file(path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True)
            names = table.schema_arrow.names
            for field in fields:
                if field not in names:
                    has = ", ".join(map(repr, names))
                    raise UserError(f"{path}: no column {field!r} ({_key(fields)}); it has {has}")
                kind = table.schema_arrow.field(field).type
                if pa.types.is_dictionary(kind):
                    kind = kind.value_type
                if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                    raise UserError(f"{path}: column {field!r} wants strings, it holds {kind}")
            groups = range(mark.offset, table.num_row_groups)
            for batch in table.iter_batches(batch_size=1024, columns=list(fields), row_groups=groups):
                for values in zip(*(batch.column(field).to_pylist() for field in fields)):
                    yield number, document([value or "" for value in values])
                    number += 1
    except errors() as error:
        raise unreadable(path, number, error) from None


def _row_groups(path: str, fields: Sequence[str], every: int) -> Iterator[tuple[Offset, int]]:
    import pyarrow.parquet as pq

    try:
        with open_file(path) as file:
            meta = pq.ParquetFile(file).metadata
    except errors():
        yield Offset(), 0  # reading says what is wrong with it
        return
    start, rows, collected = Offset(), 0, 0
    for index in range(meta.num_row_groups):
        group = meta.row_group(index)
        columns = [group.column(i) for i in range(group.num_columns)]
        rows += group.num_rows
        collected += sum(c.total_uncompressed_size for c in columns if c.path_in_schema in fields)
        if collected >= every:
            yield start, collected
            start, collected = Offset(index + 1, 0, rows), 0
    if start.offset < meta.num_row_groups or not meta.num_row_groups:
        yield start, collected
