"""Files of `jaxpt predict`: rows that it reads, and rows with what was predicted, by suffix: csv, tsv, parquet, jsonl.

id, the columns of the input, label, probability, label_2, probability_2, …      csv, tsv, parquet
id, the columns of the input, label, probability, probabilities: {label: p}      jsonl

Where the input has a column `id` that is not the rows' id (`task.id` names another one, or it is null), that stands in
`row_id`, and no column of the input changes.

A NaN of the input is null, in CSV and TSV an empty cell, and an infinity is the text Infinity or -Infinity; a column of
Parquet keeps both.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from jaxpt.data import tables
from jaxpt.data.labelled import examples
from jaxpt.data.labelled.files import RowFile
from jaxpt.data.tables import Row
from jaxpt.data.tables.delimited import csv_line
from jaxpt.data.tasks.base import Answer, LocatedRow, Task
from jaxpt.errors import UserError, listed
from jaxpt.inference import outside
from jaxpt.inference.files import without_nan
from jaxpt.runtime import disk

Record = dict[str, Any]

DIGITS = 6
"""Significant digits of numbers that are written."""
_REPEATED = ("tokens",)
"""Fields of an answer that repeat the input."""


def read_rows(task: Task, file: str | None, texts: Sequence[str]) -> list[LocatedRow]:
    """The rows to answer.

    Args:
      task: the run's.
      file: rows as in training; "-" for a text a line on stdin.
      texts: texts instead of a file.

    Raises:
      UserError: both or none of them are given, there are no rows, or the task reads more than one text.
    """
    if file is not None and texts:
        raise UserError("--text and FILE: give one of them")
    if file is None and not texts and (sys.stdin is None or sys.stdin.isatty()):
        raise UserError("nothing to predict: give FILE, --text TEXT, or a text a line on stdin")
    for text in texts:
        outside.check_utf_8(text, "--text")
    if file is not None and file != "-":
        rows = examples.read(task, [RowFile(path) for path in tables.expand(file, "FILE")])
    else:
        located = [(f"--text {n}", text) for n, text in enumerate(texts, 1)] or _lines_of_stdin()
        column = _text_column(task, "--text" if texts else "stdin")
        rows = [LocatedRow(Row(n, {column: text}), where, (0, n), n - 1) for n, (where, text) in enumerate(located, 1)]
    if not rows:
        raise UserError(f"{'stdin' if file in (None, '-') else file}: has no rows")
    return rows


def _text_column(task: Task, source: str) -> str:
    """The column of a task that reads one text."""
    columns = task.columns()
    if len(columns) != 1:
        raise UserError(f"{source}: gives one text, and the task reads columns {listed(columns, 8)}; give a FILE")
    return columns[0]


def _lines_of_stdin() -> list[tuple[str, str]]:
    lines = [(f"stdin: line {n}", line.rstrip("\r\n")) for n, line in enumerate(outside.lines_of_stdin(), 1)]
    return [(where, line) for where, line in lines if line.strip()]


def to_records(
    task: Task, rows: Sequence[LocatedRow], answers: Iterable[Answer], top_k: int, is_flat: bool
) -> Iterator[Record]:
    """What is written of each row.

    Args:
      task: the run's.
      rows: the rows.
      answers: of each row.
      top_k: labels whose probabilities are written.
      is_flat: a column for each value, for tables; else nested, as JSON has them.

    Yields:
      `id` (the row's number from 0, or the file's id column), the row's columns, and the answer. The id is in `row_id`
      where the input has other values in a column `id`. A field of the answer that is also a column of the input has
      the prefix `predicted_`, as often as it takes to be no column.
    """
    columns = dict.fromkeys(itertools.chain.from_iterable(row.row.values for row in rows))
    ids = [task.row_id(row) for row in rows]
    is_column = "id" not in columns or ids == [row.row.values.get("id") for row in rows]
    id_name = "id" if is_column else _free_name("row_id", columns)
    for row, row_id, answer in zip(rows, ids, answers, strict=True):
        values = {id_name: row_id, **row.row.values}
        predicted = with_top_k(answer, top_k, is_flat)
        repeated = [name for name in _REPEATED if name in columns]
        fields = {name: value for name, value in predicted.items() if name not in repeated}
        yield values | {_free_name(name, columns): value for name, value in fields.items()}


def _free_name(name: str, columns: Container[str]) -> str:
    """The name of a field of an answer that is no column of the input."""
    while name in columns:
        name = f"predicted_{name}"
    return name


def to_likeliest(answer: Answer, top_k: int | None) -> Answer:
    """An answer with the probability of its label, and the probabilities of the likeliest labels alone.

    Args:
      answer: of a task; one without a probability of each label is returned as it is.
      top_k: how many labels; None: all, in the task's order.

    Example:
      >>> to_likeliest({"label": "b", "probabilities": {"a": 0.25, "b": 0.7, "c": 0.05}}, 2)
      {'label': 'b', 'probability': 0.7, 'probabilities': {'b': 0.7, 'a': 0.25}}
    """
    probabilities = answer.get("probabilities")
    if not isinstance(probabilities, dict):
        return answer
    fields = {name: value for name, value in answer.items() if name != "probabilities"}
    if "label" in answer:
        fields["probability"] = probabilities[str(answer["label"])]
    likeliest = sorted(probabilities.items(), key=lambda pair: -pair[1])[:top_k]
    return fields | {"probabilities": probabilities if top_k is None else dict(likeliest)}


def with_top_k(answer: Answer, top_k: int, is_flat: bool = False) -> Answer:
    """An answer with the likeliest labels alone, and numbers of `DIGITS` digits.

    Args:
      answer: of a task.
      top_k: as of `to_likeliest`.
      is_flat: a field for each label and probability, for tables.

    Example:
      >>> with_top_k({"label": "b", "probabilities": {"a": 0.25, "b": 0.7, "c": 0.05}}, 2)
      {'label': 'b', 'probability': 0.7, 'probabilities': {'b': 0.7, 'a': 0.25}}
      >>> with_top_k({"label": "b", "probabilities": {"a": 0.25, "b": 0.7, "c": 0.05}}, 2, is_flat=True)
      {'label': 'b', 'probability': 0.7, 'label_2': 'a', 'probability_2': 0.25}
      >>> with_top_k({"labels": ["b"], "probabilities": {"a": 0.25, "b": 0.7}}, 2, is_flat=True)
      {'labels': 'b', 'label_1': 'b', 'probability_1': 0.7, 'label_2': 'a', 'probability_2': 0.25}
    """
    fields = _rounded(to_likeliest(answer, top_k))
    if not is_flat or not isinstance(fields.get("probabilities"), dict):
        return fields
    best = fields.pop("probabilities").items()
    if isinstance(fields.get("labels"), list):
        fields["labels"] = "|".join(fields["labels"])
    for place, (label, p) in list(enumerate(best, 1))["label" in answer :]:
        fields |= {f"label_{place}": label, f"probability_{place}": p}
    return fields


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(element) for element in value]
    return {name: _rounded(member) for name, member in value.items()} if isinstance(value, dict) else value


# ---- files, by suffix -----------------------------------------------------------------------------------------------


def json_lines(records: Iterable[Record]) -> Iterator[str]:
    """A line of JSON for each record."""
    for record in records:
        yield _json(record)


def _json(value: Any) -> str:
    return json.dumps(without_nan(value), ensure_ascii=False, allow_nan=False)


def _jsonl(records: Iterable[Record], file: IO[bytes]) -> None:
    file.writelines(f"{line}\n".encode() for line in json_lines(records))


def _csv(records: Iterable[Record], file: IO[bytes]) -> None:
    records = list(records)
    columns = _columns(records)
    for row in [dict(zip(columns, columns)), *records]:
        file.write(csv_line([_cell(row.get(name)) for name in columns]).encode())


def _tsv(records: Iterable[Record], file: IO[bytes]) -> None:
    """Without quotes, as `jaxpt` reads such files and GLUE's are written: a tab or a line end becomes a space."""
    records = list(records)
    columns = _columns(records)
    for row in [dict(zip(columns, columns)), *records]:
        cells = (_cell(row.get(name)) for name in columns)
        line = "\t".join("" if x is None else re.sub(r"\r\n|[\t\r\n]", " ", str(x)) for x in cells)
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
    cells = map(_cell, values)
    return pa.array([None if cell is None else str(cell) for cell in cells])


def _has_empty_struct(kind: Any) -> bool:
    """Whether a type of Arrow has, at any depth, objects without a field, which Parquet does not hold."""
    import pyarrow as pa

    fields = [kind.field(i).type for i in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not fields) or any(map(_has_empty_struct, fields))


def _columns(records: Iterable[Record]) -> list[str]:
    """The columns of all records: those of the input in the order of their first row, then the others."""
    return list(dict.fromkeys(name for record in records for name in record))


def _cell(value: Any) -> Any:
    """A value as a table of text has it: lists and objects as JSON."""
    return _json(value) if isinstance(value, list | dict | bool) else without_nan(value)


WRITERS: dict[str, Callable[[Iterable[Record], IO[bytes]], None]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
}
"""Suffix → what writes such a file."""


def is_table(out: Path | None) -> bool:
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
