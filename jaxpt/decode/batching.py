"""Batches of static shapes from lists of ids: rows of similar length together, lengths rounded up to few values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpt.errors import UserError
from jaxpt.models.logits import CHUNK_BYTES
from jaxpt.models.network import Network
from jaxpt.parallel import compiler, rules
from jaxpt.parallel.distributed import to_host

MAX_TOKENS = {"cpu": 2048}
"""Default number of tokens in a batch on each device, padding included; a CPU is no faster with more."""
OTHERWISE = 16_384
"""The same on other platforms."""
LEAST = 16
"""Smallest bucket."""
Size = tuple[int, ...]
ROW = 192
OPEN = 4096
"""Rows that `pack` tries to fill."""


def power_of_two(length: int, limit: int | None = None, least: int = 1) -> int:
    """The next power of two, at most the limit.

    Args:
      length: any number.
      limit: maximum.
      least: minimum, a power of two.

    Returns:
      The rounded number.

    Example:
      >>> power_of_two(3), power_of_two(17), power_of_two(17, limit=24)
      (4, 32, 24)
    """
    padded = max(least, 1 << max(length - 1, 0).bit_length())
    return padded if limit is None else min(padded, limit)


def bucket(length: int, limit: int | None = None, least: int = LEAST, step: int = 8) -> int:
    """The length to which a row is padded: a power of two up to twice the step, then a multiple of it, with four values
    from 64 to 128, four to 256, and so on, at most the limit.

    Above 32 less than a quarter of a row is padding, and up to a length of 1,024 there are 23 buckets from 16 on.

    Args:
      length: number of tokens, at most `limit`.
      limit: maximum length (the model's positions).
      least: smallest bucket, a power of two.
      step: smallest difference of two buckets above.

    Returns:
      The padded length.

    Example:
      >>> bucket(3), bucket(17), bucket(65), bucket(129), bucket(65, limit=72)
      (16, 24, 80, 160, 72)
      >>> bucket(3, least=1), bucket(9, least=1), bucket(9, least=1, step=4)
      (4, 16, 12)
    """
    if length <= max(2 * step, least):
        return power_of_two(length, limit, least)
    step = max(step, power_of_two(length) // 8)
    padded = math.ceil(length / step) * step
    return padded if limit is None else min(padded, limit)


def row_multiple() -> int:
    """Number of shards of a batch's rows on the mesh in use, 1 without a mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape.get(axis, 1) for axis in rules.BATCH)


def independent(network: Network) -> tuple[Network, bool]:
    """The network with which no text depends on the others of its batch, and whether a batch may join sizes then.

    With a capacity of experts it may not: the places are those of a row, and may go by its padded length.
    """
    has_capacity = network.config.has_capacity
    return (network.with_model(group_rows=1) if has_capacity else network), not has_capacity


def batches(
    sizes: Sequence[Size],
    tokens: Callable[[Size], int],
    vocab_size: int,
    max_tokens: int | None = None,
    joins_sizes: bool = True,
) -> Iterator[tuple[Size, list[int], int]]:
    """Batches of items of similar size, the largest first.

    All batches but the last are full, and the number of rows depends on the size alone. So there are at most as many
    programs as batches, and as many as distinct sizes and one. The logits of one position of all rows take at most
    `CHUNK_BYTES` on each device.

    Args:
      sizes: bucket of each item, a tuple of lengths; items are sorted by the first one, then by the others.
      tokens: tokens of an item, from its size.
      vocab_size: columns of the logits.
      max_tokens: tokens of a batch on each device, None: `MAX_TOKENS`; an item that is longer is a batch alone.
      joins_sizes: a batch takes items of smaller sizes, too; False: all items of a batch have its size.

    Yields:
      (size, numbers of the items, places for items): the size has the maximum of each length. The number of places is
      a power of two times the shards of the mesh; those after the items are padding.

    Example:
      >>> list(batches([(16,), (32,), (16,), (16,)], lambda size: size[0], 100, 32))
      [((32,), [1], 1), ((16,), [0, 2], 2), ((16,), [3], 1)]
    """
    shards = row_multiple()
    max_tokens = max_tokens or MAX_TOKENS.get(compiler.platform(), OTHERWISE)

    def places(size: Size) -> int:
        max_rows = min(max_tokens // tokens(size), CHUNK_BYTES // (4 * vocab_size))
        return shards << max(max_rows, 1).bit_length() - 1

    order, first = sorted(range(len(sizes)), key=lambda item: sizes[item], reverse=True), 0
    while first < len(order):
        size, end = sizes[order[first]], first + 1
        while end < len(order):
            joined = tuple(map(max, size, sizes[order[end]]))
            if end - first >= places(joined) or not (joins_sizes or sizes[order[end]] == size):
                break
            size, end = joined, end + 1
        count = end - first
        yield size, order[first:end], min(places(size), shards * power_of_two(math.ceil(count / shards)))
        first = end


def pack(sizes: Sequence[Size], length: int = ROW) -> list[list[int]]:
    """Items side by side in rows: first-fit, the longest first.

    The length of a row is a multiple of its longest item, so that items of similar length fill it.

    Args:
      sizes: lengths of each item, one for each sequence (a decoder's, an encoder's).
      length: of a row; one with a longer item is as long as that.

    Returns:
      Numbers of the items in each row.

    Example:
      >>> pack([(100,), (30,), (200,), (60,), (20,)], 192)
      [[2, 4], [0], [3, 1]]
      >>> pack([(96, 4), (20, 60), (20, 50), (20, 50)], 192)  # encoder and decoder: both fit
      [[0, 1, 2, 3]]
    """
    rows: list[list[int]] = []
    room = np.zeros((len(sizes), len(sizes[0]) if sizes else 1), np.int64)
    for item in sorted(range(len(sizes)), key=lambda item: (max(sizes[item]), sizes[item]), reverse=True):
        newest = max(len(rows) - OPEN, 0)
        fits = (room[newest : len(rows)] >= sizes[item]).all(1)
        row = newest + int(fits.argmax()) if fits.any() else len(rows)
        if row == len(rows):
            rows.append([])
            longest = max(sizes[item])
            room[row] = bucket(longest * max(length // longest, 1))
        rows[row].append(item)
        room[row] -= sizes[item]
    return rows


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

    On a mesh the rows are sharded over the axes of the batch. Where `params` are shapes with shardings, the program is
    compiled for later calls, and the result is zeros.

    Args:
      function: a pure function, defined at the top of a module.
      static: hashable arguments.
      params: the network's parameters.
      *arrays: the batch, the same in all processes.

    Returns:
      The result with NumPy leaves, the same in all processes.
    """
    jitted, programs = _compiled(function, static, compiler.platform())
    arrays = tuple(map(sharded, arrays))
    leaves, structure = jax.tree.flatten(params)
    key = (structure, *((x.shape, x.dtype, getattr(x, "sharding", None)) for x in (*leaves, *arrays)))
    if key not in programs:
        programs[key] = jitted.lower(params, *arrays).compile()
    if isinstance(leaves[0], jax.ShapeDtypeStruct):
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jitted.eval_shape(params, *arrays))
    return jax.tree.map(to_host, programs[key](params, *arrays))


def sharded(x: np.ndarray) -> np.ndarray | jax.Array:
    """An array whose rows are on the devices of the mesh in use, if there is one with axes of the batch.

    Args:
      x: of a batch, the same in all processes.

    Returns:
      The array on the devices, or as it is.
    """
    if row_multiple() == 1 or len(x) % row_multiple():
        return x
    sharding = rules.batch_sharding(jax.sharding.get_mesh())
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


@functools.lru_cache(256)
def _compiled(function: Callable[..., Any], static: tuple[Any, ...], platform: str) -> tuple[Any, dict[Any, Any]]:
    """The function to compile, and its programs by the shapes and shardings of their arguments."""
    return compiler.jit(functools.partial(function, *static)), {}


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
