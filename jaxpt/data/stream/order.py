"""Which example stands where: permutations that are never written down, and mixtures of tasks in blocks.

The order of a task's records has a version, which a run keeps:

    1   every epoch is a permutation of all records. Their number has to be known, so all shards are made first.
    2   the first epoch is a permutation of the shards, read group by group (`ByShards`); later epochs as in 1. What
        is read first depends on the number of shards and on the first of them, not on the shards that come later.
        Labelled rows are permuted as in 1, but kept in shards of 4,096, where in 1 each file is one.
    3   as 2, with smaller shards, so that the first one is there sooner.
    4   of `data.documents: blank_line` alone: as 3, or as 1 where all records are waited for, with shards that are cut
        at all blank lines. Before, lines of U+3000 and the like were none where shards were cut: documents were lost.
    5   of dialogues in Parquet files and data sets of the hub alone: as 3, without the null fields that Arrow gives to
        tools and their calls. Before, templates rendered them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from jaxpt.data._tf import tf

_BLOCKS = tuple(2**n for n in range(6, 17))
_TOLERANCE = 0.01  # of a rate

_PLACE_BITS = 32  # of an address: below the number of the shard


class Sharding(NamedTuple):
    """How a version of the order divides records."""

    shard_bytes: int
    """Text in a shard, at least."""
    most_together: int
    """Shards of a group."""


SHARDINGS = {2: Sharding(8 << 20, 8), 3: Sharding(2 << 20, 32), 4: Sharding(2 << 20, 32)}
"""Of each version with shards: as many bytes of text are drawn from together in all."""


def permuted(place: np.ndarray, size: int, key: int, number: np.ndarray) -> np.ndarray:
    """Where permutation `number` of 0 … size-1 sends each place; no permutation is held in memory.

    Args:
      place: int64 [n], each in [0, size).
      size: how many places there are.
      key: of all these permutations.
      number: int64 [n]: which permutation, such as the epoch.

    Returns:
      int64 [n], each in [0, size).

    Example:
      >>> sorted(permuted(np.arange(5), 5, 0, np.zeros(5, np.int64)).tolist())
      [0, 1, 2, 3, 4]
    """
    seed = np.stack([np.full_like(number, key), number, np.zeros_like(number)], axis=1)
    # The raw operation takes one seed per index; the public function (TF 2.21) only one for all of them.
    return tf.raw_ops.RandomIndexShuffle(index=place, seed=seed, max_index=np.int64(size - 1), rounds=4).numpy()


def continued(index: np.ndarray, size: int, batch_size: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Epoch and record of each index of a stream whose rows continue their text from batch to batch.

    An epoch has T = size // batch_size steps, in which each row b reads T records one after the other:

        index i = step s · batch_size + row b      epoch e = s // T, its step t = s % T
        record  = (shift_e + b · T + t) mod size   shift_e drawn for each epoch

    So the record of row b in a step comes right after that in the step before, but for the first step of an epoch,
    where each row begins at another place, and for the row that passes from the last record to the first. The
    size − T · batch_size records that are left over in an epoch are others in the next one.

    Args:
      index: int64 [n].
      size: how many records there are, at least `batch_size`.
      batch_size: rows of a batch.
      key: of the shifts.

    Returns:
      (epoch int64 [n], record int64 [n]).

    Example:
      >>> epoch, record = continued(np.arange(8), size=9, batch_size=2, key=0)  # 4 steps of 2 rows
      >>> epoch.tolist(), ((record - record[0]) % 9).reshape(4, 2).T.tolist()
      ([0, 0, 0, 0, 0, 0, 0, 0], [[0, 1, 2, 3], [4, 5, 6, 7]])
    """
    steps = size // batch_size
    step, row = np.divmod(index, batch_size)
    epoch, step = np.divmod(step, steps)
    shift = permuted(np.zeros_like(epoch), size, key, epoch)
    return epoch, (shift + row * steps + step) % size


