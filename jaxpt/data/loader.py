"""Batches: a pure function of (records, seed), addressed by index, so that a resume seeks instead of replaying.

    index i → epoch e = i // n, place p = i % n
            → record = permutation of epoch e at p                (tf.random index_shuffle, nothing is materialised)
            → features = present(record, noise keyed by (seed, phase, i))
    step s  = indices s·batch … (s + 1)·batch - 1

The stream is the same whatever the number of hosts, threads or restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxpt.data._tf import tf
from jaxpt.data.store import Ragged, Store
from jaxpt.data.tasks import Features, Record, key

_NO_END = np.iinfo(np.int64).max

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
        self._store, self._readers, self._order = store, readers, key(seed, "order")

        def make(record: Record, index: tf.Tensor, valid: tf.Tensor) -> Record:
            made = present(record, index)
            return {name: made[name] * tf.cast(valid, made[name].dtype) for name in self.features if name in made}

        # Traced once; every pass over the stream runs the same graph.
        scalars = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.bool))
        self._make = tf.function(make, input_signature=[store.spec, *scalars])
        check_features(self._make.get_concrete_function().structured_outputs, self.features)

    def batches(self, start: int = 0, rows: slice | None = None) -> Iterator[Batch]:
        """Training batches without end; every epoch is another permutation with other noise.

        Args:
          start: first step, counted from the start of the phase. Starting late costs no more than starting at 0.
          rows: this host's rows of the global batch; all by default.

        Yields:
          {feature: array [rows, ...]}.
        """
        ids = self._rows(self.batch_size, rows)

        def indices(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            index = step * self.batch_size + ids
            return index, self._shuffled(index), tf.ones_like(index, tf.bool)

        ds = tf.data.Dataset.range(start, _NO_END).map(indices)
        return self._iterate(ds, len(ids))

    def epoch(self, batch_size: int, limit: int | None = None, rows: slice | None = None) -> Iterator[Batch]:
        """Every record exactly once, in order, always under the same noise: for validation.

        Args:
          batch_size: rows of the global batch. The last batch is filled up with rows of zeros.
          limit: only the first so many records.
          rows: this host's rows of the global batch; all by default.

        Yields:
          {feature: array [rows, ...]}.
        """
        ids, end = self._rows(batch_size, rows), min(limit or self.num_records, self.num_records)

        def indices(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            index = step * batch_size + ids
            return index, tf.minimum(index, end - 1), index < end

        ds = tf.data.Dataset.range(-(-end // batch_size)).map(indices)
        return self._iterate(ds, len(ids))

    def example(self, index: int) -> dict[str, Any]:
        """One example of the training stream, to look at.

        Args:
          index: its place in the stream, from 0.

        Returns:
          The record before noise (its features, among them "origin"), and over these the features of the batch.
        """
        index_ = tf.constant([index], tf.int64)
        ds = tf.data.Dataset.from_tensors((index_, self._shuffled(index_), tf.constant([True])))
        record = next(iter(self._records(ds)))[0]
        features = next(self._iterate(ds, 1))
        return {k: v.numpy() for k, v in record.items()} | {k: v[0] for k, v in features.items()}

    def _rows(self, batch_size: int, rows: slice | None) -> np.ndarray:
        return np.arange(batch_size, dtype=np.int64)[rows or slice(None)]

    def _shuffled(self, index: tf.Tensor) -> tf.Tensor:
        """Record of each index: a permutation of 0 … n-1 for each epoch."""
        epoch, place = index // self.num_records, index % self.num_records
        seed = tf.stack([tf.fill(tf.shape(epoch), np.int64(self._order)), epoch, tf.zeros_like(epoch)], axis=1)
        # The raw operation takes one seed per index; the public function (TF 2.21) only one for all of them.
        last = tf.constant(self.num_records - 1, tf.int64)
        return tf.raw_ops.RandomIndexShuffle(index=place, seed=seed, max_index=last, rounds=4)

    def _records(self, ds: tf.data.Dataset) -> tf.data.Dataset:
        """(indices, record numbers, valid) of a batch → (record, index, valid) one by one."""
        spec = self._store.spec
        ragged = [name for name, s in spec.items() if s.shape.rank == 1 and s.shape[0] is None]
        fixed = [name for name in spec if name not in ragged]

        def read(numbers: np.ndarray) -> list[np.ndarray]:
            rows = self._store.fetch(numbers)
            return [part for name in ragged for part in Ragged(*rows[name])] + [rows[name] for name in fixed]

        dtypes = [d for name in ragged for d in (spec[name].dtype, tf.int64)] + [spec[name].dtype for name in fixed]

        def fetch(index: tf.Tensor, numbers: tf.Tensor, valid: tf.Tensor) -> tuple[Record, tf.Tensor, tf.Tensor]:
            parts = list(tf.numpy_function(read, [numbers], dtypes))
            record = {}
            for name in ragged:
                values, lengths = parts.pop(0), parts.pop(0)
                values.set_shape([None])
                lengths.set_shape([None])
                record[name] = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
            for name, value in zip(fixed, parts):
                record[name] = tf.ensure_shape(value, [None, *spec[name].shape])
            return record, index, valid

        return ds.map(fetch, num_parallel_calls=self._threads, deterministic=True).unbatch()

    @property
    def _threads(self) -> int:
        return self._readers or tf.data.AUTOTUNE

    def _iterate(self, ds: tf.data.Dataset, rows: int) -> Iterator[Batch]:
        ds = self._records(ds).map(self._make, num_parallel_calls=self._threads, deterministic=True)
        ds = ds.batch(rows, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        options = tf.data.Options()
        options.deterministic = True
        if self._readers:
            options.threading.private_threadpool_size = self._readers
        return iter(ds.with_options(options).as_numpy_iterator())


def check_features(spec: dict[str, tf.TensorSpec], features: Features) -> None:
    """Compares what the preprocessors give with what the objective declares.

    Args:
      spec: of one example, as it comes out.
      features: {name: (shape, dtype)}, as declared.

    Raises:
      ValueError: names the first feature that is missing or differs.
    """
    for name, (shape, dtype) in features.items():
        if name not in spec:
            raise ValueError(f"objective.features declares {name}, its preprocessors give {', '.join(sorted(spec))}")
        got = (tuple(spec[name].shape), spec[name].dtype.name)
        if got != (tuple(shape), dtype):
            raise ValueError(
                f"objective.features declares {name} as {dtype}{list(shape)}, "
                f"its preprocessors give {got[1]}{list(got[0])}"
            )
