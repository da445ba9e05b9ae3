"""Files of word vectors, as word2vec, fastText and GloVe write them. Each also as .gz.

    .txt .vec  word2vec's and fastText's text: a first line "words numbers", then a word and its numbers a line
    .glove     GloVe's: the same without the first line; a .txt without it is read, too
    .bin       word2vec's binary form: that line, then word, space, float32 numbers (little-endian), line feed

Shapes: V words of the file · D numbers of each
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from jaxpt import errors
from jaxpt.data.tables.files import read_lines
from jaxpt.errors import UserError, shown
from jaxpt.runtime import disk

SUFFIXES = (".txt", ".vec", ".glove", ".bin")
_HEADER = re.compile(rb"(\d{1,15}) (\d{1,6})\n")
_LONGEST_WORD = 1 << 16
"""Bytes of a word in a binary file, at most."""
_BLOCK = 4096  # words that are written together


def form(path: str | Path) -> str | None:
    """The suffix that says the form of a file, without .gz; None if it is none of vectors."""
    path = Path(path)
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    return suffix if suffix in SUFFIXES else None


def is_vectors(path: str | Path) -> bool:
    """True for an existing file of vectors; other programs' .bin files do not begin with two numbers in text."""
    path = Path(path)
    if form(path) is None or not path.is_file():
        return False
    if form(path) != ".bin":
        return True
    with _opened(path) as file:
        return _HEADER.match(_bytes(file, path, 64)) is not None


def read(path: str | Path) -> tuple[list[str], np.ndarray]:
    """Reads a file; of a word that is there twice the first vector counts, and a line says how many are left out.

    Args:
      path: the file.

    Returns:
      (words in the order of the file, float32 [V, D]).

    Raises:
      UserError: names the line, or in a binary file the word, that is not as it must be.
    """
    vectors: dict[str, np.ndarray] = {}
    count = 0
    for word, vector in _binary(Path(path)) if form(path) == ".bin" else _text(str(path)):
        vectors.setdefault(word, vector)
        count += 1
    if twice := count - len(vectors):
        odd = " (bytes that are not UTF-8 are all read as \ufffd)" if any("\ufffd" in word for word in vectors) else ""
        errors.note(f"{path}: {twice:,} of {count:,} words left out: an earlier one is spelled the same{odd}")
    return [*vectors], np.stack([*vectors.values()])


def write(path: str | Path, words: Sequence[str], vectors_VxD: np.ndarray) -> None:
    """Writes a file, in the form that its suffix says; it appears when it is whole.

    Args:
      path: a file that is not there yet.
      words: V of them; those with white space or without a character are an error.
      vectors_VxD: their vectors.

    Raises:
      UserError: another suffix, the file is there, or a word that the form does not hold.
    """
    path, kind = Path(path), form(path)
    if kind is None:
        raise UserError(f"{path}: wants a file with the suffix {', '.join(SUFFIXES)}, each also with .gz")
    if path.exists():
        raise UserError(f"{path}: already exists; choose a new file")
    if wrong := next((word for word in words if not word or any(map(str.isspace, word))), None):
        raise UserError(f"{path}: the word {wrong!r} has white space, which ends a word in such a file")
    disk.check_path(path)
    with disk.whole_file(path) as file:
        # Without a time: the same vectors are the same bytes.
        stream = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if path.suffix == ".gz" else file
        for block in _blocks(kind, words, np.asarray(vectors_VxD, "<f4")):
            stream.write(block)
        if stream is not file:
            stream.close()


def _blocks(kind: str, words: Sequence[str], vectors_VxD: np.ndarray) -> Iterator[bytes]:
    """The bytes of a file."""
    if kind != ".glove":
        yield f"{len(words)} {vectors_VxD.shape[1]}\n".encode()
    for first in range(0, len(words), _BLOCK):
        rows = zip(words[first : first + _BLOCK], vectors_VxD[first : first + _BLOCK])
        if kind == ".bin":
            yield b"".join(word.encode() + b" " + vector.tobytes() + b"\n" for word, vector in rows)
        else:
            yield "".join(f"{word} {' '.join(map(_shortest, vector))}\n" for word, vector in rows).encode()


