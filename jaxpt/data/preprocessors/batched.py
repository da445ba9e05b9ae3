"""Preprocessors written once for many records at a time; of a batch of one record they are SeqIO preprocessors.

A batch of records is {name: RaggedTensor [records, any] for sequences, Tensor [records, ...] for features of fixed
shape}. What becomes of a record depends on the record and on its key alone, never on what else is in the batch. Random
numbers are therefore not drawn one after the other: number j of a record is SplitMix64's, mix(key + j · γ), so that a
whole batch needs a few vector operations.

SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpt.data._tf import seqio, tf
from jaxpt.data.layout import Ragged

Batch = dict[str, "tf.Tensor | tf.RaggedTensor"]
Records = dict[str, Ragged | np.ndarray]
"""A batch outside of TensorFlow."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def one_to_one(function: Callable[..., Batch]) -> Callable[..., tf.data.Dataset]:
    """Makes a SeqIO preprocessor of a function of a batch of records.

    Args:
      function: (batch, ...) → batch. A second parameter `keys` gets the records' keys, uint64 [records], for its draws.

    Returns:
      The preprocessor of a data set of single records. Its attribute `batched` is the function, `__wrapped__` that of
      one record: (example, [seed,] ...) → example.

    Example:
      >>> @one_to_one
      ... def plus(batch, by):
      ...     return {**batch, "x": batch["x"] + by}
      >>> [ex["x"].tolist() for ex in plus(tf.data.Dataset.from_tensors({"x": [1, 2]}), by=3).as_numpy_iterator()]
      [[4, 5]]
    """
    keyed = "keys" in inspect.signature(function).parameters

    def single(ex: dict[str, tf.Tensor], *args: Any, seed: Any = None, **kwargs: Any) -> dict[str, tf.Tensor]:
        if keyed:
            if seed is None:
                seed, *args = args
            args = (fold_in(tf.cast(seed[:1], tf.uint64), tf.cast(seed[1:], tf.uint64)), *args)
        batch = function({name: of_one(x) for name, x in ex.items()}, *args, **kwargs)
        return {name: tf.ensure_shape(x[0], x.shape[1:]) for name, x in batch.items()}

    single = functools.wraps(function)(single)
    preprocessor = one_record(seeds=1 if keyed else None)(single)
    preprocessor.batched = function
    return preprocessor


def one_record(*, seeds: int | None = None) -> Callable[..., Callable[..., tf.data.Dataset]]:
    """Makes a SeqIO preprocessor of a function of one record: `seqio.map_over_dataset`, which can be told by it.

    Args:
      seeds: how many random seeds the function takes, as `seqio.map_over_dataset` gives them; None: it draws nothing.

    Returns:
      A decorator. The preprocessor's attribute `record` is the function, `seeds` the argument.

    Example:
      >>> @one_record()
      ... def plus(ex, by):
      ...     return {**ex, "x": ex["x"] + by}
      >>> [ex["x"].tolist() for ex in plus(tf.data.Dataset.from_tensors({"x": [1, 2]}), by=3).as_numpy_iterator()]
      [[4, 5]]
    """

    def decorate(function: Callable[..., dict[str, tf.Tensor]]) -> Callable[..., tf.data.Dataset]:
        preprocessor = seqio.map_over_dataset(function, num_seeds=seeds)
        preprocessor.record, preprocessor.seeds = function, seeds
        return preprocessor

    return decorate


def makes_rows(function: Callable[..., dict[str, np.ndarray]]) -> Callable[..., tf.data.Dataset]:
    """Makes a SeqIO preprocessor of a function that ends a pipeline: it lays records out in rows, and draws nothing.

    Such a function is NumPy's: the same rows cost TensorFlow's ragged tensors ten times as much.

    Args:
      function: (records, ..., packs) → {feature: array [rows, ...]}. `packs` int64 [rows + 1]: row i is made of records
        packs[i] … packs[i+1]-1; None: each record is a row.

    Returns:
      The preprocessor of a data set of single records. Its attribute `rows` is the function.

    Example:
      >>> @makes_rows
      ... def first(records, packs=None):
      ...     starts = np.cumsum(records["x"].lengths) - records["x"].lengths
      ...     return {"first": records["x"].values[starts if packs is None else starts[packs[:-1]]]}
      >>> [int(ex["first"]) for ex in first(tf.data.Dataset.from_tensors({"x": [7, 8]})).as_numpy_iterator()]
      [7]
    """

    def single(ex: dict[str, tf.Tensor], *args: Any, **kwargs: Any) -> dict[str, tf.Tensor]:
        def apply(*values: np.ndarray) -> dict[str, np.ndarray]:
            records = {name: Ragged(x, np.array([len(x)])) if x.ndim == 1 else x[None] for name, x in zip(ex, values)}
            return function(records, *args, **kwargs)

        # Names, shapes and types are those that it makes of zeros.
        like = apply(*(np.zeros([size or 0 for size in x.shape], x.dtype.as_numpy_dtype) for x in ex.values()))
        types = [x.dtype for x in like.values()]
        rows = tf.numpy_function(lambda *values: list(apply(*values).values()), list(ex.values()), types)
        return {name: tf.ensure_shape(x[0], like[name].shape[1:]) for name, x in zip(like, rows)}

    preprocessor = one_record()(functools.wraps(function)(single))
    preprocessor.rows = function
    return preprocessor


