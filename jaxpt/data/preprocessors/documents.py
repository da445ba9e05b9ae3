"""From documents of text to documents of tokens.

A document is {"text": string, "origin": int64 [2] = (file number, document number in it)}.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import numpy as np

from jaxpt.data._tf import numpy_call, seqio, tf
from jaxpt.data.vocabularies import pieces

STOPS = "。｡．！？।॥۔؟։።။។៕"
"""What ends a sentence in other scripts than Latin, whatever follows."""
CLOSING = "\"'”’)]」』）】〉》»"
"""What may stand between the end of a sentence and the next one."""

# Where a sentence ends, closing quotes and brackets included, and the next one begins: at . ! or ?, before white space
# and a capital, a letter that knows no case, or an opening quote; at 。 and its like; at a wide full stop that is in no
# number; at ! or ? between characters of scripts without spaces.
_CLOSING = rf"[{re.escape(CLOSING)}]*"
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_SENTENCE_ENDS = (
    r"""([.!?]["'”’)\]]*)\s+(["'“‘(\[]*[\p{Lu}\p{Lo}]|["'“‘])""",
    rf"([{STOPS.replace('．', '')}]+{_CLOSING})()",
    rf"(．+{_CLOSING})([^．0-9０-９{re.escape(CLOSING)}])",
    rf"([{_UNSPACED}][!?]+{_CLOSING})([{_UNSPACED}「『（])",
)


def tokenize(ds: tf.data.Dataset, vocabulary: seqio.Vocabulary) -> tf.data.Dataset:
    """Texts to ids; documents without a token are dropped.

    Args:
      ds: documents.
      vocabulary: gives the ids; nothing is put before or after them.

    Returns:
      {"tokens": int32 [any], "origin": int64 [2]}.

    Example:
      >>> ds = tf.data.Dataset.from_tensor_slices({"text": ["ab", ""], "origin": np.array([[0, 0], [0, 1]])})
      >>> [ex["tokens"].tolist() for ex in tokenize(ds, seqio.ByteVocabulary()).as_numpy_iterator()]
      [[100, 101]]
    """

    def encode(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = tf.ensure_shape(tf.cast(vocabulary.encode_tf(ex["text"]), tf.int32), [None])
        return {"tokens": tokens, "origin": ex["origin"]}

    ds = ds.map(encode, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.filter(lambda ex: tf.size(ex["tokens"]) > 0)


def reverse(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Each document from its last token to its first: data of a backward language model.

    Args:
      ds: {"tokens": int32 [any], "origin": int64 [2]}.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [5, 6, 7]})
      >>> next(reverse(ds).as_numpy_iterator())["tokens"].tolist()
      [7, 6, 5]
    """
    return ds.map(lambda ex: {**ex, "tokens": ex["tokens"][::-1]}, num_parallel_calls=tf.data.AUTOTUNE)


def split_sentences(text: tf.Tensor) -> tf.Tensor:
    """Cuts a text at line ends, after . ! ? before white space and a capital or a quote, and after 。 ！ ？ ।.

    A rule as simple as this also cuts after "Dr." and after a quotation; next-sentence prediction does not mind. Thai,
    which has no full stop, is cut at line ends alone.

    Args:
      text: scalar string.

    Returns:
      Strings [sentences], white space stripped, none empty.

    Example:
      >>> split_sentences(tf.constant('It rained. "Why?" he said.\\nNo one knew, e.g. me.')).numpy().tolist()
      [b'It rained.', b'"Why?" he said.', b'No one knew, e.g. me.']
      >>> [x.decode() for x in split_sentences(tf.constant("雨だ。「なぜ？」誰も知らない。")).numpy()]
      ['雨だ。', '「なぜ？」', '誰も知らない。']
    """
    for end in _SENTENCE_ENDS:
        text = tf.strings.regex_replace(text, end, "\\1\n\\2")
    return split_lines(text)


def split_lines(text: tf.Tensor) -> tf.Tensor:
    """Cuts a text at line ends.

    Args:
      text: scalar string.

    Returns:
      Strings [lines], white space stripped, none empty.
    """
    lines = tf.strings.strip(tf.strings.split(text, "\n"))
    return tf.boolean_mask(lines, lines != "")


def tokenize_sentences(
    ds: tf.data.Dataset,
    vocabulary: seqio.Vocabulary,
    split: Callable[[tf.Tensor], tf.Tensor] = split_sentences,
    sentences: Literal["rule", "lines"] = "rule",
) -> tf.data.Dataset:
    """Texts to the ids of their sentences; sentences and documents without a token are dropped.

    Args:
      ds: documents.
      vocabulary: gives the ids of each sentence by itself.
      split: graph code from a scalar string to the strings of its sentences.
      sentences: "lines": each line is a sentence, whatever `split` says.

    Returns:
      {"tokens": int32 [any], "sentence_lengths": int32 [sentences] of sum `any`, "origin": int64 [2]}.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"text": "a. Bc", "origin": np.array([0, 0])})
      >>> ex = next(tokenize_sentences(ds, seqio.ByteVocabulary()).as_numpy_iterator())
      >>> ex["tokens"].tolist(), ex["sentence_lengths"].tolist()
      ([100, 49, 69, 102], [2, 2])
    """

    split = split_lines if sentences == "lines" else split

    def encode_all(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids = [vocabulary.encode(s.decode()) for s in texts]
        sizes = np.array([len(x) for x in ids if x], np.int32)
        return np.array([i for x in ids for i in x], np.int32), sizes

    def encode(ex: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens, sizes = numpy_call(encode_all, [split(ex["text"])], [tf.TensorSpec([None], tf.int32)] * 2)
        return {"tokens": tokens, "sentence_lengths": sizes, "origin": ex["origin"]}

    ds = ds.map(encode, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.filter(lambda ex: tf.size(ex["tokens"]) > 0)


def mark_language(ds: tf.data.Dataset, vocabulary: seqio.Vocabulary, language: str) -> tf.data.Dataset:
    """Gives each record the token of its language.

    Args:
      ds: records of a source.
      vocabulary: holds the token.
      language: the token as it is written, such as "de_DE".

    Returns:
      The records with "language": int32 scalar.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [7, 8]})
      >>> int(next(mark_language(ds, seqio.ByteVocabulary(), "A").as_numpy_iterator())["language"])
      68
    """
    token = tf.constant(pieces(vocabulary).index(language), tf.int32)
    return ds.map(lambda ex: {**ex, "language": token}, num_parallel_calls=tf.data.AUTOTUNE)


def ragged(x: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
    """The ragged form of a batch of sequences: `Dataset.ragged_batch` leaves those of one static length dense."""
    return x if isinstance(x, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(x, row_splits_dtype=tf.int64)
