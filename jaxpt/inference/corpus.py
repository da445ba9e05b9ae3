"""Files of texts, read while they are used: a text a line, or a row of a table with a column of texts or words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jaxpt.data import tables
from jaxpt.errors import UserError


class Text(NamedTuple):
    """A text of a file."""

    text: str
    """Words that the file has one by one are joined by spaces."""
    spans: list[tuple[int, int]] | None
    """Characters of these words; None where the file has running text."""
    values: dict[str, Any]
    """The columns of the row; none in a .txt."""
    place: str
    """The file and the line, for messages."""


def texts(path: str, field: str | None = None) -> Iterator[Text]:
    """Reads the texts of a file, one after another.

    Args:
      path: .txt with a text a line; JSONL, TSV, CSV, JSON, Parquet; CoNLL(-U) with its words; also as .gz. Blank lines
        of a .txt are passed over.
      field: the column with the text, or with a list of words ("text"; CoNLL's "tokens").

    Yields:
      The texts in their order.

    Raises:
      UserError: names the file and the line that is not as it must be.
    """
    format, num_texts = tables.file_format(path), 0
    if format == "text" and field is not None:
        raise UserError(f"{path}: --field is the column of a .jsonl, .tsv, … file; a .txt has a text a line")
    field = field or ("tokens" if format.startswith("conll") else "text")
    for row in tables.read(path):
        if format == "text" and not row.values["text"].strip():
            continue
        num_texts += 1
        place = tables.where(path, row)
        yield _text(tables.column(row, field, place), field, {} if format == "text" else row.values, place)
    if not num_texts:
        raise UserError(f"{path}: is empty; wants a text a line")


def _text(value: Any, field: str, values: dict[str, Any], place: str) -> Text:
    words = value if isinstance(value, list) else [value]
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"{place}: column {field!r} wants a text, or a list of words, got {value!r:.40}")
    text = " ".join(words)
    if not text.strip():
        raise UserError(f"{place}: column {field!r} is empty; wants a text")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{place}: column {field!r} holds half a surrogate pair; wants whole characters")
    if not isinstance(value, list):
        return Text(text, None, values, place)
    spans, at = [], 0
    for word in words:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    return Text(text, spans, values, place)


def chunks(found: Iterable[Text], characters: int) -> Iterator[list[Text]]:
    """Texts in groups of about as many characters, or of a longer text alone."""
    chunk: list[Text] = []
    size = 0
    for text in found:
        if chunk and size + len(text.text) > characters:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text.text)
    if chunk:
        yield chunk