class Shards(Protocol):
    """Records in shards, of which some may still be in the making."""

    @property
    def shards(self) -> int:
        """How many shards there are in all."""

    def records_of(self, shards: Sequence[int]) -> np.ndarray:
        """How many records these shards have; waits until they are made."""

    def parts_of(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shard and place in it of each record; waits until all shards are made."""


def groups(shards: int, key: int, most: int = 8) -> list[list[int]]:
    """Shards in the order in which the first epoch reads them.

    A group has as many shards as all groups before it, at least one and at most `most`: the first batches need one
    shard, later ones are drawn from many.

    Args:
      shards: how many there are.
      key: of the permutation.
      most: shards of a group.

    Returns:
      Numbers of shards, group by group.

    Example:
      >>> [len(group) for group in groups(20, key=0)]
      [1, 1, 2, 4, 8, 4]
    """
    order = permuted(np.arange(shards), shards, key, np.full(shards, -1)).tolist()
    return [order[start:end] for start, end in _bounds(shards, most)]


def _bounds(shards: int, most: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < shards:
        end = min(shards, start + min(max(start, 1), most))
        yield start, end
        start = end


def addresses(shard: np.ndarray, place: np.ndarray) -> np.ndarray:
    """A record's number from its shard and its place in it: it does not depend on other shards."""
    return (shard.astype(np.int64) << _PLACE_BITS) + place


def parts(address: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shard and place of addresses."""
    return address >> _PLACE_BITS, address & (2**_PLACE_BITS - 1)


class ByShards:
    """Versions 2 and 3 of the order.

    Invariants: where index i stands depends on the key, the number of shards, and the lengths of the shards up to the
    group that i is in; each epoch has every record once. So it is the same however many shards are made.
    """

    def __init__(self, store: Shards, key: int, most: int = 8) -> None:
        """The order of the records of `store`; `key` is that of all its permutations, `most` as of `groups`."""
        self._store, self._key, self._most, self._lock = store, key, most, threading.Lock()
        self._groups: list[list[int]] | None = None
        self._ends = [0]  # of the groups whose lengths are known
        self._starts: list[np.ndarray] = []  # of the shards of such a group, and its end

    def at(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch and address of each index of the stream; waits for the shards that they need.

        Args:
          index: int64 [n].

        Returns:
          (epoch int64 [n], address int64 [n]).
        """
        self._reach(int(index.max(initial=0)))
        size = self._ends[-1]
        epoch, place = np.divmod(index, size) if index.max(initial=0) >= size else (np.zeros_like(index), index)
        address = np.zeros_like(index)
        group = np.where(epoch == 0, np.searchsorted(self._ends, place, side="right") - 1, -1)
        for number in np.unique(group[group >= 0]).tolist():
            in_group = group == number
            address[in_group] = self._in_group(number, place[in_group] - self._ends[number])
        if (later := epoch > 0).any():
            record = permuted(place[later], size, self._key, epoch[later])
            address[later] = addresses(*self._store.parts_of(record))
        return epoch, address

    def first_shards(self) -> list[int]:
        """Shards of the first groups, up to one that has any record."""
        self._reach(0)
        until = int(np.searchsorted(self._ends, 0, side="right"))
        return [number for group in self._groups[:until] for number in group]

    def first_rows(self) -> int:
        """Records of `first_shards`."""
        self._reach(0)
        return next(end for end in self._ends if end)

    def _in_group(self, number: int, place: np.ndarray) -> np.ndarray:
        starts = self._starts[number]
        place = permuted(place, int(starts[-1]), self._key, np.full_like(place, -2 - number))
        shard = np.searchsorted(starts, place, side="right") - 1
        return addresses(np.array(self._groups[number])[shard], place - starts[shard])

    def _reach(self, index: int) -> None:
        """Finds the lengths of groups up to that of an index, or of all."""
        if self._ends[-1] > index:
            return
        with self._lock:
            if self._groups is None:
                self._groups = groups(self._store.shards, self._key, self._most)
            while self._ends[-1] <= index and len(self._starts) < len(self._groups):
                sizes = self._store.records_of(self._groups[len(self._starts)])
                self._starts.append(np.cumsum([0, *sizes]))
                self._ends.append(self._ends[-1] + int(sizes.sum()))


class Mixture:
    """Which of several tasks gives example i, by quotas: each block of the stream has the same number of each task.

    Inside a block the places are permuted, another permutation for each block. No draw is independent of the others:
    after any number of blocks every task has had exactly its share.

    Attributes:
      block: examples in a block, the smallest power of two (64 … 65,536) that gives every rate to within 1 %.
      quotas: examples of each task in a block, at least one.
    """

    def __init__(self, rates: Sequence[float], key: int) -> None:
        """Tasks with these rates, in any unit; `key` decides the order."""
        shares = np.asarray(rates, np.float64) / np.sum(rates)
        for block in _BLOCKS:
            quotas = _apportioned(shares, block)
            if (np.abs(quotas / block - shares) <= _TOLERANCE * shares).all():
                break
        self.block, self.quotas, self._key = block, tuple(quotas.tolist()), key
        self._ends = np.cumsum(quotas)

    def at(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The task of each example, and its index among the examples of this task; the cost does not depend on i.

        Args:
          index: int64 [n], places in the mixed stream.

        Returns:
          (task int64 [n], index in the task's own stream int64 [n]).

        Example:
          >>> task, own = Mixture([3, 1], key=0).at(np.arange(128))
          >>> np.bincount(task).tolist(), sorted(own[task == 1].tolist()) == list(range(32))
          ([96, 32], True)
        """
        number, place = np.divmod(index, self.block)
        place = permuted(place, self.block, self._key, number)
        task = np.searchsorted(self._ends, place, side="right")
        quotas = np.asarray(self.quotas)
        return task, number * quotas[task] + place - (self._ends - quotas)[task]


def _apportioned(shares: np.ndarray, block: int) -> np.ndarray:
    """Whole numbers of sum `block` nearest to the shares (largest remainders), none of them 0: int64."""
    quotas = np.maximum(np.floor(shares * block), 1).astype(np.int64)
    left = block - quotas.sum()
    by_need = np.argsort(quotas - shares * block, kind="stable")
    if left > 0:
        quotas[by_need[:left]] += 1
    for _ in range(-left):  # the ones given to tasks of no share
        quotas[np.argmax(quotas - shares * block)] -= 1
    return quotas


def proportional(sizes: Sequence[int], temperature: float = 1.0, cap: int | None = None) -> list[float]:
    """Rates by the tasks' sizes: min(n, cap)^(1/T), T5's and mT5's.

    Args:
      sizes: examples of each task.
      temperature: T; 1 mixes in proportion, larger ones more evenly (mT5: 1/0.3).
      cap: the most that counts of a task's size (T5: 2^19 … 2^21).

    Returns:
      The rates, of sum 1.

    Example:
      >>> proportional([100, 400, 10_000], temperature=2.0, cap=900)
      [0.16666666666666666, 0.3333333333333333, 0.5]

    Papers: https://arxiv.org/abs/1910.10683 (section 3.5.2), https://arxiv.org/abs/2010.11934
    """
    counted = np.minimum(np.asarray(sizes, np.float64), np.inf if cap is None else cap) ** (1 / temperature)
    return (counted / counted.sum()).tolist()