def of_one(x: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """A feature of one record as that of a batch: sequences become ragged."""
    if x.shape.rank != 1 or x.shape[0] is not None:
        return x[None] if x.shape.rank != 1 else tf.RaggedTensor.from_tensor(x[None], row_splits_dtype=tf.int64)
    return tf.RaggedTensor.from_row_lengths(x, [tf.size(x, tf.int64)], validate=False)


def splitmix64(x: Any) -> Any:
    """SplitMix64's finalizer: uint64 → uint64, each bit depends on all bits.

    Args:
      x: uint64, a tensor or a NumPy array.

    Returns:
      The same shape.

    Example:
      >>> hex(splitmix64(np.array([0x9E3779B97F4A7C15], np.uint64))[0])  # the first output of seed 0
      '0xe220a8397b1dcdaf'
    """
    shift, xor = (np.right_shift, np.bitwise_xor) if isinstance(x, np.ndarray) else _TF
    x = xor(x, shift(x, _SHIFTS[0])) * _FACTORS[0]
    x = xor(x, shift(x, _SHIFTS[1])) * _FACTORS[1]
    return xor(x, shift(x, _SHIFTS[2]))


_TF = (tf.bitwise.right_shift, tf.bitwise.bitwise_xor)


def fold_in(keys: Any, number: Any) -> Any:
    """Keys for a purpose: those of other numbers are independent of them.

    Args:
      keys: uint64, a tensor or a NumPy array.
      number: what they are for: a whole number, or uint64 like `keys`.

    Returns:
      uint64 of the shape of `keys`.
    """
    step = np.uint64(number * int(_GAMMA) % 2**64) if isinstance(number, int) else number * _GAMMA
    return splitmix64(keys + step)


def bits(keys_R: Any, number: Any = None) -> Any:
    """31 random bits for each key and number.

    Args:
      keys_R: uint64, a tensor or a NumPy array.
      number: int32 or int64 [records or 1, numbers], likewise; or a ragged feature of the records, each of whose tokens
        has its place as its number; None: one number of each key.

    Returns:
      int32, uniform on 0 … 2^31 - 1: [records, numbers], [tokens of all records], or [records].
    """
    if number is None:
        return bits(keys_R, np.zeros([1, 1], np.int32))[:, 0]
    if isinstance(number, tf.RaggedTensor):
        return bits(tf.repeat(keys_R, number.row_lengths()), places(number)[:, None])[:, 0]
    if isinstance(keys_R, np.ndarray):
        step_RxN = (number.astype(np.uint64) + np.uint64(1)) * _GAMMA
        return (splitmix64(keys_R[:, None] + step_RxN) >> np.uint64(33)).astype(np.int32)
    number = tf.cast(number, tf.uint64) + np.uint64(1)
    return tf.cast(tf.bitwise.right_shift(splitmix64(keys_R[:, None] + number * _GAMMA), np.uint64(33)), tf.int32)


def uniform(keys_R: Any, number: Any = None) -> Any:
    """A number uniform on [0, 1) for each key and number, as `bits`: float32."""
    drawn = bits(keys_R, number)
    if isinstance(drawn, np.ndarray):
        return (drawn >> 7).astype(np.float32) * np.float32(2.0**-24)
    return tf.cast(tf.bitwise.right_shift(drawn, 7), tf.float32) * np.float32(2.0**-24)


def randint(keys_R: Any, limit: Any, number: Any = None) -> Any:
    """A whole number of 0 … limit - 1 for each key and number, as `bits`: int32.

    Args:
      keys_R: uint64, a tensor or a NumPy array.
      limit: a whole number, or int32 of the shape of what `bits` gives.
      number: as `bits` takes it.
    """
    drawn = bits(keys_R, number)
    if isinstance(drawn, np.ndarray):
        return (drawn.astype(np.int64) * limit >> 31).astype(np.int32)
    wide = tf.cast(drawn, tf.int64) * tf.cast(limit, tf.int64)
    return tf.cast(tf.bitwise.right_shift(wide, tf.constant(31, tf.int64)), tf.int32)


def choose(keys_R: tf.Tensor, sizes_R: tf.Tensor, counts_R: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """For each record, so many of its places: every set of them is equally likely.

    Args:
      keys_R: uint64.
      sizes_R: int32, places of each record.
      counts_R: int32, how many to choose, at most as many as there are.

    Returns:
      (int32 [records, most], bool [records, most]): the places ascending, and which of them are real; those after the
      first `counts_R` are int32's maximum.

    Example:
      >>> keys = tf.constant([7, 8], tf.uint64)
      >>> places, real = choose(keys, tf.constant([9, 3]), tf.constant([2, 3]))
      >>> [p[r].tolist() for p, r in zip(places.numpy(), real.numpy())]
      [[2, 3], [0, 1, 2]]
    """
    place = tf.range(tf.reduce_max(tf.concat([sizes_R, [0]], 0)))[None]
    priority = tf.where(place < sizes_R[:, None], bits(keys_R, place), -1)
    max_count = tf.reduce_max(tf.concat([counts_R, [0]], 0))
    best = tf.math.top_k(priority, max_count).indices
    real = tf.range(max_count)[None] < counts_R[:, None]
    return tf.sort(tf.where(real, best, tf.int32.max)), real


def chosen(keys: tf.Tensor, sizes: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """`choose` as a mask of all places of all records end to end.

    Args:
      keys: uint64 [records].
      sizes: int32 [records], places of each record.
      counts: int32 [records], how many to choose, at most as many as there are.

    Returns:
      bool [places of all records].

    Example:
      >>> chosen(tf.constant([7, 8], tf.uint64), tf.constant([4, 3]), tf.constant([2, 3])).numpy().astype(int).tolist()
      [0, 0, 1, 1, 1, 1, 1]
    """
    place, real = choose(keys, sizes, counts)
    at = tf.boolean_mask(tf.cumsum(sizes, exclusive=True)[:, None] + tf.where(real, place, 0), real)
    return tf.scatter_nd(at[:, None], tf.ones_like(at), [tf.reduce_sum(sizes)]) > 0


def places(x: tf.RaggedTensor) -> tf.Tensor:
    """Place of each token in its record: int32 [tokens of all records]."""
    return tf.range(tf.size(x.values)) - tf.cast(tf.repeat(x.row_starts(), x.row_lengths()), tf.int32)


def ragged_mask(x: tf.RaggedTensor, chosen: tf.Tensor) -> tf.RaggedTensor:
    """The chosen tokens of each record.

    Args:
      x: a feature of the records.
      chosen: bool [tokens of all records].

    Returns:
      The same number of records.

    Example:
      >>> x = tf.ragged.constant([[5, 6], [7]], row_splits_dtype=tf.int64)
      >>> ragged_mask(x, tf.constant([False, True, True])).to_list()
      [[6], [7]]
    """
    before = tf.pad(tf.cumsum(tf.cast(chosen, tf.int64)), [[1, 0]])
    return tf.RaggedTensor.from_row_splits(
        tf.boolean_mask(x.values, chosen), tf.gather(before, x.row_splits), validate=False
    )


def reordered(x: tf.RaggedTensor, rank: tf.Tensor) -> tf.RaggedTensor:
    """The tokens of each record in ascending order of their ranks; equal ranks keep their order.

    Args:
      x: a feature of the records.
      rank: int32 [tokens of all records], 0 … 2^31 - 1.

    Returns:
      Records of the same lengths.

    Example:
      >>> reordered(tf.ragged.constant([[5, 6], [7]], row_splits_dtype=tf.int64), tf.constant([4, 3, 0])).to_list()
      [[6, 5], [7]]
    """
    record = tf.repeat(tf.range(x.nrows()), x.row_lengths())
    order = tf.argsort(record * 2**31 + tf.cast(rank, tf.int64), stable=True)
    return x.with_values(tf.gather(x.values, order))


def at_starts(values: tf.Tensor, x: tf.RaggedTensor, value: int | bool) -> tf.Tensor:
    """`values` [tokens of all records] with `value` where a record begins; records without a token are passed over."""
    starts = tf.boolean_mask(x.row_starts(), x.row_lengths() > 0)
    return tf.tensor_scatter_nd_update(values, starts[:, None], tf.fill(tf.shape(starts), value))


def origin(batch: Batch) -> Batch:
    """Where the records are from, and the tokens of their languages, if those are known."""
    return {name: batch[name] for name in ("origin", "language") if name in batch}
