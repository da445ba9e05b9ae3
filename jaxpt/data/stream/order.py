"""Which example stands where: permutations that are never written down, and mixtures of tasks in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxpt.data._tf import tf

_BLOCKS = tuple(2**n for n in range(6, 17))
_TOLERANCE = 0.01  # of a rate


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
