"""JSON and JSONL: objects, lists of them, columns, and SQuAD's nested form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jaxpt.data.tables import super_glue
from jaxpt.data.tables.files import read_lines, read_whole
from jaxpt.data.tables.rows import START, NoRowsError, Offset, Row
from jaxpt.errors import UserError, shown

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_FORMS = "wants a list of objects, an object of columns (lists of equal length), or SQuAD's form"


def jsonl(
    path: str, start: Offset = START, columns: Sequence[str] = (), replace_surrogates: bool = True
) -> Iterator[Row]:
    """Reads a file with a JSON object a line.

    Args:
      path: the file, also as `.gz`.
      start: where to begin, as `plain_text.cuts` gives it.
      columns: without effect: a line is read as a whole.
      replace_surrogates: half a surrogate pair, which JSON can spell and UTF-8 cannot, becomes "?".

    Yields:
      Rows, with their lines; those of a nested line of SuperGLUE are numbered from 1. Blank lines are passed over.

    Raises:
      UserError: names the line that is no JSON object; the file is empty.
    """
    rows = 0
    for number, line in read_lines(path, start.offset, start.line):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        record = _object(line, place, replace_surrogates)
        try:
            flattened = super_glue.flat(record)
        except (KeyError, TypeError) as error:
            raise UserError(f"{place}: begins as a line of SuperGLUE, but has no {error}") from None
        except (IndexError, AttributeError) as error:  # a span beyond the text, another type
            raise UserError(f"{place}: begins as a line of SuperGLUE, but is not one ({error})") from None
        for values in [record] if flattened is None else flattened:
            rows += 1
            yield Row(rows if super_glue.is_nested(values) else number, values)
    if not rows and not start.offset:
        raise NoRowsError(f"{path}: is empty; wants a JSON object a line")


def _object(line: str, place: str, replace_surrogates: bool = True) -> dict[str, Any]:
    try:
        record = _parsed(line, replace_surrogates)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error}); wants one object a line") from None
    if not isinstance(record, dict):
        raise UserError(f"{place}: wants a JSON object, got {shown(record)}")
    return record


def json_file(path: str) -> Iterator[Row]:
    """Reads a JSON file, whole: a list of objects, an object of columns, SQuAD's form, or an object a line.

    Args:
      path: the file, also as `.gz`.

    Yields:
      Rows, numbered from 1; of SQuAD's form as `_squad` says.

    Raises:
      UserError: not JSON, or of another form.
    """
    content = _load(path)
    articles = content.get("data") if isinstance(content, dict) else None
    if isinstance(articles, list) and articles and isinstance(articles[0], dict) and "paragraphs" in articles[0]:
        return _squad(articles, path)
    return _records(content, path)


def _load(path: str) -> Any:
    lines = read_whole(path)
    if not any(line.strip() for line in lines):
        raise UserError(f"{path}: is empty; {_FORMS}")
    try:
        return _parsed("".join(lines))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and lines[0].lstrip().startswith("{"):  # an object a line, or nearly so
            return [_object(line, f"{path}: line {n}") for n, line in enumerate(lines, 1) if line.strip()]
        raise UserError(
            f"{path}: line {error.lineno}: not JSON ({error.msg}, column {error.colno}); {_FORMS}"
        ) from None
    except (RecursionError, ValueError) as error:  # Python reads no number of 5,000 digits
        raise UserError(f"{path}: not readable as JSON ({error}); {_FORMS}") from None


def _parsed(content: str, replace_surrogates: bool = True) -> Any:
    value = json.loads(content)
    return _valid(value) if replace_surrogates and _SURROGATE.search(content) else value


def _valid(value: Any) -> Any:
    """Strings without half a surrogate pair, which JSON can spell and UTF-8 cannot: "?" in its place."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_valid(element) for element in value]
    return {_valid(name): _valid(member) for name, member in value.items()} if isinstance(value, dict) else value


def _records(content: Any, path: str) -> Iterator[Row]:
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        content = content["data"]  # {"version": …, "data": [objects]}
    if isinstance(content, dict) and content and all(isinstance(v, list) for v in content.values()):
        lengths = {name: len(values) for name, values in content.items()}
        if len(set(lengths.values())) > 1:
            column_lengths = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(f"{path}: columns of unequal lengths: {column_lengths}")
        content = [dict(zip(content, values)) for values in zip(*content.values())]
    if not isinstance(content, list):
        raise UserError(f"{path}: {shown(content)}; {_FORMS}")
    if not content:
        raise UserError(f"{path}: an empty list; {_FORMS}")
    for number, record in enumerate(content, 1):
        if not isinstance(record, dict):
            raise UserError(f"{path}: row {number}: wants a JSON object, got {shown(record)}")
        yield Row(number, record)


def _squad(articles: list[Any], path: str) -> Iterator[Row]:
    """The questions of a file in the format of SQuAD 1.1 or 2.0.

    Each has `id`, `title`, `context`, `question`, `answers` (a list of `text` and `answer_start`, a character of the
    context; none in files without answers) and `is_impossible`.
    """
    number = 0
    for n, article in enumerate(articles, 1):
        place = f"{path}: article {n}"
        for m, paragraph in enumerate(_part(article, "paragraphs", list, place), 1):
            place = f"{path}: article {n}: paragraph {m}"
            context = _part(paragraph, "context", str, place)
            for question in _part(paragraph, "qas", list, place):
                number += 1
                place = f"{path}: row {number}"
                values = {
                    "id": str(_part(question, "id", str | int, place)),
                    "title": article.get("title", ""),
                    "context": context,
                    "question": _part(question, "question", str, place),
                    "answers": answers(question.get("answers", []), place),
                    "is_impossible": bool(question.get("is_impossible", False)),
                }
                yield Row(number, values)
    if not number:
        raise UserError(f"{path}: no question in it; {_FORMS}")


def answers(value: Any, place: str = "") -> list[dict[str, Any]]:
    """Answers in one form, whichever of the two usual ones a file has.

    Args:
      value: a list of objects with `text` and `answer_start` (SQuAD), or an object of two lists (TFDS, `datasets`).
      place: where it stands, for messages.

    Returns:
      The list of objects, with those two fields.

    Raises:
      UserError: anything else.

    Example:
      >>> answers({"text": ["Paris"], "answer_start": [17]})
      [{'text': 'Paris', 'answer_start': 17}]
    """
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise UserError(f"{place or 'answers'}: text and answer_start want lists of equal lengths")
        value = [{"text": text, "answer_start": start} for text, start in zip(value["text"], starts)]
    if not isinstance(value, list):
        raise UserError(f"{place or 'answers'}: answers wants a list, got {shown(value)}")
    records = []
    for answer in value:
        text, start = _part(answer, "text", str, place), _part(answer, "answer_start", int, place)
        records.append({"text": text, "answer_start": start})
    return records


def _part(record: Any, name: str, kind: Any, place: str) -> Any:
    if not isinstance(record, dict):
        raise UserError(f"{place}: wants an object with {name!r}, got {shown(record)}")
    if name not in record:
        raise UserError(f"{place}: no {name!r}; it has {', '.join(record) or 'nothing'}")
    if not isinstance(record[name], kind):
        expected = {list: "a list", str: "a string", int: "a whole number"}.get(kind, "a string or a number")
        raise UserError(f"{place}: {name!r} wants {expected}, got {shown(record[name])}")
    return record[name]
