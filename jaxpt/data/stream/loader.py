"""Batches: a pure function of (records, seed), addressed by index, so that a resume seeks instead of replaying.

    index i → task t, index j in it               quotas in blocks (`order.Mixture`)
            → epoch e = j // n, place j % n
            → row u = permutation of epoch e at the place          nothing is materialised; with updates of a fixed
                                                                   number of examples: row `place` of the epoch's plan
            → records of row u                    itself, or those that were packed into it
            → features = online(records, noise keyed by (seed, phase, task, epoch, record))
    step s  = indices s·batch … (s + 1)·batch - 1

Where an objective carries something from batch to batch, the row's records stand in their order instead, and row b of a
step goes on with row b of the step before: `order.continued`; in `epoch`, row b of B has the b-th of B equal stretches.

The stream is the same whatever the number of hosts, devices, threads or restarts: no step needs the one before it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxpt.data.preprocessors.batched import fold_in
from jaxpt.data.records.store import Ragged, Store
from jaxpt.data.seqio_tasks import Features, key
from jaxpt.data.stream.feed import Batch, Which, ahead, places, steps_of
from jaxpt.data.stream.online import Online
from jaxpt.data.stream.order import Mixture, continued, permuted
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

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.store if self.packs is None else self.packs)

    def shuffled(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(epoch, row) of each index of the task's own training stream: int64 [n] each."""
        epoch, place = np.divmod(index, len(self))
        if isinstance(self.packs, Updates):  # in its order
            return epoch, place
        return epoch, permuted(place, len(self), key(self.seed, "order"), epoch)

    def records(self, epoch: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The records of some rows in some epochs.

        Args:
          epoch: int64 [n].
          row: int64 [n].

        Returns:
          (records int64 [R], keys of their noise uint64 [R], where each row begins among them int64 [n + 1]).
        """
        if isinstance(self.packs, Updates):
            records, splits = self.packs.of(epoch, row)
        else:
            records, splits = (row, np.arange(len(row) + 1)) if self.packs is None else self.packs.of(row)
        copy = epoch if self.copies is None else epoch % self.copies
        seed = np.full(len(records), self.seed, np.uint64)
        of_copy = fold_in(seed, np.repeat(copy, np.diff(splits)).astype(np.uint64))
        return records, fold_in(of_copy, records.astype(np.uint64)), splits


class Stream:
    """The examples of one split in one phase.

    Attributes:
      tasks: what they come from.
      features: {name: (shape without the batch, dtype)}.
      mixture: their shares.
      continues: whether each row of a batch continues the text of the same row of the last batch.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        features: Features,
        batch_size: int,
        readers: int = 0,
        mixture: Mixture | None = None,
        continues: bool = False,
    ) -> None:
        """A stream of `tasks` in the shares of `mixture` (one task needs none), by `readers` threads."""
        self.tasks, self.features, self.batch_size = tuple(tasks), dict(features), batch_size
        self.mixture = mixture or Mixture([1.0], 0)
        self._ends = np.cumsum([len(task) for task in self.tasks])
        self._readers, self.continues = readers, continues

    def __len__(self) -> int:
        """Rows of all tasks together."""
        return int(self._ends[-1])

    def each(self) -> dict[str, Stream]:
        """One stream for each task."""
        return {
            t.name: Stream([t], self.features, self.batch_size, self._readers, continues=self.continues)
            for t in self.tasks
        }

    def batches(self, start: int = 0, rows: Which = None) -> Iterator[Batch]:
        """Training batches without end; every epoch of a task is another permutation with other noise.

        Args:
          start: first step, counted from the start of the phase. Starting late costs no more than starting at 0.
          rows: this process's rows of the global batch; all by default.

        Returns:
          An iterator of {feature: array [rows, ...]}.
        """
        row = np.arange(self.batch_size, dtype=np.int64)[slice(None) if rows is None else rows]
        return ahead(
            lambda step: self._made(*self._mixed(step * self.batch_size + row)), itertools.count(start), self._readers
        )

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
            return self._made(*self._in_order(index), size=size)

        return ahead(batch, range(steps_of(end, batch_size)), self._readers)

    def rows(self, index: np.ndarray) -> Batch:
        """Rows as `epoch` gives them: {feature: array [rows, ...]}."""
        return self._made(*self._in_order(index))

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
        task, epoch, row = self._mixed(at) if shuffled else self._in_order(at)
        source_task = self.tasks[task[0]]
        records, _, _ = source_task.records(epoch, row)
        features = {
            name: (value[0] if len(records) == 1 else value) if isinstance(value, np.ndarray) else value.values
            for name, value in source_task.store.fetch(records).items()
            if isinstance(value, np.ndarray) or len(records) == 1
        }
        return features | {"task": source_task.name} | {k: v[0] for k, v in self._made(task, epoch, row).items()}

    def _mixed(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(task, epoch, row) of each index of the training stream."""
        if self.continues:
            (task,) = self.tasks
            return np.zeros_like(index), *continued(index, len(task), self.batch_size, key(task.seed, "order"))
        task, index_in_task = self.mixture.at(index)
        epoch, row = np.empty_like(index), np.empty_like(index)
        for number in np.unique(task):
            of_it = task == number
            epoch[of_it], row[of_it] = self.tasks[number].shuffled(index_in_task[of_it])
        return task, epoch, row

    def _in_order(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(task, epoch 0, row) of each index of all tasks one after the other."""
        task = np.searchsorted(self._ends, index, side="right")
        before = np.concatenate([[0], self._ends])
        return task, np.zeros_like(index), index - before[task]

    def _made(self, task: np.ndarray, epoch: np.ndarray, row: np.ndarray, size: int | None = None) -> Batch:
        """The features of these rows, and rows of zeros up to `size`."""
        numbers = np.unique(task).tolist()
        if len(numbers) == 1 and size in (None, len(task)):
            return self._together(numbers, [np.arange(len(task))], epoch, row)
        out = {
            name: np.zeros((len(task) if size is None else size, *shape), dtype)
            for name, (shape, dtype) in self.features.items()
        }
        # Tasks whose records become features in the same way go through one graph together.
        for online in {id(self.tasks[n].online) for n in numbers}:
            alike = [n for n in numbers if id(self.tasks[n].online) == online]
            places = [np.flatnonzero(task == n) for n in alike]
            at = np.concatenate(places)
            for name, value in self._together(alike, places, epoch, row).items():
                out[name][at] = value
        return out

    def _together(self, numbers: list[int], places: list[np.ndarray], epoch: np.ndarray, row: np.ndarray) -> Batch:
        """The features of the rows at `places` of each of these tasks, one task after the other."""
        per_task = [self.tasks[n].records(epoch[at], row[at]) for n, at in zip(numbers, places)]
        stored = _joined([self.tasks[n].store.fetch(records) for n, (records, _, _) in zip(numbers, per_task)])
        keys = np.concatenate([keys for _, keys, _ in per_task])
        sizes = np.concatenate([np.diff(splits) for _, _, splits in per_task])
        return self.tasks[numbers[0]].online(stored, keys, np.concatenate([[0], np.cumsum(sizes)]))


def _joined(parts: list[dict[str, Ragged | np.ndarray]]) -> dict[str, Ragged | np.ndarray]:
    """Records of several stores one after the other."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: Ragged(*(np.concatenate(x) for x in zip(*(part[name] for part in parts))))
        if isinstance(first, Ragged)
        else np.concatenate([part[name] for part in parts])
        for name, first in parts[0].items()
    }
