"""Files of predictions, by suffix: csv, tsv, parquet, jsonl."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from jaxpt.errors import UserError
from jaxpt.inference.prediction_rows import Record
from jaxpt.runtime import disk


def json_lines(records: Iterable[Record]) -> Iterator[str]:
    """A line of JSON for each record."""
    for record in records:
        yield json.dumps(record, ensure_ascii=False)


def _jsonl(records: Iterable[Record], file: IO[bytes]) -> None:
    file.writelines(f"{line}\n".encode() for line in json_lines(records))


def _csv(records: Iterable[Record], file: IO[bytes]) -> None:
    records = list(records)
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, _columns(records), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in record.items()} for record in records)
    text.detach()


def _tsv(records: Iterable[Record], file: IO[bytes]) -> None:
    """Without quotes, as `jaxpt` reads such files and GLUE's are written: a tab or a line end becomes a space."""
    records = list(records)
    columns = _columns(records)
    for row in [dict(zip(columns, columns)), *records]:
        cells = (row.get(name) for name in columns)
        line = "\t".join("" if x is None else re.sub(r"\r\n|[\t\r\n]", " ", str(_cell(x))) for x in cells)
        file.write(f"{line}\n".encode())


def _parquet(records: Iterable[Record], file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = list(records)
    columns = {name: [record.get(name) for record in records] for name in _columns(records)}
    pq.write_table(pa.table({name: _array(values) for name, values in columns.items()}), file)


def _array(values: list[Any]) -> Any:
    """A column; one of several types, or of objects without a field, becomes text."""
    import pyarrow as pa

    try:
        array = pa.array(values)
        if not _has_empty_struct(array.type):
            return array
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    return pa.array([None if value is None else str(_cell(value)) for value in values])


def _has_empty_struct(kind: Any) -> bool:
    """Whether a type of Arrow has, at any depth, objects without a field, which Parquet does not hold."""
    import pyarrow as pa

    fields = [kind.field(i).type for i in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not fields) or any(map(_has_empty_struct, fields))


def _columns(records: Iterable[Record]) -> list[str]:
    """The columns of all records: those of the input in the order of their first row, then the others."""
    return list(dict.fromkeys(name for record in records for name in record))


def _cell(value: Any) -> Any:
    """A value as a table has it: lists and objects as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else value


WRITERS: dict[str, Callable[[Iterable[Record], IO[bytes]], None]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
}
"""Suffix → what writes such a file."""


def is_flat(out: Path | None) -> bool:
    """True if a file has a column for each value."""
    return out is not None and out.suffix != ".jsonl"


def check_out(out: Path) -> None:
    """Raises UserError where a file of predictions cannot be written: before anything runs."""
    if out.suffix not in WRITERS:
        *others, last = WRITERS
        raise UserError(f"--out: {out}: unknown suffix {out.suffix!r}; expected {', '.join(others)} or {last}")
    if out.exists():
        raise UserError(f"{out}: already exists; choose a new file")
    if not out.parent.is_dir():
        raise UserError(f"--out: {out.parent}: no such directory; create it first")


def write(out: Path, records: Iterable[Record]) -> None:
    """Writes a file in the format of its suffix; it appears when it is complete."""
    with disk.whole_file(out) as file:
        WRITERS[out.suffix](records, file)
