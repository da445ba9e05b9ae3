"""Batches: a pure function of (records, seed), addressed by index, so that a resume seeks instead of replaying.

    index i → task t, index j in it               quotas in blocks (`order.Mixture`)
            → epoch e = j // n, place j % n
            → row u = permutation of epoch e at the place          nothing is materialised; with updates of a fixed
                                                                   number of examples: row `place` of the epoch's plan;
                                                                   in version 2 of the order: `order.ByShards`
            → records of row u                    itself, or those that were packed into it
            → features = online(records, noise keyed by (seed, phase, task, epoch, record))
    step s  = indices s·batch … (s + 1)·batch - 1

Where an objective carries something from batch to batch, the row's records stand in their order instead, and row b of a
step goes on with row b of the step before: `order.continued`; in `epoch`, row b of B has the b-th of B equal stretches.

The stream is the same whatever the number of hosts, devices, threads or restarts: no step needs the one before it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxpt.data.layout import Ragged
from jaxpt.data.preprocessors.batched import Records, fold_in
from jaxpt.data.records.store import Store
from jaxpt.data.seqio_tasks import key
from jaxpt.data.spec import Features
from jaxpt.data.stream.feed import Batch, Which, ahead, places, steps_of
from jaxpt.data.stream.online import Online
from jaxpt.data.stream.order import ByShards, Mixture, addresses, continued, parts, permuted
from jaxpt.data.stream.packing import Packs
from jaxpt.data.stream.updates import Updates


@dataclasses.dataclass(frozen=True)
class Task:
    """What a stream takes examples from: the records of one split of one task."""

    name: str
    store: Store
    online: Online
    seed: int
    """Key of its order and its noise."""
    packs: Packs | Updates | None = None
    """Which records share a row, in all epochs or, in updates of a fixed number of examples, in each epoch; None: each
    has its own."""
    copies: int | None = None
    """Epoch e has the noise of copy e modulo this; None: every epoch has its own."""
    by_shards: ByShards | None = None
    """Version 2 of the order, where each record has a row of its own; rows are numbered by their addresses then."""

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.store if self.packs is None else self.packs)

    def fetch(self, epoch: np.ndarray, row: np.ndarray) -> tuple[Records, np.ndarray, np.ndarray]:
        """Reads the records of some rows in some epochs.

        Args:
          epoch: int64 [n], in ascending order.
          row: int64 [n].

        Returns:
          (records as `Store.fetch` gives them, keys of their noise uint64 [R], records of each row int64 [n]).
        """
        if isinstance(self.packs, Updates):
            records, splits = self.packs.of(epoch, row)
        else:
            records, splits = (row, np.arange(len(row) + 1)) if self.packs is None else self.packs.of(row)
        sizes, copy = np.diff(splits), epoch if self.copies is None else epoch % self.copies
        copy_keys = fold_in(np.full(len(records), self.seed, np.uint64), np.repeat(copy, sizes).astype(np.uint64))
        if self.by_shards is None:
            fetched = self.store.fetch(records)
        else:
            fetched = self.store.fetch_at(*parts(records))
        return fetched, fold_in(copy_keys, records.astype(np.uint64)), sizes


@dataclasses.dataclass(eq=False)
class Stream:
    """The examples of one split in one phase."""

    tasks: Sequence[Task]
    features: Features
    """{name: (shape without the batch, dtype)}."""
    batch_size: int
    readers: int = 0
    """Threads that read ahead, see `feed.ahead`."""
    mixture: Mixture = dataclasses.field(default_factory=lambda: Mixture([1.0], 0))
    """The shares of the tasks; one task needs none."""
    continues: bool = False
    """Whether each row of a batch continues the text of the same row of the last batch."""

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(task) for task in self.tasks])

    def __len__(self) -> int:
        """Rows of all tasks together."""
        return int(self._ends[-1])

    def each(self) -> dict[str, Stream]:
        """One stream for each task."""
        return {task.name: dataclasses.replace(self, tasks=[task]) for task in self.tasks}

    def batches(self, start: int = 0, rows: Which = None) -> Iterator[Batch]:
        """Training batches without end; every epoch of a task is another permutation with other noise.

        Args:
          start: first step, counted from the start of the phase. Starting late costs no more than starting at 0.
          rows: this process's rows of the global batch; all by default.

        Returns:
          An iterator of {feature: array [rows, ...]}.
        """
        row = np.arange(self.batch_size, dtype=np.int64)[slice(None) if rows is None else rows]

        def batch(step: int) -> Batch:
            return self._features(*self._shuffled(step * self.batch_size + row))

        return ahead(batch, itertools.count(start), self.readers)

    def epoch(self, batch_size: int, limit: int | None = None, rows: Which = None) -> Iterator[Batch]:
        """Every row of every task exactly once, in order, always under the same noise: for validation.

        Where the stream continues, row b of all batches together has the b-th stretch of the records.

        Args:
          batch_size: rows of the global batch. The last batch is filled up with rows of zeros; where the stream
            continues, rows that have come to their end are zeros.
          limit: only the first so many rows.
          rows: this process's rows of the global batch; all by default.

        Returns:
          An iterator of {feature: array [rows, ...]}.
        """
        end = len(self) if limit is None else min(limit, len(self))

        def batch(step: int) -> Batch:
            index, size = places(step, batch_size, end, rows, self.continues)
            return self._features(*self._in_order(index), size)

        return ahead(batch, range(steps_of(end, batch_size)), self.readers)

    def rows(self, index: np.ndarray) -> Batch:
        """Rows as `epoch` gives them: {feature: array [rows, ...]}."""
        return self._features(*self._in_order(index))

    def sample(self, size: int) -> Batch:
        """Up to `size` rows of a stream of one task, to look at; waits for no more records than the first batch."""
        (task,) = self.tasks
        if task.by_shards is not None:
            return self._features(*self._shuffled(np.arange(min(size, task.by_shards.first_rows()))))
        return self.rows(np.unique(np.linspace(0, len(task) - 1, size).astype(np.int64)))

    def example(self, index: int, shuffled: bool = True) -> dict[str, Any]:
        """One example, to look at.

        Args:
          index: its place, from 0.
          shuffled: its place in `batches`, else in `epoch`.

        Returns:
          Its features in the batch; "task", the name of its task; and of the records before noise: all features of one
          record, and of several that share a row those of fixed shape, such as "origin", one after the other.
        """
        at = np.array([index], np.int64)
        task, epoch, row = self._shuffled(at) if shuffled else self._in_order(at)
        source_task = self.tasks[task[0]]
        records, keys, _ = source_task.fetch(epoch, row)
        features = {
            name: (value[0] if len(keys) == 1 else value) if isinstance(value, np.ndarray) else value.values
            for name, value in records.items()
            if isinstance(value, np.ndarray) or len(keys) == 1
        }
        batch = self._features(task, epoch, row)
        return features | {"task": source_task.name} | {name: value[0] for name, value in batch.items()}

    def _shuffled(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(task, epoch, row) of each index of the training stream."""
        if self.continues:
            (task,) = self.tasks
            return np.zeros_like(index), *continued(index, len(task), self.batch_size, key(task.seed, "order"))
        if self.tasks[0].by_shards is not None:
            return np.zeros_like(index), *self.tasks[0].by_shards.at(index)
        number, place = self.mixture.at(index) if len(self.tasks) > 1 else (np.zeros_like(index), index)
        epoch, row = np.divmod(place, np.array([len(task) for task in self.tasks])[number])
        for n in np.unique(number):
            task, of_task = self.tasks[n], number == n
            if not isinstance(task.packs, Updates):  # whose rows are in the order of their epoch
                row[of_task] = permuted(row[of_task], len(task), key(task.seed, "order"), epoch[of_task])
        return number, epoch, row

    def _in_order(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(task, epoch 0, row) of each index of all tasks one after the other."""
        task = np.searchsorted(self._ends, index, side="right")
        row = index - np.append(0, self._ends)[task]
        if self.tasks[0].by_shards is not None:
            row = addresses(*self.tasks[0].store.parts_of(row))
        return task, np.zeros_like(index), row

    def _features(self, task: np.ndarray, epoch: np.ndarray, row: np.ndarray, size: int | None = None) -> Batch:
        """The features of these rows, and rows of zeros up to `size`."""
        size, numbers = len(task) if size is None else size, np.unique(task).tolist()
        batch = {name: np.zeros((size, *shape), dtype) for name, (shape, dtype) in self.features.items()}
        # Tasks whose records become features in the same way go through one graph together.
        for online in {self.tasks[n].online for n in numbers}:
            alike = [n for n in numbers if self.tasks[n].online is online]
            indices = [np.flatnonzero(task == n) for n in alike]
            fetched = (self.tasks[n].fetch(epoch[at], row[at]) for n, at in zip(alike, indices))
            records, keys, sizes = zip(*fetched)
            bounds = np.cumsum([0, *itertools.chain(*sizes)])
            for name, value in online(_joined(records), np.concatenate(keys), bounds).items():
                batch[name][np.concatenate(indices)] = value
        return batch


def _joined(parts: Sequence[Records]) -> Records:
    """Records of several stores one after the other."""
    return {
        name: Ragged(*(np.concatenate(x) for x in zip(*(part[name] for part in parts))))
        if isinstance(first, Ragged)
        else np.concatenate([part[name] for part in parts])
        for name, first in parts[0].items()
    }
