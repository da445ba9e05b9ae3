"""What streams of batches share, made from text or read from files: their form, threads that run ahead, whose row is
where. No TensorFlow."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

Batch = dict[str, np.ndarray]
Which = np.ndarray | slice | None
"""This process's rows of the global batch; None: all."""
T = TypeVar("T")


def ahead(make: Callable[[int], T], numbers: Iterable[int], threads: int = 0) -> Iterator[T]:
    """What is made of each number, in their order, by threads that run two items each ahead.

    Python's threads, not tf.data's: a tf.data pipeline that reads through Python can lock up when the program ends.

    Args:
      make: called in any thread.
      numbers: possibly without end.
      threads: 0: one for each core, four at most.

    Returns:
      An iterator; the threads begin at once.
    """
    threads = threads or min(4, os.cpu_count() or 1)
    pool, waiting, numbers = ThreadPoolExecutor(threads, "jaxpt-data"), collections.deque(), iter(numbers)
    waiting.extend(pool.submit(make, number) for number in itertools.islice(numbers, 2 * threads))

    def take() -> Iterator[T]:
        while waiting:
            ready = waiting.popleft().result()
            waiting.extend(pool.submit(make, number) for number in itertools.islice(numbers, 1))
            yield ready

    return take()


def places(step: int, batch_size: int, end: int, rows: Which, continues: bool) -> tuple[np.ndarray, int]:
    """Which rows of an epoch a batch has.

    Args:
      step: the number of the batch.
      batch_size: rows of the global batch.
      end: rows of the epoch.
      rows: those of this process.
      continues: row b of all batches together has the b-th stretch of the epoch.

    Returns:
      (int64 [n]: the places of the rows that are there, rows of the batch with those that are filled up).

    Example:
      >>> [places(step, 2, 5, None, False)[0].tolist() for step in range(3)]
      [[0, 1], [2, 3], [4]]
      >>> [places(step, 2, 5, None, True)[0].tolist() for step in range(3)]
      [[0, 3], [1, 4], [2]]
    """
    row = np.arange(batch_size, dtype=np.int64)[slice(None) if rows is None else rows]
    index = row * steps_of(end, batch_size) + step if continues else step * batch_size + row
    return index[index < end], len(row)


def steps_of(rows: int, batch_size: int) -> int:
    """Batches that hold so many rows."""
    return -(-rows // batch_size)
