"""Choosing whole words, n-grams and spans of words to be masked, for many records at a time.

The published programs draw units one after the other until enough tokens are chosen. So does this, but one turn of the
loop draws a unit of every record. A word starts where the vocabulary says so, after a special token, and where the text
starts; no unit goes past a special token.

In NumPy: the same as a TensorFlow graph took twice the time.

Papers: n-grams https://arxiv.org/abs/1909.11942 (ALBERT), spans https://arxiv.org/abs/1907.10529 (SpanBERT)

Shapes: R records · N tokens of all records · C those of them that are not special, in each record its places · A words
of all records · W most words of a record, each of which is visited · O records that want more places · K most words
of a unit · P chosen places
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from jaxpt.data.preprocessors.batched import fold_in, uniform

Unit = Literal["piece", "draw", "window", "word", "ngram", "span", "run"]


class Words(NamedTuple):
    """The words of records."""

    first_R1: np.ndarray
    """The first place of each record among those of all, and their number."""
    word_C: np.ndarray
    """The word that a place is in, of all words."""
    splits_R1: np.ndarray
    """The first word of each record, and the number of words."""
    begin_A: np.ndarray
    """The first place of each word."""
    size_A: np.ndarray
    """Places of each word."""
    run_A: np.ndarray
    """Number of the run of text, between special tokens, that a word is in."""


def words(tokens_N: np.ndarray, candidates_C: np.ndarray, first_R1: np.ndarray, starts_V: np.ndarray) -> Words:
    """Finds the words.

    Args:
      tokens_N: int32 ids.
      candidates_C: where in it the tokens are that are not special.
      first_R1: the first candidate of each record, and their number.
      starts_V: bool, whether an id starts a word.

    Returns:
      The words.

    Example:
      >>> tokens = np.array([2, 7, 8, 3, 8, 9, 3])  # 8 is the only id that goes on with a word
      >>> found = words(tokens, np.array([1, 2, 4, 5]), np.array([0, 4]), np.arange(10) != 8)
      >>> found.size_A.tolist(), found.run_A.tolist()
      ([2, 1, 1], [1, 2, 2])
    """
    is_first_C = np.diff(candidates_C, prepend=-2) != 1
    is_first_C[first_R1[:-1][np.diff(first_R1) > 0]] = True
    starts_C = is_first_C | starts_V[tokens_N[candidates_C]]
    begin_A = np.flatnonzero(starts_C)
    return Words(
        first_R1,
        word_C=np.cumsum(starts_C) - 1,
        splits_R1=np.searchsorted(begin_A, first_R1),
        begin_A=begin_A,
        size_A=np.diff(begin_A, append=len(starts_C)),
        run_A=np.cumsum(is_first_C)[begin_A],
    )


def choose(keys_R: np.ndarray, words: Words, counts_R: np.ndarray, unit: Unit, shares: Sequence[float]) -> np.ndarray:
    """Chooses units, each of 1, 2, … words by the shares, until so many places are chosen.

        word, ngram  The words are visited in random order. The n-gram that starts there is taken, shortened word by
                     word until it does not go over the count; it is passed over where one word does, or where any of
                     it has been taken before (BERT's whole-word masking, ALBERT). Fewer than the count may result.
        span         A place that is not chosen yet is drawn. Its word and those after it are taken, also where some
                     have been before, up to exactly the count, which may split the last word (SpanBERT). Spans that
                     touch become one.
        run          A span of pieces instead of words, taken whole; of all that are chosen then, pieces drawn uniformly
                     are given up again, down to exactly the count (UniLM).

    Args:
      keys_R: uint64.
      words: of the records; of runs each piece by itself.
      counts_R: int32, most places chosen, at most as many as there are.
      unit: "word", "ngram", "span" or "run".
      shares: probability of 1, 2, … words in a unit.

    Returns:
      int32 [R, P]: the places ascending; after the last of a record int32's maximum, as `batched.choose` gives them.

    Example:
      >>> tokens = np.array([2, 7, 8, 7, 8, 8, 7, 3])
      >>> found = words(tokens, np.arange(1, 7), np.array([0, 6]), np.arange(10) != 8)
      >>> for seed in range(3):
      ...     print(choose(np.array([seed], np.uint64), found, np.array([3]), "word", [1.0]).tolist())
      [[0, 1, 5]]
      [[0, 1, 5]]
      [[2, 3, 4]]
    """
    order_RxW, lengths_RxW = draws(keys_R, words, unit, shares)
    nth_K, left_R, words_R = np.arange(len(shares)), counts_R.astype(np.int64), np.diff(words.splits_R1)
    size_A, run_A = (np.append(x, np.full(len(shares), -1)) for x in (words.size_A, words.run_A))
    taken_A = np.zeros(len(size_A), np.int64)
    for visit in range(order_RxW.shape[1]):
        open_O = np.flatnonzero((left_R > 0) & (visit < words_R))
        if not len(open_O):
            break
        left_O = left_R[open_O, None]
        at_OxK = (words.splits_R1[open_O] + order_RxW[open_O, visit])[:, None] + nth_K
        was_OxK, run_OxK = taken_A[at_OxK] > 0, run_A[at_OxK]
        of_unit_OxK = (nth_K < lengths_RxW[open_O, visit, None]) & (run_OxK == run_OxK[:, :1])
        if unit in ("span", "run"):
            is_new_OxK = of_unit_OxK & ~was_OxK & ~was_OxK[:, :1]
            size_OxK = np.where(is_new_OxK, size_A[at_OxK], 0)
            if unit == "span":
                room_OxK = left_O - np.cumsum(size_OxK, axis=1) + size_OxK
                size_OxK = np.clip(room_OxK, 0, size_OxK)
        else:
            fits_OxK = of_unit_OxK & (np.cumsum(size_A[at_OxK], axis=1) <= left_O)
            is_new_OxK = fits_OxK & ~(fits_OxK & was_OxK).any(axis=1, keepdims=True)
            size_OxK = np.where(is_new_OxK, size_A[at_OxK], 0)
        taken_A[at_OxK[is_new_OxK]] = size_OxK[is_new_OxK]
        left_R[open_O] -= size_OxK.sum(axis=1)
    taken_A = taken_A[: len(words.size_A)]
    if unit == "run":
        _give_up(keys_R, words, taken_A, np.maximum(-left_R, 0))
    return _places(words, taken_A)


def _give_up(keys_R: np.ndarray, words: Words, taken_A: np.ndarray, excess_R: np.ndarray) -> None:
    """Gives up so many of each record's pieces, drawn uniformly, in place."""
    at = np.flatnonzero(taken_A)
    record = np.searchsorted(words.splits_R1, at, side="right") - 1
    draw_RxW = uniform(fold_in(keys_R, 3), np.arange(np.diff(words.splits_R1).max(initial=0))[None])
    order = np.lexsort((draw_RxW[record, at - words.splits_R1[record]], record))
    nth = np.arange(len(at)) - np.searchsorted(record, record)  # in the order of the draws; records ascend in both
    taken_A[at[order][nth < excess_R[record]]] = 0


def draws(keys_R: np.ndarray, words: Words, unit: Unit, shares: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The words in the order of their visits, and how many are drawn for each: int [R, W].

    A drawn place's word is drawn with a weight of its size: ordering by -ln(1 - u) / weight is drawing by weight.
    """
    words_R = np.diff(words.splits_R1)
    number_W = np.arange(words_R.max(initial=0))
    real_RxW = number_W < words_R[:, None]
    clock_RxW = uniform(fold_in(keys_R, 1), number_W[None])
    if unit == "span":
        clock_RxW = -np.log1p(-clock_RxW)
        clock_RxW[real_RxW] /= words.size_A.astype(np.float32)
    # Floats that are not negative have the order of their bits; with the word's number below them all differ.
    clock_RxW = np.where(real_RxW, np.abs(clock_RxW), np.float32(np.inf)).view(np.int32).astype(np.int64)
    order_RxW = np.sort(clock_RxW << 24 | number_W, axis=1) & (2**24 - 1)
    if len(shares) == 1:
        return order_RxW, np.ones_like(order_RxW)
    steps = np.cumsum(shares)[:-1].astype(np.float32)
    return order_RxW, 1 + np.searchsorted(steps, uniform(fold_in(keys_R, 2), number_W[None]), side="right")


def _places(words: Words, taken_A: np.ndarray) -> np.ndarray:
    """The first `taken_A` places of each word, as `choose` gives them."""
    chosen = np.flatnonzero(np.arange(len(words.word_C)) < (words.begin_A + taken_A)[words.word_C])
    bounds_R1 = np.searchsorted(chosen, words.first_R1)
    counts_R = np.diff(bounds_R1)
    place_RxP = np.full((len(counts_R), counts_R.max(initial=0)), np.iinfo(np.int32).max, np.int32)
    real_RxP = np.arange(place_RxP.shape[1]) < counts_R[:, None]
    place_RxP[real_RxP] = chosen - np.repeat(words.first_R1[:-1], counts_R)
    return place_RxP
