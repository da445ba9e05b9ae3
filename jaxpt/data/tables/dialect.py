"""How a CSV or TSV file is written: what separates its fields, and its encoding, where nobody says so."""

from __future__ import annotations

import codecs
import csv
import functools
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from jaxpt import errors
from jaxpt.data.tables.files import (
    DAMAGE,
    LIKE_UTF_16,
    MAX_LINE,
    damaged,
    is_like_utf_16,
    open_file,
    raw_lines,
    read_lines,
)
from jaxpt.errors import UserError

DELIMITERS = (",", ";", "\t", "|")
"""Those that are looked for in a .csv, the usual one first."""
_SAMPLE_LINES = 200
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # no text of one byte a character has these
_NAMES = {"cp1252": "Windows-1252 (Latin-1)", "utf-16": "UTF-16"}


def _known_encoding(name: str) -> str:
    try:
        "a".encode(name)
    except (LookupError, UnicodeError):
        raise ValueError(f"no encoding {name!r}; expected one of Python's, such as utf-8, latin-1 or utf-16") from None
    return codecs.lookup(name).name


Delimiter = Annotated[str, Field(min_length=1, max_length=1)]
"""A character between two fields."""
Encoding = Annotated[str, AfterValidator(_known_encoding)]
"""An encoding that Python has."""


class Dialect(NamedTuple):
    """How a file is written."""

    delimiter: str
    encoding: str
    """As Python calls it."""


def dialect(
    path: str, quoted: bool, delimiter: str | None, encoding: str | None, header: Sequence[str] | None = None
) -> Dialect:
    """Finds how a file is written. What is unusual is noted, once for each file.

    UTF-16 is recognised by its byte order mark. A file that is not UTF-8 is Windows-1252, the superset of Latin-1 in
    which spreadsheets save, unless other lines of it are UTF-8. The delimiter is the first of `DELIMITERS` that divides
    the header and the rows below it into equally many fields.

    Args:
      path: the file.
      quoted: fields may stand in quotation marks.
      delimiter: what separates fields, where it is known.
      encoding: likewise.
      header: the names of the columns, of a file without a header row.

    Raises:
      UserError: the file has lines in two encodings, or is no text.
    """
    stat = os.stat(path) if os.path.isfile(path) else None
    version = (stat.st_size, stat.st_mtime_ns) if stat else None
    return _dialect(path, quoted, delimiter, encoding, len(header) if header else None, version)


@functools.lru_cache(maxsize=1024)
def _dialect(
    path: str, quoted: bool, delimiter: str | None, encoding: str | None, columns: int | None, version: object
) -> Dialect:
    result = Dialect(delimiter or DELIMITERS[0], encoding or _encoding(path))
    if delimiter is None:
        # A CR that ends no line is no matter of delimiters; who reads the file says it.
        sample = [line.replace("\r", "") for _, line in itertools.islice(lines(path, result.encoding), _SAMPLE_LINES)]
        result = result._replace(delimiter=_delimiter(sample, quoted, columns))
    unusual = []
    if delimiter is None and result.delimiter != ",":
        unusual.append(f"fields separated by {'tabs' if result.delimiter == chr(9) else repr(result.delimiter)}")
    if encoding is None and result.encoding != "utf-8":
        unusual.append(f"encoding {_NAMES[result.encoding]}")
    if unusual:
        errors.note(f"{path}: {', '.join(unusual)}")
    return result


def option_key(option: str) -> str:
    """How a recipe calls an option of tables, for messages."""
    return f"task.{option}, of a task of the harness data.{option}"


def delimiter_hint(columns: Sequence[str]) -> str:
    """The end of a message about a header that was read as one column, and has another delimiter in it.

    Example:
      >>> delimiter_hint(["text;label"]).partition(" (")[0]
      '; the header looks separated by ";": set delimiter: ";"'
      >>> delimiter_hint(["text", "label"])
      ''
    """
    counts = {delimiter: columns[0].count(delimiter) for delimiter in DELIMITERS} if len(columns) == 1 else {}
    delimiter = max(counts, key=lambda delimiter: counts[delimiter], default="")
    if not counts.get(delimiter):
        return ""
    spelled = json.dumps(delimiter)
    named = "tabs" if delimiter == "\t" else spelled
    return f"; the header looks separated by {named}: set delimiter: {spelled} ({option_key('delimiter')})"


