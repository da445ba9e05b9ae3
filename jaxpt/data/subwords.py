"""fastText's n-grams of a word, hashed into buckets. Paper: https://arxiv.org/abs/1607.04606"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

_OFFSET, _PRIME = 2166136261, 16777619  # FNV-1a of 32 bits


def fnv1a(text: bytes) -> int:
    """FNV-1a's hash of 32 bits, as fastText's: bytes above 127 count as negative ones.

    Example:
      >>> fnv1a(b"a"), fnv1a("é".encode())
      (3826002220, 1023043777)
    """
    value = _OFFSET
    for byte in text:
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * _PRIME) & 0xFFFFFFFF
    return value


def ngrams(word: str, shortest: int, longest: int) -> list[str]:
    """The n-grams of <word>, without its two signs alone.

    Example:
      >>> ngrams("cat", 3, 4)
      ['<ca', '<cat', 'cat', 'cat>', 'at>']
    """
    signed = f"<{word}>"
    ends = ((i, i + n) for i in range(len(signed)) for n in range(shortest, longest + 1))
    return [signed[i:j] for i, j in ends if j <= len(signed) and (j - i > 1 or 0 < i < len(signed) - 1)]


def buckets(word: str, shortest: int, longest: int, count: int) -> list[int]:
    """The bucket of each n-gram of a word: 0 … count − 1."""
    return [fnv1a(gram.encode()) % count for gram in ngrams(word, shortest, longest)]


def table(words: Iterable[str], shortest: int, longest: int, count: int, per_word: int) -> np.ndarray:
    """The buckets of many words.

    Args:
      words: V of them.
      shortest: n-gram, in characters.
      longest: n-gram.
      count: buckets.
      per_word: n-grams of a word beyond the first so many are left out.

    Returns:
      int32 [V, per_word], −1 where a word has fewer n-grams.
    """
    ids = [list(itertools.islice(buckets(word, shortest, longest, count), per_word)) for word in words]
    rows = np.full((len(ids), per_word), -1, np.int32)
    for row, of_word in zip(rows, ids):
        row[: len(of_word)] = of_word
    return rows
