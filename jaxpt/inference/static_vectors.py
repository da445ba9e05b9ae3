"""Static word vectors in text format, word2vec's and fastText's (.txt, .vec) and GloVe's: a word has one vector.

    word2vec   a first line "words numbers", then a word and its numbers a line
    GloVe      the same without the first line

Shapes: V words of the file · D numbers of each
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxpt.data.tables.files import read_lines
from jaxpt.errors import UserError
from jaxpt.inference.loaded import Loaded
from jaxpt.inference.loading import load
from jaxpt.inference.words import normalized, words_of


class StaticVectors:
    """Word vectors of a file.

    Attributes:
      path: the file.
      words: its words, in its order.
      vectors_VxD: their vectors.
    """

    def __init__(self, path: str | Path) -> None:
        """Reads a file.

        Args:
          path: also as .gz.

        Raises:
          UserError: names the line that is not as it must be.
        """
        self.path = Path(path)
        vectors: dict[str, np.ndarray] = {}
        for word, vector in _lines(str(path)):
            vectors.setdefault(word, vector)  # of a word that is there twice the first
        self.words = [*vectors]
        self.vectors_VxD = np.stack([*vectors.values()])
        self._rows = {word: row for row, word in enumerate(self.words)}

    def row(self, word: str) -> int | None:
        """The row of a word, or of its lower case; None where the file has neither."""
        return self._rows.get(word, self._rows.get(word.lower()))

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """The mean of the vectors of each text's words: float32 [texts, D]; 0 where the file has none of them."""
        means = np.zeros((len(texts), self.vectors_VxD.shape[1]), np.float32)
        for mean, text in zip(means, texts):
            rows = [self.row(text[start:end]) for start, end in words_of(text)]
            if known := [row for row in rows if row is not None]:
                mean[:] = self.vectors_VxD[known].mean(0)
        return means

    def nearest(self, word: str, k: int) -> list[tuple[str, float, np.ndarray]]:
        """The words with the nearest vectors.

        Args:
          word: a word of the file.
          k: how many.

        Returns:
          (word, cosine, vector), the word itself first.

        Raises:
          UserError: the file has no such word.
        """
        row = self.row(word)
        if row is None:
            raise UserError(f"{self.path}: has no vector of {word!r}")
        unit_VxD = normalized(self.vectors_VxD)
        cosines_V = unit_VxD @ unit_VxD[row]
        cosines_V[row] = np.inf
        order = np.argsort(-cosines_V, kind="stable")[: k + 1]
        cosines_V[row] = 1
        return [(self.words[n], float(cosines_V[n]), self.vectors_VxD[n]) for n in order]


def open_vectors(path: str | Path) -> Loaded | StaticVectors:
    """A model from its directory, or static vectors from their file."""
    return StaticVectors(path) if Path(path).is_file() else load(path)


def _lines(path: str) -> Iterator[tuple[str, np.ndarray]]:
    """(word, vector) of each line."""
    total = width = None
    count = 0
    for number, line in read_lines(path):
        fields = line.rstrip().split(" ")
        place = f"{path}: line {number}"
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            total, width = map(int, fields)
            continue
        width = len(fields) - 1 if width is None else width
        if width < 1 or len(fields) <= width:
            wants = "a word and its numbers" if width < 1 else f"{width} after a word"
            raise UserError(f"{place}: {max(len(fields) - 1, 0)} numbers, wants {wants}, separated by spaces")
        try:
            values = list(map(float, fields[-width:]))
        except ValueError as error:
            raise UserError(f"{place}: {error}; wants a word and {width} numbers") from None
        if not all(map(math.isfinite, values)):
            raise UserError(f"{place}: a number that is not finite")
        yield " ".join(fields[:-width]), np.array(values, np.float32)  # GloVe has words with spaces
        count += 1
    if not count or total not in (None, count):
        wants = "a word and its numbers a line" if total is None else f"the {total:,} words that its first line says"
        raise UserError(f"{path}: {count:,} words, wants {wants}")
