"""Rows for `jaxpt predict`, and the records that it makes of them: the row's columns, then what was predicted.

id, the columns of the input, label, probability, label_2, probability_2, …      csv, tsv, parquet
id, the columns of the input, label, probability, probabilities: {label: p}      jsonl
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxpt.data import tables
from jaxpt.data.labelled import examples
from jaxpt.data.labelled.files import RowFile
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import Answer, LocatedRow, Task
from jaxpt.errors import UserError, listed

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
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
        raise UserError("--text: is not UTF-8")
    if file is not None and file != "-":
        rows = examples.read(task, [RowFile(path) for path in tables.expand(file, "FILE")])
    else:
        located = [(f"--text {n}", text) for n, text in enumerate(texts, 1)] or _lines_of_stdin()
        column = _text_column(task, "--text" if texts else "stdin")
        rows = [LocatedRow(Row(n, {column: text}), where, (0, n)) for n, (where, text) in enumerate(located, 1)]
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
    try:
        lines = [(f"stdin: line {n}", line.rstrip("\r\n")) for n, line in enumerate(sys.stdin, 1)]
    except UnicodeDecodeError as error:
        raise UserError(f"stdin: not UTF-8 ({error.reason}); expected a text a line") from None
    return [(where, line) for where, line in lines if line.strip()]


def records(
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
      `id` (the row's number from 0, or the file's id column), the row's columns, and the answer; a field of the answer
      that is also a column of the input has the prefix `predicted_`.
    """
    columns = dict.fromkeys(itertools.chain.from_iterable(row.row.values for row in rows))
    for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        values = {"id": tables.row_id(row.row, task.id, default=number), **row.row.values}
        if isinstance(row.row.values.get("id"), list):  # CoNLL-U's, which number words
            values["id"] = tables.row_id(row.row, task.id, default=number)
        predicted = with_top_k(answer, top_k, is_flat)
        repeated = [name for name in _REPEATED if name in columns]
        fields = {name: value for name, value in predicted.items() if name not in repeated}
        yield values | {f"predicted_{name}" if name in columns else name: value for name, value in fields.items()}


def with_top_k(answer: Answer, top_k: int, is_flat: bool = False) -> Answer:
    """An answer with the likeliest labels alone, and numbers of `DIGITS` digits.

    Example:
      >>> with_top_k({"label": "b", "probabilities": {"a": 0.25, "b": 0.7, "c": 0.05}}, 2)
      {'label': 'b', 'probability': 0.7, 'probabilities': {'b': 0.7, 'a': 0.25}}
      >>> with_top_k({"label": "b", "probabilities": {"a": 0.25, "b": 0.7, "c": 0.05}}, 2, is_flat=True)
      {'label': 'b', 'probability': 0.7, 'label_2': 'a', 'probability_2': 0.25}
      >>> with_top_k({"labels": ["b"], "probabilities": {"a": 0.25, "b": 0.7}}, 2, is_flat=True)
      {'labels': 'b', 'label_1': 'b', 'probability_1': 0.7, 'label_2': 'a', 'probability_2': 0.25}
    """
    probabilities = answer.get("probabilities")
    if not isinstance(probabilities, dict):
        return {name: _rounded(value) for name, value in answer.items()}
    best = sorted(probabilities.items(), key=lambda pair: -pair[1])[:top_k]
    fields = {name: _rounded(value) for name, value in answer.items() if name != "probabilities"}
    has_one = "label" in answer
    if has_one:
        fields["probability"] = _rounded(probabilities[str(answer["label"])])
    if not is_flat:
        return fields | {"probabilities": {label: _rounded(p) for label, p in best}}
    if isinstance(fields.get("labels"), list):
        fields["labels"] = "|".join(fields["labels"])
    for place, (label, p) in list(enumerate(best, 1))[has_one:]:
        fields |= {f"label_{place}": label, f"probability_{place}": _rounded(p)}
    return fields


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(element) for element in value]
    return {name: _rounded(member) for name, member in value.items()} if isinstance(value, dict) else value
