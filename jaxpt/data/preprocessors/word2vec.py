"""word2vec's draws: which words stay in the text, their windows, and noise; ways in a Huffman tree and n-grams.

Paper: https://arxiv.org/abs/1310.4546.

Shapes: R records · N tokens of all records end to end · K noise words of a record · V ids
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpt.data import huffman
from jaxpt.data import subwords as ngrams
from jaxpt.data._tf import seqio, tf
from jaxpt.data.layout import Layout
from jaxpt.data.preprocessors.batched import (
    Batch,
    Records,
    fold_in,
    makes_rows,
    one_to_one,
    ragged_mask,
    randint,
    uniform,
)
from jaxpt.data.vocabularies import pieces
from jaxpt.errors import UserError

Counts = Callable[[], np.ndarray]


@one_to_one
def draw(
    batch: Batch,
    keys: tf.Tensor,
    vocabulary: seqio.Vocabulary,
    subsample: float,
    most: int,
    window: int,
    noise: int,
    noise_exponent: float,
    token_counts: Counts,
) -> Batch:
    """Leaves out many of the frequent words and all unknown ones, and draws windows and noise.

        a word stays with probability min(1, (√(f / t) + 1) · t / f)    f its share of the training text
        its window is one of 1 … window, each as likely
        noise is drawn with weights f^e

    What is left moves together, so a window reaches further in the text, as in word2vec.

    Args:
      batch: records with "tokens" int32 [any].
      keys: of the records' draws.
      vocabulary: says which id stands for unknown words.
      subsample: t; 0: all words stay.
      most: words of a record beyond the first so many are left out.
      window: most neighbours on each side.
      noise: K; 0: none is drawn.
      noise_exponent: e.
      token_counts: how often ids are in the training records, [V].

    Returns:
      The records with fewer "tokens", "windows" of as many, and "noise" int32 [K].

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [1, 2, 1, 1, 3, 1, 1, 1]})
      >>> words, counts = seqio.PassThroughVocabulary(4), lambda: np.array([0, 90, 5, 5])
      >>> with seqio.map_seed_manager(0):
      ...     ds = draw(ds, words, 0.01, 8, window=2, noise=4, noise_exponent=0.75, token_counts=counts)
      >>> {name: x.tolist() for name, x in next(ds.as_numpy_iterator()).items()}
      {'tokens': [3], 'windows': [2], 'noise': [1, 2, 3, 3]}
    """
    tokens, count_V = batch["tokens"], _known_counts(token_counts, vocabulary.unk_id)
    rare_V = subsample / np.maximum(count_V / count_V.sum(), 1e-12)
    keep_probability_V = np.sqrt(rare_V) + rare_V if subsample else np.ones_like(count_V)
    keep_probability_V = np.where(count_V > 0, keep_probability_V, 0.0).astype(np.float32)
    is_kept_N = uniform(fold_in(keys, 1), tokens) < tf.gather(keep_probability_V, tokens.values)
    tokens = ragged_mask(tokens, is_kept_N)[:, :most]
    windows = tokens.with_values(1 + randint(fold_in(keys, 3), window, tokens))
    batch = {**batch, "tokens": tokens, "windows": windows}
    if not noise:
        return batch
    ends_V = np.cumsum(np.where(count_V > 0, count_V**noise_exponent, 0.0))
    drawn_RxK = tf.cast(uniform(fold_in(keys, 2), tf.range(noise)[None]), tf.float64) * ends_V[-1]
    ids = tf.searchsorted(tf.constant(ends_V), tf.reshape(drawn_RxK, [-1]), side="right")
    noise_RxK = tf.RaggedTensor.from_uniform_row_length(
        tf.cast(ids, tf.int32), tf.cast(noise, tf.int64), tf.shape(drawn_RxK, tf.int64)[0]
    )
    return {**batch, "noise": noise_RxK}


def _known_counts(token_counts: Counts, unknown: int | None) -> np.ndarray:
    """How often ids are in the training records, 1 at least; 0 of unknown words: float64 [V]."""
    count_V = np.maximum(token_counts(), 1.0)
    if unknown is not None:
        count_V[unknown] = 0.0
    return count_V


@makes_rows
def features(
    batch: Records,
    vocabulary: seqio.Vocabulary,
    length: int,
    noise: int,
    code_length: int = 0,
    subwords: Any = None,
    token_counts: Counts | None = None,
    packs: None = None,
) -> dict[str, np.ndarray]:
    """Features of skip-gram and CBOW: a row for each record.

    Args:
      batch: records with "tokens" and "windows" int32 [at most length] and "noise" int32 [K].
      vocabulary: has the words, for `subwords`, and says which id stands for unknown ones, which have no way.
      length: length of the features of the text.
      noise: K.
      code_length: nodes on the way to a word in the Huffman tree; 0: no ways.
      subwords: `SubwordsConfig` of `jaxpt.objectives.word2vec`, or None.
      token_counts: how often ids are in the training records, for the tree.
      packs: None: a row has noise of its own, so records do not share one.

    Returns:
      encoder_{input_tokens,segment_ids}, windows [length]; noise_tokens [K]; huffman_paths [length, C] and subwords
      [length, G] where they are wanted, −1 where there is nothing.

    Raises:
      UserError: a way in the tree is longer than `code_length`.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"tokens": [7, 8], "windows": [2, 1], "noise": [5, 6, 5]})
      >>> ex = next(features(ds, seqio.PassThroughVocabulary(9), length=3, noise=3).as_numpy_iterator())
      >>> [ex[name].tolist() for name in ("encoder_input_tokens", "windows", "noise_tokens")]
      [[7, 8, 0], [2, 1, 0], [5, 6, 5]]
    """
    layout = Layout(batch["tokens"].lengths, length, None, "tokens")
    tokens_BxL = layout.rows(batch["tokens"].values)
    segments_BxL = layout.features("encoder")["encoder_segment_ids"]
    rows = {"encoder_input_tokens": tokens_BxL, "encoder_segment_ids": segments_BxL}
    rows["windows"] = layout.rows(batch["windows"].values)
    is_padding = segments_BxL == 0
    if noise:
        rows["noise_tokens"] = Layout(batch["noise"].lengths, noise, None, "noise").rows(batch["noise"].values)
    if code_length:
        rows["huffman_paths"] = _paths(token_counts, vocabulary.unk_id, code_length)[tokens_BxL]
        rows["huffman_paths"][is_padding] = -1
    if subwords is not None:
        rows["subwords"] = _buckets(vocabulary, subwords)[tokens_BxL]
        rows["subwords"][is_padding] = -1
    return rows


@functools.lru_cache(4)
def _paths(token_counts: Counts, unknown: int | None, length: int) -> np.ndarray:
    """The ways to all known words: [V, C]."""
    try:
        return huffman.paths(_known_counts(token_counts, unknown), length)
    except ValueError as error:
        raise UserError(f"objective.code_length: {error}") from None


@functools.lru_cache(4)
def _buckets(vocabulary: seqio.Vocabulary, config: Any) -> np.ndarray:
    """The n-grams of all words: [V, G]."""
    options = config.min_length, config.max_length, config.buckets, config.per_word
    return ngrams.table(pieces(vocabulary), *options)
