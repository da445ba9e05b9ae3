"""Parquet: columns of numbers, strings, lists and structs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from jaxpt.data.tables.files import open_file
from jaxpt.data.tables.rows import START, NoRowsError, Offset, Row
from jaxpt.errors import UserError, printable


def parquet(path: str, start: Offset = START, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Reads a Parquet file.

    Args:
      path: the file.
      start: where to begin, as `cuts` gives it.
      columns: the only ones that are read, where the file has all of them; () for all.

    Yields:
      Rows, numbered from 1, of what JSON has too: lists become lists, structs dicts, missing values None, bytes text,
      and dates what ISO 8601 has for them.

    Raises:
      UserError: no such file, none of Parquet, or a file without rows.
    """
    import pyarrow.parquet as pq

    rows = start.number
    try:
        with open_file(path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True)
            names = table.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise UserError(f"{path}: two columns are named {twice[0]!r}; each wants a name of its own")
            names = list(columns) if columns and set(columns) <= set(names) else names
            others = [name for name in names if not _is_plain(table.schema_arrow.field(name).type)]
            groups = range(start.offset, table.num_row_groups)
            for batch in table.iter_batches(batch_size=1024, columns=names, row_groups=groups):
                for number, values in enumerate(batch.to_pylist(), rows + 1):
                    yield Row(number, values | {name: _plain(values[name]) for name in others})
                rows += batch.num_rows
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except _errors() as error:
        place = f" after row {rows:,}" if rows else ""
        why = printable(str(error) or type(error).__name__, 200)
        raise UserError(f"{path}: not a readable Parquet file{place} ({why}); fetch or write it again") from None
    if not rows:
        raise NoRowsError(f"{path}: no rows in it")


def cuts(path: str, every: int, columns: Sequence[str] = ()) -> Iterator[tuple[Offset, int]]:
    """Cuts a file into groups of rows.

    Args:
      path: the file.
      every: bytes of `columns` that a piece has at least, but for the last.
      columns: the columns with the text.

    Yields:
      (where a piece begins, its bytes).
    """
    import pyarrow.parquet as pq

    try:
        with open_file(path) as file:
            meta = pq.ParquetFile(file).metadata
    except _errors():
        yield Offset(), 0  # reading says what is wrong with it
        return
    start, rows, collected = Offset(), 0, 0
    for index in range(meta.num_row_groups):
        group = meta.row_group(index)
        chunks = [group.column(i) for i in range(group.num_columns)]
        rows += group.num_rows
        collected += sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns)
        if collected >= every:
            yield start, collected
            start, collected = Offset(index + 1, 0, rows), 0
    if start.offset < meta.num_row_groups or not meta.num_row_groups:
        yield start, collected


def _errors() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    import pyarrow as pa

    return pa.ArrowException, UnicodeDecodeError, OSError, EOFError, zlib.error


def _is_plain(kind: Any) -> bool:
    """True for a type whose Python values JSON has too."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind):
        return _is_plain(kind.value_type)
    texts = types.is_string(kind) or types.is_large_string(kind)
    return texts or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
