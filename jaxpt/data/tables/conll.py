"""CoNLL-U and CoNLL: a word a line, its annotation in columns, a blank line after each sentence."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from jaxpt.data.tables.files import INNER_CR, read_lines
from jaxpt.data.tables.rows import Row
from jaxpt.errors import UserError, shown

CONLLU = ("id", "tokens", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns of CoNLL-U: ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC."""
_NAMES = {1: ("tokens",), 2: ("tokens", "tags"), 4: ("tokens", "pos", "chunk", "ner"), 10: CONLLU}
"""Number of columns → their names, where the caller gives none: 4 is CoNLL-2003."""
_NO_WORD = re.compile(r"\d+[-.]\d+")  # 1-2 is a multiword token, 8.1 an empty node: its words have lines of their own


@dataclasses.dataclass
class _Block:
    """The lines of a sentence."""

    number: int = 0
    """Of its first line, from 1."""
    comments: list[str] = dataclasses.field(default_factory=list)
    words: list[tuple[int, list[str]]] = dataclasses.field(default_factory=list)
    newdoc: bool = False


def conllu(path: str) -> Iterator[Row]:
    """Reads a file in CoNLL-U.

    Args:
      path: the file, also as `.gz`.

    Yields:
      A row for each sentence, with the line where it starts: a list of strings for each column, and from its comments
      `sent_id`, `text` (None where there is none) and `newdoc` (True where a document starts). Multiword tokens (1-2)
      and empty nodes (8.1) are passed over.

    Raises:
      UserError: names the line with a wrong number of columns, or that does not start with a number.
    """
    return conll(path, CONLLU, comments=True)


def conll(path: str, header: Sequence[str] | None = None, comments: bool = False) -> Iterator[Row]:
    """Reads a file of words with tags: CoNLL-2003 and its like. Tabs separate columns, or else spaces.

    Args:
      path: the file, also as `.gz`.
      header: names of the columns in order; None: by their number ("tokens" and "tags"; CoNLL-2003's "tokens", "pos",
        "chunk", "ner"; CoNLL-U's).
      comments: lines that start with # before the first word of a sentence are comments, not words.

    Yields:
      A row for each sentence, as `conllu` does. -DOCSTART- lines start documents.

    Raises:
      UserError: names the line with another number of columns than the first; names do not fit.
    """
    blocks = _blocks(path, comments)
    names: tuple[str, ...] = ()
    for block in blocks:
        if not names:
            # A line with too few or too many columns is not the measure of the others.
            counts = Counter(len(fields) for _, fields in block.words)
            width = max(counts, key=lambda width: (counts[width], width))
            line, fields = next(word for word in block.words if len(word[1]) == width)
            names = _named(header, fields, f"{path}: line {line}")
        for number, fields in block.words:
            if len(fields) != width:
                has = f"{len(fields)} column{'' if len(fields) == 1 else 's'}"
                wants = f"wants {width} ({', '.join(names)}), as line {line}"
                raise UserError(f"{path}: line {number}: {has}, {wants}{_comment(fields)}")
            if "" in fields:
                empty = names[fields.index("")]
                raise UserError(f"{path}: line {number}: column {empty!r} is empty; wants a word, or _ for none")
        words = [fields for _, fields in block.words]
        if names[0] == "id":
            words = _words(block, path)
        values: dict[str, Any] = {name: list(column) for name, column in zip(names, zip(*words))}
        yield Row(block.number, values | _of_comments(block))
    if not names:
        raise UserError(f"{path}: is empty; wants a word a line, and a blank line after each sentence")


def _blocks(path: str, comments: bool) -> Iterator[_Block]:
    """Sentences: runs of lines between blank ones."""
    tabs: bool | None = None
    width: int | None = None
    block = _Block()
    for number, line in read_lines(path):
        line = line.rstrip("\r\n")
        starts_document = line.startswith("-DOCSTART-")
        if block.words and (starts_document or not line.strip()):
            yield block
            block = _Block()
        if starts_document:
            block.newdoc = True
        elif comments and not block.words and line.startswith("#"):
            block.comments.append(line)
            block.number = block.number or number
        elif line.strip():
            tabs = "\t" in line if tabs is None else tabs
            fields = line.split("\t") if tabs else [field for field in line.split(" ") if field]
            if line.startswith(" ") and width is not None and len(fields) < width:
                raise UserError(f"{path}: line {number}: begins with a space, where a word is wanted: {shown(line)}")
            width = len(fields)
            block.words.append((number, fields))
            block.number = block.number or number
    if block.words:
        yield block


def _words(block: _Block, path: str) -> list[list[str]]:
    """The lines of a CoNLL-U sentence that are words: those with a whole number."""
    words = [(number, fields) for number, fields in block.words if not _NO_WORD.fullmatch(fields[0])]
    for number, fields in words:
        if not fields[0].isdecimal():
            raise UserError(f"{path}: line {number}: the first column wants the number of a word, got {fields[0]!r}")
    if not words:
        raise UserError(f"{path}: line {block.number}: a sentence without words")
    return [fields for _, fields in words]


def _of_comments(block: _Block) -> dict[str, Any]:
    metadata: dict[str, str] = {}
    for note in block.comments:
        name, equals, value = note[1:].partition("=")
        metadata.setdefault(name.strip(), value.strip() if equals else "")
    newdoc = block.newdoc or any(name == "newdoc" or name.startswith("newdoc ") for name in metadata)
    return {"sent_id": metadata.get("sent_id"), "text": metadata.get("text"), "newdoc": newdoc}


def _named(names: Sequence[str] | None, fields: list[str], place: str) -> tuple[str, ...]:
    width, comment = len(fields), _comment(fields)
    if names is None:
        if width not in _NAMES:
            raise UserError(f"{place}: {width} columns; name them (task.header), such as tokens and tags{comment}")
        return _NAMES[width]
    if len(names) != width:
        source = "CoNLL-U's" if names is CONLLU else "task.header"
        raise UserError(f"{place}: {width} columns, wants {len(names)} ({source}): {', '.join(names)}{comment}")
    return tuple(names)


def _comment(fields: list[str]) -> str:
    """A hint for lines that may be comments, or several."""
    if any("\r" in field for field in fields):
        return f"; {INNER_CR}"
    return "; if lines with # are comments, set task.comments: true" if fields[0].startswith("#") else ""
