"""Parquet: columns of numbers, strings, lists and structs."""

from __future__ import annotations

from collections.abc import Iterator

from jaxpt.errors import UserError
from jaxpt.tables.files import open_file
from jaxpt.tables.rows import Row


def parquet(path: str) -> Iterator[Row]:
    """Reads a Parquet file.

    Args:
      path: the file.

    Yields:
      Rows, numbered from 1. Lists become lists, structs dicts, missing values None.

    Raises:
      UserError: no such file, none of Parquet, or a file without rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    try:
        with open_file(path) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=1024):
                for number, values in enumerate(batch.to_pylist(), rows + 1):
                    yield Row(number, values)
                rows += batch.num_rows
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (pa.ArrowException, UnicodeDecodeError, OSError, EOFError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
    if not rows:
        raise UserError(f"{path}: no rows in it")
