"""Choosing whole words, n-grams and spans of words to be masked, for many records at a time.

The published programs draw units one after the other until enough tokens are chosen. So does this, but one turn of the
loop draws a unit of every record. A word starts where the vocabulary says so, after a special token, and where the text
starts; no unit goes past a special token.

Papers: n-grams https://arxiv.org/abs/1909.11942 (ALBERT), spans https://arxiv.org/abs/1907.10529 (SpanBERT)

Shapes: R records · N tokens of all records · C those of them that are not special, in each record its places · A words
of all records · W most words of a record, each of which is visited · K most words of a unit · P chosen places
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from jaxpt.data.preprocessors.batched import derived, uniform

Unit = Literal["piece", "word", "ngram", "span"]


class Words(NamedTuple):
    """The words of records."""

    first_R1: tf.Tensor
    """The first place of each record among those of all, and their number."""
    word_C: tf.Tensor
    """The word that a place is in, of all words."""
    begin_A: tf.Tensor
    """The first place of each word."""
    counts_R: tf.Tensor
    sizes_RxW: tf.Tensor
    """Places of each word, 0 where there is none."""
    run_RxW: tf.Tensor
    """Number of the run of text, between special tokens, that a word is in."""


def words(tokens_N: tf.Tensor, candidates_C: tf.Tensor, first_R1: tf.Tensor, starts_V: np.ndarray) -> Words:
    """Finds the words.

    Args:
      tokens_N: int32 ids.
      candidates_C: int64, where in it the tokens are that are not special.
      first_R1: the first candidate of each record, and their number.
      starts_V: bool, whether an id starts a word.

    Returns:
      The words.

    Example:
      >>> tokens = tf.constant([2, 7, 8, 3, 8, 9, 3])  # 8 is the only id that goes on with a word
      >>> found = words(tokens, tf.constant([1, 2, 4, 5]), tf.constant([0, 4]), np.arange(10) != 8)
      >>> found.sizes_RxW.numpy().tolist(), found.run_RxW.numpy().tolist()
      ([[2, 1, 1]], [[1, 2, 2]])
    """
    at_C, first_R1 = tf.cast(candidates_C, tf.int64), tf.cast(first_R1, tf.int32)
    gap_C = tf.concat([[True], at_C[1:] != at_C[:-1] + 1], 0)[: tf.size(at_C)]
    place_C = tf.range(tf.size(at_C))
    is_first_C = gap_C | (place_C == tf.gather(first_R1, tf.searchsorted(first_R1, place_C, side="right") - 1))
    starts_C = is_first_C | tf.gather(tf.constant(starts_V), tf.gather(tokens_N, at_C))
    begin_A = tf.cast(tf.where(starts_C)[:, 0], tf.int32)
    size_A = tf.concat([begin_A[1:], [tf.size(at_C)]], 0)[: tf.size(begin_A)] - begin_A
    run_A = tf.gather(tf.cumsum(tf.cast(is_first_C, tf.int32)), begin_A)
    splits_R1 = tf.searchsorted(begin_A, first_R1)
    sizes_RxW, run_RxW = (
        tf.RaggedTensor.from_row_splits(x, splits_R1, validate=False).to_tensor() for x in (size_A, run_A)
    )
    word_C = tf.cumsum(tf.cast(starts_C, tf.int32)) - 1
    return Words(first_R1, word_C, begin_A, splits_R1[1:] - splits_R1[:-1], sizes_RxW, run_RxW)


def choose(
    keys_R: tf.Tensor, words: Words, counts_R: tf.Tensor, unit: Unit, shares: Sequence[float]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses units, each of 1, 2, … words by the shares, until so many places are chosen.

        word, ngram  The words are visited in random order. The n-gram that starts there is taken, shortened word by
                     word until it does not go over the count; it is passed over where one word does, or where any of
                     it has been taken before (BERT's whole-word masking, ALBERT). Fewer than the count may result.
        span         A place that is not chosen yet is drawn. Its word and those after it are taken, also where some
                     have been before, up to exactly the count, which may split the last word (SpanBERT). Spans that
                     touch become one.

    Args:
      keys_R: uint64.
      words: of the records.
      counts_R: int32, most places chosen, at most as many as there are.
      unit: "word", "ngram" or "span".
      shares: probability of 1, 2, … words in a unit.

    Returns:
      (int32 [R, P], bool [R, P]): the places ascending, and which of them are real, as `batched.choose` gives them.

    Example:
      >>> tokens = tf.constant([2, 7, 8, 7, 8, 8, 7, 3])
      >>> found = words(tokens, tf.range(1, 7), tf.constant([0, 6]), np.arange(10) != 8)
      >>> for seed in range(3):
      ...     print(choose(tf.constant([seed], tf.uint64), found, tf.constant([3]), "word", [1.0])[0].numpy().tolist())
      [[0, 1, 5]]
      [[0, 1, 5]]
      [[2, 3, 4]]
    """
    order_WxR, lengths_WxR = _draws(keys_R, words, unit, shares)
    nth_K = tf.range(len(shares))
    row_RxK = tf.range(tf.size(words.counts_R))[:, None] + tf.zeros_like(nth_K)
    sizes_RxW, run_RxW = (tf.pad(x, [[0, 0], [0, len(shares)]]) for x in (words.sizes_RxW, words.run_RxW))

    def visit(v: tf.Tensor, taken_RxW: tf.Tensor, left_R: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        at_RxKx2 = tf.stack([row_RxK, order_WxR[v][:, None] + nth_K], axis=-1)
        size_RxK, run_RxK, was_RxK = (tf.gather_nd(x, at_RxKx2) for x in (sizes_RxW, run_RxW, taken_RxW))
        is_open_R = v < words.counts_R
        of_unit_RxK = (nth_K < lengths_WxR[v][:, None]) & (run_RxK == run_RxK[:, :1]) & is_open_R[:, None]
        if unit == "span":
            new_RxK = tf.where(of_unit_RxK & (was_RxK == 0), size_RxK, 0)
            room_RxK = left_R[:, None] - tf.cumsum(new_RxK, axis=1, exclusive=True)
            new_RxK = tf.minimum(new_RxK, tf.maximum(room_RxK, 0))
            is_free_R = was_RxK[:, 0] == 0
        else:
            fits_RxK = of_unit_RxK & (tf.cumsum(size_RxK, axis=1) <= left_R[:, None])
            new_RxK = tf.where(fits_RxK, size_RxK, 0)
            is_free_R = tf.reduce_all(~fits_RxK | (was_RxK == 0), axis=1)
        new_RxK = tf.where(is_free_R[:, None], new_RxK, 0)
        return v + 1, tf.tensor_scatter_nd_add(taken_RxW, at_RxKx2, new_RxK), left_R - tf.reduce_sum(new_RxK, axis=1)

    def goes_on(v: tf.Tensor, _: tf.Tensor, left_R: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any((left_R > 0) & (v < words.counts_R))

    state = (tf.constant(0), tf.zeros_like(sizes_RxW), tf.cast(counts_R, tf.int32))
    _, taken_RxW, _ = tf.while_loop(goes_on, visit, state)
    return _places(words, tf.RaggedTensor.from_tensor(taken_RxW, words.counts_R).values)


def _draws(keys_R: tf.Tensor, words: Words, unit: Unit, shares: Sequence[float]) -> tuple[tf.Tensor, tf.Tensor]:
    """The words in the order of their visits, and how many are drawn for each: int32 [W, R].

    A drawn place's word is drawn with a weight of its size: ordering by ln(u) / weight is drawing by weight.
    """
    number = tf.range(tf.shape(words.sizes_RxW)[1])[None]
    clock_RxW = tf.math.log1p(-uniform(derived(keys_R, 1), number))
    if unit == "span":
        clock_RxW /= tf.cast(tf.maximum(words.sizes_RxW, 1), tf.float32)
    clock_RxW = tf.where(words.sizes_RxW > 0, clock_RxW, -np.inf)
    order_RxW = tf.math.top_k(clock_RxW, tf.shape(number)[1]).indices
    steps = tf.constant(np.cumsum(shares)[:-1], tf.float32)
    draw_RxW = uniform(derived(keys_R, 2), number)
    lengths_RxW = 1 + tf.reduce_sum(tf.cast(draw_RxW[..., None] >= steps, tf.int32), axis=-1)
    return tf.transpose(order_RxW), tf.transpose(lengths_RxW)


def _places(words: Words, taken_A: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The first `taken_A` places of each word, as `choose` gives them."""
    place_C = tf.range(tf.size(words.word_C))
    is_chosen_C = place_C - tf.gather(words.begin_A, words.word_C) < tf.gather(taken_A, words.word_C)
    chosen = tf.boolean_mask(place_C, is_chosen_C)
    splits_R1 = tf.searchsorted(chosen, words.first_R1)
    chosen -= tf.repeat(words.first_R1[:-1], splits_R1[1:] - splits_R1[:-1])
    place_RxP = tf.RaggedTensor.from_row_splits(chosen, splits_R1, validate=False).to_tensor(tf.int32.max)
    return place_RxP, place_RxP < tf.int32.max