def lines(path: str, encoding: str) -> Iterator[tuple[int, str]]:
    """The lines of a file in any encoding, numbered from 1, with their ends; as `read_lines`."""
    if encoding == "utf-8":
        yield from read_lines(path)
    elif _is_wide(encoding):
        yield from _wide_lines(path, encoding)
    else:
        for number, data in enumerate(raw_lines(path), 1):
            try:
                yield number, data.decode(encoding)
            except UnicodeDecodeError as error:
                raise _undecodable(path, number, encoding, data[error.start]) from None


def _is_wide(encoding: str) -> bool:
    """True if a line does not end in the one byte "\\n"."""
    return "\n".encode(encoding) != b"\n"


def _wide_lines(path: str, encoding: str) -> Iterator[tuple[int, str]]:
    next(raw_lines(path), None)  # which says what is wrong with a file that cannot be opened
    with open_file(path) as file:
        text = io.TextIOWrapper(file, encoding, newline="\n")
        for number in itertools.count(1):
            try:
                line = text.readline(MAX_LINE + 1)
            except UnicodeError:
                raise UserError(f"{path}: line {number}: not {encoding}; set the right encoding") from None
            except DAMAGE as error:
                raise damaged(path, error, number - 1) from None
            if not line:
                return
            if len(line) > MAX_LINE:
                raise UserError(f"{path}: line {number:,}: longer than {MAX_LINE >> 20} MB; wants shorter texts")
            yield number, line.removeprefix("\ufeff") if number == 1 else line


def _undecodable(path: str, number: int, encoding: str, byte: int) -> UserError:
    return UserError(f"{path}: line {number}: not {encoding} (byte 0x{byte:02x}); set the right encoding")


def _encoding(path: str) -> str:
    """The encoding of a file: of one pass over its lines."""
    num_utf8, foreign = 0, None  # foreign: the first line that is not UTF-8
    for number, data in enumerate(raw_lines(path), 1):
        if number == 1 and data[:2] in _UTF_16:
            return _UTF_16[data[:2]]
        if number == 1 and is_like_utf_16(data):
            raise UserError(f"{path}: line 1: {_set_utf_16()}")
        if data.isascii():
            continue
        try:
            data.decode("utf-8")
            num_utf8 += 1
        except UnicodeDecodeError as error:
            foreign = foreign or (number, data[error.start])
            _check_windows(path, number, data)
        if foreign and num_utf8:
            number, byte = foreign
            raise UserError(
                f"{path}: line {number}: not UTF-8 (byte 0x{byte:02x}), as other lines are; convert the file to UTF-8"
            )
    return "cp1252" if foreign else "utf-8"


def _check_windows(path: str, number: int, data: bytes) -> None:
    """Raises UserError where a line is no text in Windows-1252 either."""
    place = f"{path}: line {number}: neither UTF-8 nor Windows-1252"
    if match := _CONTROL.search(data):
        how = _set_utf_16() if is_like_utf_16(data) else "convert the file to UTF-8"
        raise UserError(f"{place} (byte 0x{match[0][0]:02x}); {how}")
    try:
        data.decode("cp1252")
    except UnicodeDecodeError as error:
        raise UserError(f"{place} (byte 0x{data[error.start]:02x}); convert the file to UTF-8") from None


def _set_utf_16() -> str:
    """What is said of UTF-16 without a byte order mark; a line alone does not show the order of its bytes."""
    return f"{LIKE_UTF_16}: set encoding: utf-16-le or utf-16-be ({option_key('encoding')})"


def _delimiter(sample: Sequence[str], quoted: bool, columns: int | None) -> str:
    """The delimiter of a sample of lines.

    Example:
      >>> _delimiter(["text;label\\n", '"good; very";x, y\\n'], True, None)
      ';'
      >>> _delimiter(["text\\n", "a; b\\n"], True, None)
      ','
    """
    complete = len(sample) < _SAMPLE_LINES
    for delimiter in DELIMITERS:
        quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        csv.field_size_limit(1 << 30)
        records = [record for record in csv.reader(sample, delimiter=delimiter, quoting=quoting) if record]
        records = records if complete or len(records) < 2 else records[:-1]  # the last one may be cut in two
        widths = {len(record) for record in records}
        if len(widths) == 1 and (widths == {columns} if columns else widths != {1}):
            return delimiter
    header = next((line for line in sample if line.strip()), "")
    counts = {delimiter: header.count(delimiter) for delimiter in DELIMITERS}
    if counts[","] or columns is not None:
        return ","
    return max(DELIMITERS, key=lambda delimiter: counts[delimiter])