def _shortest(value: np.float32) -> str:
    """The shortest decimal number that is read back as the same float32."""
    return np.format_float_positional(value, unique=True, trim="-")


def _opened(path: Path) -> IO[bytes]:
    try:
        return gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: {error}") from None


def _bytes(file: IO[bytes], path: Path, size: int) -> bytes:
    """The next bytes of a file."""
    try:
        return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: {error}") from None


def _binary(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """(word, vector) of each word of a binary file, of which a few words at a time are in memory."""
    with _opened(path) as file:
        content = _bytes(file, path, 1 << 20)
        header = _HEADER.match(content)
        if header is None:
            raise UserError(f"{path}: wants a first line with the number of words and of the numbers of each")
        total, width = map(int, header.groups())
        at, longest = header.end(), _LONGEST_WORD + 4 * width + 2
        if not total or not width:
            raise UserError(f"{path}: its first line says {total:,} words of {width:,} numbers; wants one at least")
        for number in range(1, total + 1):
            if len(content) - at < longest:
                content, at = content[at:] + _bytes(file, path, max(longest, 1 << 20)), 0
            end = content.find(b" ", at, at + _LONGEST_WORD)
            if end < 0 or len(content) < end + 1 + 4 * width:
                raise UserError(f"{path}: ends at word {number:,} of the {total:,} words that its first line says")
            word = content[at:end].lstrip(b"\n").decode("utf-8", "replace")
            vector = np.frombuffer(content, "<f4", width, end + 1).astype(np.float32)
            yield _checked(f"{path}: word {number:,}", word, vector)
            at = end + 1 + 4 * width
        if (content[at:] + _bytes(file, path, 64)).strip(b"\n"):
            raise UserError(f"{path}: goes on after the {total:,} words that its first line says")


def _checked(place: str, word: str, vector_D: np.ndarray) -> tuple[str, np.ndarray]:
    """(word, vector), if there is a word without an end of a line and all numbers are finite as float32."""
    if not word:
        raise UserError(f"{place}: has no word before its numbers")
    if "\r" in word or "\n" in word:
        raise UserError(f"{place}, {shown(word)}: has an end of a line in the word; wants words without CR and LF")
    if not np.isfinite(vector_D).all():
        raise UserError(f"{place}, {shown(word)}: a number that is not finite")
    return word, vector_D


def _is_number(field: str) -> bool:
    """True for a finite number in text."""
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _text(path: str) -> Iterator[tuple[str, np.ndarray]]:
    """(word, vector) of each line."""
    total = width = None
    count = 0
    for number, line in read_lines(path):
        fields = line.rstrip().split(" ")
        place = f"{path}: line {number}"
        if number == 1 and (header := _HEADER.fullmatch(f"{line.rstrip()}\n".encode())):
            total, width = map(int, header.groups())
            continue
        width = len(fields) - 1 if width is None else width
        if width < 1 or len(fields) <= width:
            wants = "a word and its numbers" if width < 1 else f"{width} after a word"
            raise UserError(f"{place}: {max(len(fields) - 1, 0)} numbers, wants {wants}, separated by spaces")
        if len(fields) > width + 1 and _is_number(fields[-width - 1]):
            numbers = sum(map(_is_number, fields[1:]))
            raise UserError(f"{place}: {numbers} numbers, wants {width} after a word, separated by spaces")
        try:
            values = list(map(float, fields[-width:]))
        except ValueError as error:
            raise UserError(f"{place}: {error}; wants a word and {width} numbers") from None
        with np.errstate(over="ignore"):
            vector_D = np.array(values, np.float32)
        yield _checked(place, " ".join(fields[:-width]), vector_D)  # GloVe has words with spaces
        count += 1
    if not count or total not in (None, count):
        wants = "a word and its numbers a line" if total is None else f"the {total:,} words that its first line says"
        raise UserError(f"{path}: {count:,} words, wants {wants}")
