"""Parquet: columns of numbers, strings, lists and structs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from jaxpt.data.tables.files import open_file
from jaxpt.data.tables.rows import Row
from jaxpt.errors import UserError, printable


def parquet(path: str) -> Iterator[Row]:
    """Reads a Parquet file.

    Args:
      path: the file.

    Yields:
      Rows, numbered from 1, of what JSON has too: lists become lists, structs dicts, missing values None, bytes text,
      and dates what ISO 8601 has for them.

    Raises:
      UserError: no such file, none of Parquet, or a file without rows.
    """
    import pyarrow.parquet as pq

    rows = 0
    try:
        with open_file(path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True)
            names = table.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise UserError(f"{path}: two columns are named {twice[0]!r}; each wants a name of its own")
            others = [column.name for column in table.schema_arrow if not _is_plain(column.type)]
            for batch in table.iter_batches(batch_size=1024):
                for number, values in enumerate(batch.to_pylist(), rows + 1):
                    yield Row(number, values | {name: _plain(values[name]) for name in others})
                rows += batch.num_rows
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except errors() as error:
        raise unreadable(path, rows, error) from None
    if not rows:
        raise UserError(f"{path}: no rows in it")


def errors() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    import pyarrow as pa

    return pa.ArrowException, UnicodeDecodeError, OSError, EOFError, zlib.error


def unreadable(path: str, rows: int, error: Exception) -> UserError:
    """The error of a damaged file, of which so many rows were read."""
    place = f" after row {rows:,}" if rows else ""
    why = printable(str(error) or type(error).__name__, 200)
    return UserError(f"{path}: not a readable Parquet file{place} ({why}); fetch or write it again")


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
