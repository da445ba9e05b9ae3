"""A trigram model with modified Kneser-Ney smoothing, counted by sorting: what a language model is compared with.

    p(w | u v) = max(c(uvw) − D(c(uvw)), 0) / c(uv·) + γ(uv) · p(w | v)
    γ(uv)      = Σ_k D(k) · n_k(uv·) / c(uv·),   n_k(uv·): words that followed uv k times, k = 1, 2, 3 and more

p(w | v) and p(w) are the same of continuation counts: how many different words came before vw, and before w. Below p(w)
is 1/V. The discounts of each order are estimated from its counts of counts n_k: D(k) = k − (k + 1) · Y · n_{k+1} / n_k,
Y = n_1 / (n_1 + 2 n_2).
Paper: https://dash.harvard.edu/handle/1/25104739 (Chen and Goodman, 1998)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of counts too small to be estimated from (KenLM's)."""
Counts = tuple[np.ndarray, np.ndarray]
"""(different numbers, sorted; how often each occurs), int64."""


def count_codes(chunks: Iterable[np.ndarray]) -> Counts:
    """(the different numbers of all chunks, sorted; how often each occurs), int64.

    Counts of about the same size are merged: not all known numbers are sorted again for each chunk.
    """
    parts: list[Counts] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for chunk in chunks:
        parts.append(np.unique(chunk, return_counts=True))
        while len(parts) > 1 and len(parts[-2][0]) < 2 * len(parts[-1][0]):
            parts.append(_merged(parts.pop(), parts.pop()))
    return functools.reduce(_merged, reversed(parts))


def _merged(left: Counts, right: Counts) -> Counts:
    """The counts of both."""
    codes, inverse = np.unique(np.concatenate([left[0], right[0]]), return_inverse=True)
    counts = np.bincount(inverse, np.concatenate([left[1], right[1]]), len(codes))
    return codes, counts.astype(np.int64)


class KneserNey:
    """The model, from triples of ids.

    Example:
      >>> text = np.tile([1, 2, 3, 4], 50)
      >>> model = KneserNey(5, [(text[:-2], text[1:-1], text[2:])])
      >>> bool(model.loss(np.array([1]), np.array([2]), np.array([3]))[0] < 0.1)
      True
    """

    def __init__(self, vocab_size: int, triples: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
        """Counts.

        Args:
          vocab_size: number of ids, at most 2,097,151: three of them are one 64-bit number.
          triples: (first, second, third) ids of neighbouring tokens, in chunks; first is -1 where there is none.
        """
        self.vocab_size = vocab_size
        codes, counts = count_codes(self._code(*ids)[ids[0] >= 0] for ids in triples)
        self._trigrams = _Order(codes, counts, vocab_size)
        codes, counts = np.unique(codes % vocab_size**2, return_counts=True)
        self._bigrams = _Order(codes, counts, vocab_size)
        codes, counts = np.unique(codes % vocab_size, return_counts=True)
        self._unigrams = _Order(codes, counts, vocab_size)

    def loss(self, first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
        """−ln p(third | first second), in nats; of −ln p(third | second) where `first` is -1.

        Args:
          first, second, third: ids [n].
        """
        p = np.full(len(third), 1 / self.vocab_size)
        p = self._unigrams.interpolated(third.astype(np.int64), p)
        p = self._bigrams.interpolated(self._code(0, second, third), p)
        known = first >= 0
        trigram = self._trigrams.interpolated(self._code(np.maximum(first, 0), second, third), p)
        return -np.log(np.where(known, trigram, p))

    def _code(self, first: np.ndarray | int, second: np.ndarray, third: np.ndarray) -> np.ndarray:
        """Three ids as one number."""
        return (np.asarray(first, np.int64) * self.vocab_size + second) * self.vocab_size + third


class _Order:
    """The n-grams of one length: their counts, and what is known of each context."""

    def __init__(self, codes: np.ndarray, counts: np.ndarray, vocab_size: int) -> None:
        self._codes, self._counts, self._vocab_size = codes, counts, vocab_size
        self._discounts = np.array([0.0, *discounts(counts)])
        self._contexts, start = np.unique(codes // vocab_size, return_index=True)
        removed = self._discounts[np.minimum(counts, 3)]
        totals, removed = (np.add.reduceat(x, start) if len(start) else x for x in (counts, removed))
        self._totals, self._backoff = totals, removed / np.maximum(totals, 1)

    def interpolated(self, codes: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """The probabilities of n-grams, from those of the order below; these alone after an unknown context."""
        if not len(self._codes):
            return lower
        at, seen = _find(self._codes, codes)
        counts = self._counts[at] * seen
        context, known = _find(self._contexts, codes // self._vocab_size)
        discounted = np.maximum(counts - self._discounts[np.minimum(counts, 3)], 0)
        p = discounted / self._totals[context] + self._backoff[context] * lower
        return np.where(known, p, lower)


def discounts(counts: np.ndarray) -> tuple[float, float, float]:
    """The discounts of counts 1, 2, and 3 or more.

    Args:
      counts: of each different n-gram.

    Example:
      >>> [round(x, 3) for x in discounts(np.array([1] * 8 + [2] * 4 + [3] * 2 + [4]))]
      [0.5, 1.25, 2.0]
    """
    n1, n2, n3, n4 = (int((counts == k).sum()) for k in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    estimates = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
    if any(not 0 < d <= k for k, d in enumerate(estimates, 1)):
        return FALLBACK
    return tuple(estimates)


def _find(keys: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a place among sorted keys, whether the query is there)."""
    at = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return at, keys[at] == queries
