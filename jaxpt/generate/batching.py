"""Batches of static shapes from lists of ids: rows of similar length together, lengths rounded up to powers of two."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpt.errors import UserError
from jaxpt.losses import CHUNK_BYTES
from jaxpt.parallel import compiler
from jaxpt.parallel.distributed import to_host

MAX_TOKENS = 16_384
"""Default number of tokens in a batch, padding included."""
LEAST = 16
"""Smallest bucket."""


def bucket(length: int, limit: int | None = None, least: int = LEAST) -> int:
    """The length to which a row is padded: the next power of two, at most the limit.

    Args:
      length: number of tokens, at most `limit`.
      limit: maximum length (the model's positions).
      least: smallest bucket.

    Returns:
      The padded length.

    Example:
      >>> bucket(3), bucket(17), bucket(17, limit=24)
      (16, 32, 24)
    """
    padded = max(least, 1 << max(length - 1, 0).bit_length())
    return padded if limit is None else min(padded, limit)


def batches(
    sizes: Sequence[tuple[int, ...]], tokens: Callable[[tuple[int, ...]], int], vocab_size: int, max_tokens: int
) -> Iterator[tuple[tuple[int, ...], list[int], int]]:
    """Groups items of equal bucket.

    All batches of a bucket have the same number of rows, so that each bucket is compiled once. The logits of one
    position of all rows take at most `CHUNK_BYTES`.

    Args:
      sizes: bucket of each item, a tuple of lengths.
      tokens: tokens of a row, from its bucket.
      vocab_size: columns of the logits.
      max_tokens: tokens of a batch; a row that is longer is a batch alone.

    Yields:
      (bucket, numbers of its items, rows): at most `rows` items, in the given order; the rest are padding rows.

    Example:
      >>> list(batches([(16,), (32,), (16,), (16,)], lambda size: size[0], 100, 32))
      [((16,), [0, 2], 2), ((16,), [3], 2), ((32,), [1], 1)]
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for item, size in enumerate(sizes):
        groups.setdefault(size, []).append(item)
    for size, items in sorted(groups.items()):
        most = max(1, min(max_tokens // tokens(size), CHUNK_BYTES // (4 * vocab_size)))
        rows = min(1 << most.bit_length() - 1, bucket(len(items), least=1))
        for first in range(0, len(items), rows):
            yield size, items[first : first + rows], rows


def padded_with_lengths(rows: Sequence[Sequence[int]], batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different length as an array, filled up with zeros, and their lengths.

    Args:
      rows: lists of ids.
      batch: rows of the result; those after the given ones are empty.
      length: columns of the result.

    Returns:
      (int32 [batch, length], int32 [batch]).

    Example:
      >>> tokens, lengths = padded_with_lengths([[1, 2], [3]], 3, 3)
      >>> tokens.tolist(), lengths.tolist()
      ([[1, 2, 0], [3, 0, 0], [0, 0, 0]], [2, 1, 0])
    """
    out, lengths = np.zeros((batch, length), np.int32), np.zeros(batch, np.int32)
    for b, row in enumerate(rows):
        out[b, : len(row)], lengths[b] = row, len(row)
    return out, lengths


def run(function: Callable[..., Any], static: tuple[Any, ...], params: Any, *arrays: np.ndarray) -> Any:
    """Compiles and runs `function(*static, params, *arrays)`; compiled once for each static value and shape.

    Args:
      function: a pure function, defined at the top of a module.
      static: hashable arguments.
      params: the network's parameters.
      *arrays: the batch.

    Returns:
      The result with NumPy leaves.
    """
    return jax.tree.map(to_host, _compiled(function, static, compiler.platform())(params, *arrays))


@functools.lru_cache(256)
def _compiled(function: Callable[..., Any], static: tuple[Any, ...], platform: str) -> Any:
    return compiler.jit(functools.partial(function, *static))


def check_ids(name: str, rows: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raises UserError if an id is not in the vocabulary.

    Args:
      name: what the rows are, for the message.
      rows: lists of ids.
      vocab_size: number of ids.
    """
    for item, row in enumerate(rows):
        wrong = next((i for i in row if not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise UserError(f"{name} {item}: id {wrong} is not in the vocabulary of {vocab_size} ids")
