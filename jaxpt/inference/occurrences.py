"""Uses of a word: sentences with the place of the word in each, their vectors, the nearest ones, and their senses.

Shapes: U uses · D width
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxpt.data.tables.rows import Row, column, label
from jaxpt.data.tokenizers.scripts import is_unspaced
from jaxpt.decode.embed import Layer
from jaxpt.errors import UserError
from jaxpt.inference.corpus import Text
from jaxpt.inference.loaded import Loaded
from jaxpt.inference.words import normalized

_MARKED = re.compile(r"\*([^*\s](?:[^*]*[^*\s])?)\*")
_END = re.compile(r"""[.!?…]["'”’)\]]*\s+|[。！？]["'”’」』）]*|\n+""")
_ROOM = 300
"""Most characters of a sentence before and after the word."""


class Use(NamedTuple):
    """A word in a sentence."""

    text: str
    start: int
    """Its first character in the text."""
    end: int
    label: str = ""
    """Its sense, or whatever the label column has."""

    @property
    def word(self) -> str:
        """The word as the text spells it."""
        return self.text[self.start : self.end]

    @property
    def marked(self) -> str:
        """The text with the word between asterisks."""
        return f"{self.text[: self.start]}*{self.word}*{self.text[self.end :]}"

    def snippet(self, words: int = 3) -> str:
        """The word with as many words before and after it.

        Example:
          >>> Use("He sat on the bank of the river that day.", 14, 18).snippet(2)
          '… on the bank of the …'
        """
        before, after = self.text[: self.start].split(" "), self.text[self.end :].split(" ")
        left, right = " ".join(before[-words - 1 :]), " ".join(after[: words + 1])
        opens, closes = "… " * (len(before) > words + 1), " …" * (len(after) > words + 1)
        return opens + left + self.word + right + closes


def marked(text: str, place: str = "the query") -> Use:
    """A text whose word stands between asterisks.

    Raises:
      UserError: none is marked, or several are.

    Example:
      >>> marked("The *bank* of the river.")
      Use(text='The bank of the river.', start=4, end=8, label='')
    """
    matches = [*_MARKED.finditer(text)]
    if len(matches) != 1:
        raise UserError(f"{place}: {len(matches) or 'no'} words are marked, wants one, as in 'the *bank* of the river'")
    start, end = matches[0].span()
    return Use(text[:start] + matches[0][1] + text[end:], start, end - 2)


def find(text: str, word: str) -> Iterator[Use]:
    """The uses of a word in a text, of whatever case, each in its sentence.

    Args:
      text: any text.
      word: a word, or several.

    Example:
      >>> [use.marked for use in find("He sat. The Bank is shut! Banking is dull.", "bank")]
      ['The *Bank* is shut!']
    """
    for match in places(text, word):
        yield _sentence(text, *match.span())


def places(text: str, word: str) -> Iterator[re.Match[str]]:
    """Where a word stands in a text, of whatever case, never inside of another word.

    Args:
      text: any text.
      word: a word, or several.

    Example:
      >>> [found.span() for found in places("the party of Art", "art")]
      [(13, 16)]
    """
    bounds = ("", "") if any(map(is_unspaced, word)) else (r"(?<!\w)", r"(?!\w)")
    return re.finditer(bounds[0] + re.escape(word) + bounds[1], text, re.IGNORECASE)


def _sentence(text: str, start: int, end: int) -> Use:
    """The sentence of a word, at most `_ROOM` characters on each side, cut between words."""
    left, right = max(0, start - _ROOM), min(len(text), end + _ROOM)
    first = max((match.end() for match in _END.finditer(text, left, start)), default=None)
    if first is None:
        space = text.find(" ", left, start)
        first = 0 if left == 0 else start if space < 0 else space + 1
    stop = _END.search(text, end, right)
    last = stop.end() if stop else right if right == len(text) else max(text.rfind(" ", end, right), end)
    sentence = text[first:last].rstrip()
    return Use(sentence, start - first, end - first)


def of_corpus(texts: Iterable[Text], word: str, label_field: str | None = None) -> Iterator[Use]:
    """The uses of a word in a file, each sentence once.

    Args:
      texts: of the file.
      word: the word.
      label_field: the column with the label of each.

    Raises:
      UserError: a row has no such column.
    """
    yielded: set[tuple[str, int]] = set()
    for text in texts:
        text_label = _label(text, label_field)
        for use in find(_MARKED.sub(r"\1", text.text), word):
            if (use.text, use.start) not in yielded:
                yielded.add((use.text, use.start))
                yield use._replace(label=text_label)


def labelled(texts: Iterable[Text], label_field: str) -> list[Use]:
    """Texts whose word is marked, with a label each.

    Raises:
      UserError: a text has no marked word, or no label.
    """
    return [marked(text.text, text.place)._replace(label=_label(text, label_field)) for text in texts]


def _label(text: Text, field: str | None) -> str:
    if field is None:
        return ""
    text_label = label(column(Row(0, text.values), field, text.place))
    if not text_label.strip():
        raise UserError(f"{text.place}: column {field!r} is empty; wants a label")
    return text_label


def vectors(model: Loaded, uses: Sequence[Use], layer: Layer = -1) -> np.ndarray:
    """The vector of the word in each use.

    Args:
      model: the model.
      uses: sentences with their words.
      layer: which layer, or which ones.

    Returns:
      float32 [U, D], of several layers [K, U, D].

    Raises:
      UserError: a word that the model cannot read, being beyond its positions.
    """
    words_by_use = model.embed_words([use.text for use in uses], layer, spans=[[(use.start, use.end)] for use in uses])
    for use, use_words in zip(uses, words_by_use):
        if not use_words.texts:
            raise UserError(f"{use.marked[:60]!r}…: the word is beyond the model's positions, or has no token")
    return np.concatenate([use_words.vectors for use_words in words_by_use], -2)


def nearest(query_D: np.ndarray, uses_UxD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The uses with the largest cosine.

    Args:
      query_D: vector of the query.
      uses_UxD: vectors of the uses.
      k: how many.

    Returns:
      (indices, cosines), the nearest first.

    Example:
      >>> indices, cosines = nearest(np.array([1.0, 0.0]), np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 1.0]]), 2)
      >>> indices.tolist(), cosines.round(3).tolist()
      ([1, 2], [1.0, 0.707])
    """
    cosines_U = normalized(uses_UxD) @ normalized(query_D)
    order = np.argsort(-cosines_U, kind="stable")[:k]
    return order, cosines_U[order]


def leave_one_out(vectors_UxD: np.ndarray, labels: Sequence[str], k: int) -> float:
    """How often the k nearest other uses have the label of a use: by majority, a tie by the nearest.

    Args:
      vectors_UxD: vectors of the uses.
      labels: of each.
      k: neighbours that vote.

    Returns:
      The accuracy.

    Example:
      >>> leave_one_out(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), ["a", "a", "b", "b"], 1)
      1.0
    """
    unit_UxD = normalized(vectors_UxD)
    cosines_UxU = unit_UxD @ unit_UxD.T
    np.fill_diagonal(cosines_UxU, -np.inf)
    order_Uxk = np.argsort(-cosines_UxU, axis=1, kind="stable")[:, : min(k, len(labels) - 1)]
    guesses = [collections.Counter(labels[n] for n in row).most_common(1)[0][0] for row in order_Uxk]
    return float(np.mean([guess == label for guess, label in zip(guesses, labels)]))
