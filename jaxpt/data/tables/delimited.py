"""TSV and CSV: a row a record, its fields named by the first row or by the caller."""

from __future__ import annotations

import csv as csv_format
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxpt.data.tables import dialect as dialects
from jaxpt.data.tables.files import INNER_CR
from jaxpt.data.tables.rows import NUMBER, Row
from jaxpt.errors import UserError


def tsv(
    path: str,
    header: Sequence[str] | None = None,
    quoted: bool = False,
    delimiter: str | None = "\t",
    encoding: str | None = None,
) -> Iterator[Row]:
    """Reads a file of tab-separated values. Quotation marks mean nothing: so are GLUE's files written.

    Args:
      path: the file, also as `.gz`.
      header: names of the columns of a file without a header row (CoLA's); None: the first row has them.
      quoted: fields may stand in quotation marks, then also with delimiters and line ends in them.
      delimiter: what separates fields; None: found by the first rows (see `dialect`).
      encoding: as Python calls it; None: found.

    Yields:
      Rows of strings, with the line where each starts. Blank lines are passed over.

    Raises:
      UserError: names the line with a wrong number of fields, a bad header or bad quotes; the file is empty.
    """
    delimiter, encoding = dialects.dialect(path, quoted, delimiter, encoding, header)
    lines = dialects.lines(path, encoding)
    records = _quoted(path, lines, delimiter) if quoted else _plain(lines, delimiter)
    names = None if header is None else _checked(header, f"{path}: header")
    first, rows = True, 0
    for number, fields in records:
        if first:
            first = False
            if names is None:
                names = _header(path, number, fields)
                continue
            if fields == names:
                continue  # the caller names the columns of a file that does so itself
        if len(fields) != len(names):
            raise UserError(
                f"{path}: line {number}: {_count(len(fields), 'field')}, wants {len(names)} ({', '.join(names)})"
                + _hint(fields, names, delimiter, quoted)
            )
        rows += 1
        yield Row(number, dict(zip(names, fields)))
    if not rows:
        expected = "a header row and rows below it" if header is None else "rows of " + ", ".join(names)
        raise UserError(f"{path}: {'is empty' if first else 'no rows below the header'}; wants {expected}")


def csv(
    path: str,
    header: Sequence[str] | None = None,
    quoted: bool = True,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Iterator[Row]:
    """Reads a file of comma-separated values, as `tsv` does; fields may stand in quotation marks.

    Many programs write `;` or tabs into a .csv: which it is, is found by the first rows.
    """
    return tsv(path, header, quoted, delimiter, encoding)


def csv_line(cells: Sequence[Any]) -> str:
    """A line of a CSV file with its end.

    Args:
      cells: texts and numbers; None is an empty cell.

    Example:
      >>> csv_line(["a, b", None, "c\\rd"])
      '"a, b",,"c\\rd"\\n'
    """
    line = io.StringIO(newline="")
    csv_format.writer(line, lineterminator="\r\n").writerow(cells)  # before Python 3.13 it quotes letters of this alone
    return line.getvalue().removesuffix("\r\n") + "\n"


def _plain(lines: Iterable[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        if line := line.rstrip("\r\n"):  # CR CR LF, too, of a text that was converted twice
            yield number, line.split(delimiter)


def _quoted(path: str, lines: Iterable[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    csv_format.field_size_limit(sys.maxsize)  # 131072 by default: a text may be longer
    reader = csv_format.reader((line for _, line in lines), delimiter=delimiter, strict=True)
    start = 1
    try:
        for fields in reader:
            if fields:
                yield start, fields
            start = reader.line_num + 1
    except csv_format.Error as error:
        place, wrong = f"{path}: line {start}", str(error)
        if wrong.startswith("new-line"):
            raise UserError(f"{place}: {INNER_CR}") from None
        wrong = "a quotation mark is never closed" if "unexpected end" in wrong else wrong
        raise UserError(f'{place}: {wrong}; a quotation mark inside of quotes is written ""') from None


def _header(path: str, number: int, fields: list[str]) -> list[str]:
    if fields[0].startswith("sep="):
        raise UserError(f"{path}: line {number}: 'sep=' is for Excel; remove this line, wants the header row")
    for name in fields:
        if NUMBER.fullmatch(name):
            columns = f"its {_count(len(fields), 'column')} ({dialects.option_key('header')})"
            raise UserError(
                f"{path}: line {number}: {name!r} is a number, no name of a column; "
                f"if this file has no header row, name {columns}"
            )
    return _checked(fields, f"{path}: line {number}")


def _checked(names: Sequence[str], place: str) -> list[str]:
    names = list(names)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{place}: two columns are named {twice[0]!r}; each wants a name of its own")
    return names


def _hint(fields: list[str], names: list[str], delimiter: str, quoted: bool) -> str:
    if any("\r" in field for field in fields):
        return f"; {INNER_CR}"
    if not quoted and any(field.startswith('"') for field in fields):
        return f"; fields in quotation marks? set quoted: true ({dialects.option_key('quoted')})"
    if hint := dialects.delimiter_hint(names):
        return hint
    if len(fields) > len(names):
        return f"; a {'tab' if delimiter == chr(9) else repr(delimiter)} inside of a field?"
    return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
