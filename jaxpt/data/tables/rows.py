"""A row of a labelled file, and the values of its columns."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from jaxpt.config.kinds import nearest
from jaxpt.data.tables.dialect import delimiter_hint
from jaxpt.errors import UserError, listed, shown

T = TypeVar("T")
ID_COLUMNS = ("id", "idx", "index", "ind", "pairID", "sent_id")
"""Columns that name a row; a list is none of it (CoNLL-U's `id` numbers words)."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_STRING = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PYTHON_STRINGS = re.compile(rf"\[\s*{_STRING}(?:\s*,\s*{_STRING})*\s*,?\s*\]", re.DOTALL)
_QUOTED = re.compile(r"""\[(['"]).*(['"]|\1,.*)\]""", re.DOTALL)
_NUMBERS_WITHOUT_COMMAS = re.compile(rf"\[\s*{NUMBER.pattern}(\s+{NUMBER.pattern})+\s*\]")
_FLAGS = dict.fromkeys(("1", "1.0", "true", "yes"), True) | dict.fromkeys(("", "0", "0.0", "false", "no"), False)


class Row(NamedTuple):
    """A record of a labelled file."""

    number: int
    """Its place in the file, from 1: the line where it starts, or the number of the row where a file has no lines."""
    values: dict[str, Any]
    """Column → value, as the file has it."""


class Offset(NamedTuple):
    """A place in a file between two documents."""

    offset: int = 0
    """Bytes of (unpacked) text before it; row groups of a Parquet file; any number for other sources."""
    line: int = 0
    """Lines before it."""
    number: int = 0
    """Documents before it."""


START = Offset()


class NoRowsError(UserError):
    """A file has no rows, which may be right where it is one of several."""


def column(row: Row, name: str, place: str = "") -> Any:
    """The value of a column.

    Args:
      row: of any file.
      name: the column; "translation.de" is the field `de` of the column `translation`.
      place: where the row stands (`where(path, row)`), for messages.

    Returns:
      The value as the file has it.

    Raises:
      UserError: there is no such column; the columns that there are, and the nearest ones.

    Example:
      >>> column(Row(1, {"sentence": "fine", "label": "1"}), "label")
      '1'
      >>> column(Row(2, {"sentence": "fine", "label": "1"}), "labels", "dev.tsv: line 2")
      Traceback (most recent call last):
      jaxpt.errors.UserError: dev.tsv: line 2: no column 'labels'; it has sentence, label; did you mean label?
    """
    values = row.values
    if name in values:
        return values[name]
    outer, dot, inner = name.partition(".")
    if dot and isinstance(values.get(outer), dict):
        return column(Row(row.number, values[outer]), inner, f"{_prefix(place)}column {outer!r}")
    columns = [*map(str, values)]
    hint = delimiter_hint(columns) or nearest(name, columns, "")
    raise UserError(f"{_prefix(place)}no column {name!r}; it has {', '.join(columns) or 'none'}{hint}")


def text(row: Row, name: str, place: str = "", as_text: bool = False) -> str:
    """The value of a column that holds text.

    Args:
      row: of any file.
      name: the column.
      place: where the row stands, for messages.
      as_text: numbers and truth values are text too, as JSON spells them.

    Returns:
      The text, exactly as the file has it.

    Raises:
      UserError: no such column, or no text in it.

    Example:
      >>> text(Row(1, {"question": "who?", "year": 1990}), "year", as_text=True)
      '1990'
    """
    value = column(row, name, place)
    if isinstance(value, str):
        return value
    if as_text and isinstance(value, bool | int | float):
        return json.dumps(value)
    raise UserError(f"{_prefix(place)}column {name!r} wants text, got {shown(value)}")


def label(value: Any) -> str:
    """How a label is spelled, whatever the format of its file: 1 in JSON is "1" in TSV, true is "true".

    Args:
      value: of a label column.

    Returns:
      The label; "" where there is none.

    Example:
      >>> label(1), label("1"), label(True), label(None)
      ('1', '1', 'true', '')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def flag(value: Any) -> bool | None:
    """A truth value, whatever the format of its file; None where it is none.

    Args:
      value: of a column.

    Example:
      >>> flag(True), flag("false"), flag(0), flag("joy")
      (True, False, False, None)
    """
    return _FLAGS.get(label(value).strip().lower())


def parse_list(value: Any, place: str, numbers: bool = True, objects: bool = False) -> Any:
    """The list that a cell of a table holds as text: JSON, as `jaxpt predict` writes it, or strings as Python writes
    them (pandas).

    Args:
      value: of a column.
      place: of the column, for messages.
      numbers: a list without a string is a list; else it is text, such as "[1]".
      objects: an object of JSON is read as well.

    Returns:
      The list; any other value as it is.

    Raises:
      UserError: a list in another form, such as NumPy's, without commas.

    Example:
      >>> parse_list('["EU", "rejects"]', ""), parse_list("['EU', 'rejects']", ""), parse_list("EU rejects", "")
      (['EU', 'rejects'], ['EU', 'rejects'], 'EU rejects')
    """
    text = value.strip() if isinstance(value, str) else ""
    if f"{text[:1]}{text[-1:]}" not in ("[]", "{}") or (text[0] == "{" and not objects):
        return value
    with contextlib.suppress(ValueError, SyntaxError, RecursionError):
        parsed = ast.literal_eval(text) if _PYTHON_STRINGS.fullmatch(text) else json.loads(text)
        is_wanted = numbers or isinstance(parsed, dict) or any(isinstance(entry, str) for entry in parsed)
        return parsed if is_wanted else value
    if _QUOTED.fullmatch(text) or (numbers and _NUMBERS_WITHOUT_COMMAS.fullmatch(text)):
        raise UserError(f'{place} wants a list of JSON, such as ["a", "b"], got {shown(value)}')
    return value


class UnknownLabelError(UserError):
    """A label of a row is none of its task's."""


def check_label(name: str, labels: Sequence[str], where: str, what: str = "label") -> None:
    """Raises UnknownLabelError if a label is none of a task's; the nearest right one is given.

    Args:
      name: of a row.
      labels: the task's.
      where: file and line.
      what: how the message calls it.
    """
    if name not in labels:
        raise UnknownLabelError(f"{where}: {what} {name!r} is none of task.labels{nearest(name, list(labels))}")


def check_labels(labels: Sequence[str] | None) -> None:
    """Raises ValueError where the labels of a recipe are fewer than two, or one of them is given twice."""
    if labels is not None and len(labels) < 2:
        raise ValueError(f"labels: wants two or more, got {len(labels)}")
    if labels is not None and len(set(labels)) < len(labels):
        raise ValueError(f"labels: {max(labels, key=labels.count)!r} is given twice")


class EmptyLabelError(UserError):
    """A row has no label, or no number."""


def empty_label(where: str, column: str, wants: str = "a label") -> EmptyLabelError:
    """What is said of a row whose column has no label."""
    return EmptyLabelError(f"{where}: column {column!r} (task.label) is empty; wants {wants}, or leave out the row")


def check_empty_labels(empty: Sequence[tuple[str, EmptyLabelError]]) -> None:
    """Raises UserError where rows of a file have no label: the first one, how many there are, and the first few.

    Args:
      empty: (file and line, what was raised of this row).
    """
    if empty:
        rows = [where.rpartition(": ")[2] for where, _ in empty]
        raise UserError(str(empty[0][1]) + (f"; {len(rows):,} such rows: {listed(rows)}" if len(rows) > 1 else ""))


def label_of(row: Row, name: str, where: str) -> str:
    """The label of a row, whatever the format of its file: 1 and "1" are the same.

    Raises:
      UserError: there is no such column.
      EmptyLabelError: it is empty.
    """
    spelled = label(column(row, name, where)).strip()
    if not spelled:
        raise empty_label(where, name)
    return spelled


def row_id(row: Row, name: str | None = None, default: Any = None) -> Any:
    """What a row is called in files of predictions.

    Args:
      row: of any file.
      name: the column that says it; by default the first of `ID_COLUMNS` with a value. An empty cell has none.
      default: what a row without it is called; by default its number.

    Example:
      >>> row_id(Row(3, {"idx": 7})), row_id(Row(3, {"text": "a"})), row_id(Row(3, {"guid": "x"}), "guid")
      (7, 3, 'x')
    """
    values = (row.values.get(column) for column in (ID_COLUMNS if name is None else (name,)))
    number = row.number if default is None else default
    return next((value for value in values if value not in (None, "") and not isinstance(value, list)), number)


def in_order(names: Iterable[str]) -> list[str]:
    """Labels in numerical order if all are numbers, else in alphabetical order.

    Example:
      >>> in_order(["10", "9", "-1"]), in_order(["no", "10", "9"])
      (['-1', '9', '10'], ['10', '9', 'no'])
    """
    names = list(names)
    if all(NUMBER.fullmatch(name) for name in names):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def chunks(elements: Iterable[T], size: int = 256) -> Iterator[list[T]]:
    """Rows or documents in lists of `size`, which are tokenized together."""
    iterator = iter(elements)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _prefix(place: str) -> str:
    return f"{place}: " if place else ""
