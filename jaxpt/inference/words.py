"""Vectors of texts, of their words and of their tokens, from a loaded model's hidden states.

    word    the white-space words of a text, signs at their ends, and — – … / inside, being words too; or given words
    token   the tokens of its vocabulary, without special ones

A word's vector is the mean over the tokens that have a character of it.

Shapes: W words · D width · K chosen layers
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jaxpt.decode.embed import Embeddings, Layer, Pooling, tokens_of
from jaxpt.errors import UserError

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded

Spans = Sequence[tuple[int, int]]
"""(start, end) of the characters of each word of a text."""
_BETWEEN = re.compile(r"[—–…/]|[^\s—–…/]+")


class Words(NamedTuple):
    """The words (or tokens) of a text that have a vector."""

    texts: list[str]
    """Each as the text spells it; a token as its vocabulary does."""
    spans: np.ndarray
    """Characters of each: int64 [W, 2]."""
    vectors: np.ndarray
    """float32 [W, D], of several layers [K, W, D]."""
    numbers: np.ndarray
    """Which of the text's words each is: int64 [W]; those beyond the positions, or without a token, are missing."""
    is_cut: bool
    """The text was truncated from the right to the model's positions."""


def words_of(text: str) -> list[tuple[int, int]]:
    """The characters of each word of a text.

    Example:
      >>> text = "The bank's (old) safe—gone."
      >>> [text[start:end] for start, end in words_of(text)]
      ['The', "bank's", '(', 'old', ')', 'safe', '—', 'gone', '.']
    """
    return [span for match in _BETWEEN.finditer(text) for span in _parts(text, *match.span())]


def _parts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """What stands between white space: signs at the start, the word, signs at the end."""
    first, last = start, end
    while first < end and _is_sign(text[first]):
        first += 1
    while last > first and _is_sign(text[last - 1]):
        last -= 1
    yield from ((at, at + 1) for at in range(start, first))
    if first < last:
        yield first, last
    yield from ((at, at + 1) for at in range(last, end))


def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def pooled(
    model: Loaded, texts: Sequence[str], pooling: Pooling = "mean", layer: Layer = -1, normalize: bool = False
) -> Embeddings:
    """Vectors of texts; see `jaxpt.decode.embed`.

    Args:
      model: the model.
      texts: any number.
      pooling: how the states of a text become one vector.
      layer: which layers.
      normalize: divide each vector by its L2 norm.

    Returns:
      The vectors, and how many texts were truncated.

    Raises:
      UserError: no such layer or pooling.
    """
    ids = model.tokenizer.encode_batch(list(texts))
    return _embed(model, ids, pooling=pooling, layer=layer, normalize=normalize)


def embed(
    model: Loaded,
    texts: Sequence[str],
    layer: Layer = -1,
    unit: Literal["word", "token"] = "word",
    spans: Sequence[Spans] | None = None,
) -> list[Words]:
    """Vectors of words or tokens.

    Args:
      model: the model.
      texts: any number.
      layer: which layers.
      unit: words or tokens.
      spans: the characters of each text's words; by default those of `words_of`, or of its tokens.

    Returns:
      The words of each text.

    Raises:
      UserError: no such layer, or a tokenizer that does not say which characters a token stands for.
    """
    encoded = model.tokenizer.encode_with_offsets(list(texts))
    if unit == "token" and spans is None:
        tokens = [np.arange(len(encoding.ids))[:, None] + [0, 1] for encoding in encoded]
        names = [model.tokenizer.tokens(encoding.ids) for encoding in encoded]
        spans = [encoding.offsets for encoding in encoded]
    else:
        spans = [np.reshape(words_of(text) if spans is None else spans[n], (-1, 2)) for n, text in enumerate(texts)]
        names = [[text[start:end] for start, end in words] for text, words in zip(texts, spans)]
        tokens = [tokens_of(encoding.offsets, words.astype(np.int64)) for encoding, words in zip(encoded, spans)]
    embeddings = _embed(model, [encoding.ids for encoding in encoded], layer=layer, spans=tokens)
    rows = embeddings.rows
    return [
        Words([names[n][i] for i in numbers], np.asarray(spans[n], np.int64)[numbers], vectors, numbers, rows.is_cut[n])
        for n, (numbers, vectors) in enumerate(zip(rows.numbers, embeddings.vectors))
    ]


def _embed(model: Loaded, ids: Sequence[list[int]], **options: Any) -> Embeddings:
    with model.current():
        return model.reader.embed(model.network, model.params, ids, **options)


def normalized(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., D] divided by their L2 norm; 0 stays 0."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def parse_layer(text: str) -> Layer:
    """A layer from the command line.

    Args:
      text: a number, several with commas, all or mix.

    Returns:
      The layer or layers.

    Raises:
      UserError: it is none of these.

    Example:
      >>> parse_layer("-1"), parse_layer("0,6,12"), parse_layer("mix")
      (-1, (0, 6, 12), 'mix')
    """
    if text in ("all", "mix"):
        return text
    try:
        numbers = tuple(int(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"--layer: wants a number, several as 0,6,12, all or mix, got {text!r}") from None
    return numbers if len(numbers) > 1 else numbers[0]
