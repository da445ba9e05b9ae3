"""Batches: a pure function of (records, seed), addressed by index, so that a resume seeks instead of replaying.

    index i → epoch e = i // n, place p = i % n
            → record = permutation of epoch e at p                (RandomIndexShuffle: nothing is materialised)
            → features = present(record, noise keyed by (seed, phase, i))   (SeqIO's preprocessors, in one graph)
    step s  = indices s·batch … (s + 1)·batch - 1

The stream is the same whatever the number of hosts, threads or restarts.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.store import Ragged, Store
from jaxpt.data.tasks import Features, Record, key

Batch = dict[str, np.ndarray]


class Stream:
    """The examples of one split in one phase.

    Attributes:
      num_records: records in an epoch.
      features: {name: (shape without the batch, dtype)}.
    """

    def __init__(
        self,
        store: Store,
        present: Callable[[Record, tf.Tensor], Record],
        features: Features,
        batch_size: int,
        seed: int,
        readers: int = 0,
    ) -> None:
        """A stream over `store`; `present` makes the features, `seed` keys the order, `readers` are threads."""
        self.num_records, self.features, self.batch_size = len(store), dict(features), batch_size
        self._store, self._order = store, key(seed, "order")
        self._threads = readers or min(4, os.cpu_count() or 1)
        self._make = _compiled(store, present, self.features)

    def batches(self, start: int = 0, rows: slice | None = None) -> Iterator[Batch]:
        """Training batches without end; every epoch is another permutation with other noise.

        Args:
          start: first step, counted from the start of the phase. Starting late costs no more than starting at 0.
          rows: this host's rows of the global batch; all by default.

        Returns:
          An iterator of {feature: array [rows, ...]}.
        """
        row = np.arange(self.batch_size, dtype=np.int64)[rows or slice(None)]

        def batch(step: int) -> Batch:
            index = step * self.batch_size + row
            return self._batch(index, self._shuffled(index), np.ones_like(index, bool))

        return _ahead(batch, itertools.count(start), self._threads)

    def epoch(self, batch_size: int, limit: int | None = None, rows: slice | None = None) -> Iterator[Batch]:
        """Every record exactly once, in order, always under the same noise: for validation.

        Args:
          batch_size: rows of the global batch. The last batch is filled up with rows of zeros.
          limit: only the first so many records.
          rows: this host's rows of the global batch; all by default.

        Returns:
          An iterator of {feature: array [rows, ...]}.
        """
        row, end = np.arange(batch_size, dtype=np.int64)[rows or slice(None)], self.num_records
        end = end if limit is None else min(limit, end)

        def batch(step: int) -> Batch:
            index = step * batch_size + row
            return self._batch(index, np.minimum(index, end - 1), index < end)

        return _ahead(batch, range(-(-end // batch_size)), self._threads)

    def example(self, index: int, shuffled: bool = True) -> dict[str, Any]:
        """One example, to look at.

        Args:
          index: its place, from 0.
          shuffled: its place in `batches`, else in `epoch`.

        Returns:
          The record before noise (its features, among them "origin"), and over these the features of the batch.
        """
        at = np.array([index], np.int64)
        row = self._shuffled(at) if shuffled else at
        record = {k: v.values if isinstance(v, Ragged) else v[0] for k, v in self._store.fetch(row).items()}
        return record | {k: v[0] for k, v in self._batch(at, row, np.array([True])).items()}

    def _shuffled(self, index: np.ndarray) -> np.ndarray:
        """Record of each index: a permutation of 0 … n-1 for each epoch."""
        epoch, place = np.divmod(index, self.num_records)
        seed = np.stack([np.full_like(epoch, self._order), epoch, np.zeros_like(epoch)], axis=1)
        # The raw operation takes one seed per index; the public function (TF 2.21) only one for all of them.
        last = np.int64(self.num_records - 1)
        return tf.raw_ops.RandomIndexShuffle(index=place, seed=seed, max_index=last, rounds=4).numpy()

    def _batch(self, index: np.ndarray, record: np.ndarray, valid: np.ndarray) -> Batch:
        return {name: value.numpy() for name, value in self._make(self._store.fetch(record), index, valid).items()}


def _compiled(
    store: Store, present: Callable[[Record, tf.Tensor], Record], features: Features
) -> Callable[..., Record]:
    """(rows of the store, index [rows], valid [rows]) → features [rows, ...], as one graph."""
    spec = store.spec
    ragged = {name for name, s in spec.items() if s.shape.rank == 1 and s.shape[0] is None}

    def one(args: tuple[Record, tf.Tensor, tf.Tensor]) -> Record:
        record, index, valid = args
        made = present({name: tf.ensure_shape(value, spec[name].shape) for name, value in record.items()}, index)
        check_features(made, features)
        return {name: made[name] * tf.cast(valid, made[name].dtype) for name in features}

    def make(rows: dict[str, Any], index: tf.Tensor, valid: tf.Tensor) -> Record:
        records = {
            name: tf.RaggedTensor.from_row_lengths(*value, validate=False) if name in ragged else value
            for name, value in rows.items()
        }
        out = {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in features.items()}
        return tf.map_fn(one, (records, index, valid), fn_output_signature=out, parallel_iterations=4)

    def rows(name: str) -> Any:
        values = tf.TensorSpec([None, *([] if name in ragged else spec[name].shape)], spec[name].dtype)
        return Ragged(values, tf.TensorSpec([None], tf.int64)) if name in ragged else values

    compiled = tf.function(
        make,
        input_signature=[
            {name: rows(name) for name in spec},
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.bool),
        ],
    )
    compiled.get_concrete_function()  # a mistake in a preprocessor shows here, not at the first step
    return compiled


def _ahead(batch: Callable[[int], Batch], steps: Iterable[int], threads: int) -> Iterator[Batch]:
    """Batches in the order of their steps, made by `threads` threads that run two batches each ahead.

    Python's threads, not tf.data's: a tf.data pipeline that reads through Python can lock up when the program ends.
    """
    pool, waiting, steps = ThreadPoolExecutor(threads, "jaxpt-data"), collections.deque(), iter(steps)
    waiting.extend(pool.submit(batch, step) for step in itertools.islice(steps, 2 * threads))

    def take() -> Iterator[Batch]:
        while waiting:
            ready = waiting.popleft().result()
            waiting.extend(pool.submit(batch, step) for step in itertools.islice(steps, 1))
            yield ready

    return take()


def check_features(made: Record, features: Features) -> None:
    """Compares what the preprocessors give with what the objective declares.

    Args:
      made: one example, as it comes out.
      features: {name: (shape, dtype)}, as declared.

    Raises:
      ValueError: names the first feature that is missing or differs.
    """
    for name, (shape, dtype) in features.items():
        if name not in made:
            raise ValueError(f"objective.features declares {name}, its preprocessors give {', '.join(sorted(made))}")
        got = (tuple(made[name].shape), made[name].dtype.name)
        if got != (tuple(shape), dtype):
            raise ValueError(
                f"objective.features declares {name} as {dtype}{list(shape)}, "
                f"its preprocessors give {got[1]}{list(got[0])}"
            )
