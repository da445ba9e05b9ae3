"""Many records of real text for properties of preprocessors: the topics of `help()` as bytes, ids 3 … 258."""

import functools
from pydoc_data.topics import topics

import numpy as np
import tensorflow as tf

from jaxpt.data.preprocessors.batched import fold_in

SIZE = 259  # ids of bytes, and three before them


@functools.cache
def lengths(count=3_000, longest=64):
    """Random lengths; the first are the shortest there are."""
    drawn = np.random.default_rng(0).integers(1, longest + 1, count)
    drawn[:8] = [1, 1, 1, 1, 2, 2, 3, longest]
    return drawn


@functools.cache
def texts(count=3_000, longest=64):
    """Ids of each record, as they stand one after the other in the corpus."""
    ids = np.frombuffer("\n".join(topics.values()).encode(), np.uint8).astype(np.int32) + 3
    ends = np.cumsum(lengths(count, longest))
    return np.split(np.resize(ids, ends[-1]), ends[:-1])


@functools.cache
def documents():
    """Real texts of many lines and names: the topics of `help()` and NumPy's docstrings."""
    described = (x.__doc__ for _, x in sorted(vars(np).items()) if not isinstance(x, (int, float, str)))
    return [*topics.values(), *sorted({text for text in described if isinstance(text, str)})]


def ragged(rows, dtype=np.int32):
    """Rows as a feature of a batch."""
    values = np.concatenate([np.zeros(0, dtype), *rows]).astype(dtype)
    return tf.RaggedTensor.from_row_lengths(values, np.array([len(row) for row in rows], np.int64))


def keys(count, number=0):
    """A key for each record."""
    return tf.constant(fold_in(np.arange(count, dtype=np.uint64), number))


def rows(x):
    """A feature of a batch as arrays."""
    return np.split(x.values.numpy(), x.row_splits.numpy()[1:-1])


def run(preprocessor, rows_, number=0, **settings):
    """What a preprocessor makes of rows of tokens: {feature: arrays}."""
    made = preprocessor.batched({"tokens": ragged(rows_)}, keys(len(rows_), number), **settings)
    return {name: rows(x) for name, x in made.items()}


def numbered(sizes, first=1000):
    """Texts first, first + 1, …: every token is told from every other."""
    return [np.arange(first, first + n) for n in sizes]
