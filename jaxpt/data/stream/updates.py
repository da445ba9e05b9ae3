"""Updates of a fixed number of examples, in packed rows: which examples each update of an epoch has, and in which rows.

    epoch e     its permutation of the examples, cut into groups of N: update u has group u; the last has what is left
    group       best fit, largest first, into the R rows of a batch
    exchange    a group that does not fit gives a long example to one of the emptiest groups for a short one, those
                that bring both nearest to the same size; again until all groups fit

So an epoch is a permutation of the examples, and update u of epoch e depends on nothing but (seed, e, u). All is
reckoned in integers: every process plans the same.

Shapes: G groups · N examples of a group · R rows of a batch · F sides of a row (such as tokens, labels)
"""

from __future__ import annotations

import functools
import threading

import numpy as np

from jaxpt.data.stream.order import permuted
from jaxpt.data.stream.packing import Packs, Room, Sizes
from jaxpt.errors import UserError

_ROUNDS = 200  # of exchanges
_PARTNERS = 8  # emptiest groups, at least, that take turns in exchanges
_UNIT = 2**20  # sizes are compared in these parts of a row
_NOBODY = -1  # in the places that the last group of an epoch leaves free


class Updates:
    """The rows of each epoch, R for each update; those of an epoch are planned when they are first asked for."""

    def __init__(self, sizes: Sizes, room: Room, rows: int, examples: int, key: int) -> None:
        """Plans epoch 0.

        Args:
          sizes: {feature: int [records]}: the most places that each record takes in it.
          room: {feature: places in a row}.
          rows: R, rows of an update.
          examples: N, examples of an update.
          key: of the permutations.

        Raises:
          UserError: the rows are too few; it says how many are needed.
          ValueError: a record is larger than a row.

        Example:
          >>> updates = Updates({"tokens": np.array([6, 1, 5, 2, 4, 3])}, {"tokens": 7}, rows=2, examples=4, key=0)
          >>> packs = updates.of_epoch(0)
          >>> np.diff(packs.offsets).reshape(2, 2).sum(1).tolist(), sorted(packs.records.tolist())
          ([4, 2], [0, 1, 2, 3, 4, 5])
        """
        names = sorted(room)
        self._size_MxF = np.stack([np.asarray(sizes[name], np.int64) for name in names], axis=1)
        self._room_F = np.array([room[name] for name in names], np.int64)
        self.rows, self.examples, self._key = rows, examples, key
        self._lock = threading.Lock()
        self._kept = functools.lru_cache(2)(self._of_epoch)
        if (self._size_MxF > self._room_F).any():  # records are made no longer than a row
            raise ValueError(f"a record takes {self._size_MxF.max(0).tolist()}, a row has {dict(sorted(room.items()))}")
        first = self._planned(0, rows)
        if first is None:
            raise UserError(
                f"data.batch_size: {rows} rows of {', '.join(f'{n} {name}' for name, n in sorted(room.items()))} do "
                f"not hold {examples} examples of these lengths (data.batch_examples); {self._needed()} rows do"
            )
        self._first = first

    def __len__(self) -> int:
        """Rows in an epoch."""
        return self.steps * self.rows

    @property
    def steps(self) -> int:
        """Updates in an epoch."""
        return -(-len(self._size_MxF) // self.examples)

    def of(self, epoch: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The records of some rows.

        Args:
          epoch: int64 [n], in ascending order.
          row: int64 [n], each in [0, len(self)).

        Returns:
          (their records end to end, int64 [n + 1]: where each row begins among these).
        """
        per_epoch = [self.of_epoch(int(e)).of(row[epoch == e]) for e in np.unique(epoch)]
        sizes = [np.diff(splits) for _, splits in per_epoch]
        return np.concatenate([records for records, _ in per_epoch]), np.cumsum(np.concatenate([[0], *sizes]))

    def of_epoch(self, epoch: int) -> Packs:
        """The rows of an epoch, R for each update; some may be empty."""
        with self._lock:  # of several threads that ask for an epoch one plans it
            return self._kept(epoch)

    def _of_epoch(self, epoch: int) -> Packs:
        plan = self._first if epoch == 0 else self._planned(epoch, self.rows)
        if plan is None:  # the groups of epoch 0 in another order
            whole = len(self._size_MxF) // self.examples
            order = permuted(np.arange(whole), whole, self._key, np.full(whole, epoch))
            order = np.append(order, np.arange(whole, self.steps))
            plan = self._first[0][order], self._first[1][order]
        member_GxN, row_GxN = plan
        real = member_GxN.ravel() != _NOBODY
        row = (np.arange(len(row_GxN))[:, None] * self.rows + row_GxN).ravel()[real]
        records = member_GxN.ravel()[real][np.argsort(row, kind="stable")]
        return Packs(records, np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(self)))]))

    def _needed(self) -> int:
        """Rows with which epoch 0 has a plan."""
        total = -(-self._size_MxF.sum(0) * self.examples // (len(self._size_MxF) * self._room_F)).max()
        rows = max(self.rows + 1, int(total))
        while self._planned(0, rows) is None:
            rows += 1
        return rows

    def _planned(self, epoch: int, rows: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(examples of each group, the row of each): int64 [G, N] both; None if exchanges do not come to an end."""
        records = len(self._size_MxF)
        member_GxN = np.full((self.steps, self.examples), _NOBODY, np.int64)
        places = np.arange(records)
        member_GxN.ravel()[:records] = permuted(places, records, self._key, np.full(records, epoch))
        size_MxF = np.concatenate([self._size_MxF, np.zeros_like(self._size_MxF[:1])])  # [_NOBODY]: 0
        unit_M = (size_MxF * (_UNIT // self._room_F)).sum(1)
        row_GxN = _fitted(size_MxF[member_GxN], self._room_F, rows)
        is_whole_G = (member_GxN != _NOBODY).all(1)
        for number in range(_ROUNDS):
            fits_G = (row_GxN >= 0).all(1)
            if fits_G.all():
                return member_GxN, row_GxN
            unit_G = unit_M[member_GxN].sum(1)
            over = np.flatnonzero(~fits_G)
            over = over[np.argsort(-unit_G[over], kind="stable")]
            under = np.flatnonzero(fits_G & is_whole_G)
            under = under[np.argsort(unit_G[under], kind="stable")][: max(len(over), _PARTNERS)]
            under = np.roll(under, -number)[: len(over)]
            over = over[: len(under)]
            if not len(over):
                return None
            member_GxN[over], member_GxN[under] = _exchanged(member_GxN[over], member_GxN[under], unit_M)
            changed = np.concatenate([over, under])
            row_GxN[changed] = _fitted(size_MxF[member_GxN[changed]], self._room_F, rows)
        return None


def _fitted(size_GxNxF: np.ndarray, room_F: np.ndarray, rows: int) -> np.ndarray:
    """The row of each example by best fit, largest first; −1 where none has room: int64 [G, N]."""
    unit_GxNxF = size_GxNxF * (_UNIT // room_F)
    order_GxN = np.argsort(-unit_GxNxF.sum(-1), axis=1, kind="stable")
    group = np.arange(len(size_GxNxF))
    left_GxRxF = np.tile(room_F, (len(group), rows, 1))
    row_GxN = np.empty(order_GxN.shape, np.int64)
    for place_G in order_GxN.T:
        size_GxF = size_GxNxF[group, place_G]
        after_GxRxF = left_GxRxF - size_GxF[:, None]
        fits_GxR = (after_GxRxF >= 0).all(-1)
        waste_GxR = ((after_GxRxF * (_UNIT // room_F)) ** 2).sum(-1)
        best_G = np.where(fits_GxR, waste_GxR, np.iinfo(np.int64).max).argmin(1)
        fits_G = fits_GxR.any(1)
        left_GxRxF[group, best_G] -= np.where(fits_G[:, None], size_GxF, 0)
        row_GxN[group, place_G] = np.where(fits_G, best_G, -1)
    return row_GxN


def _exchanged(over_PxN: np.ndarray, under_PxN: np.ndarray, unit_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of groups after one example of the first has changed places with one of the second.

    Of the i-th longest of the first and the i-th shortest of the second, the first being longer, those that bring the
    sizes of the two nearest to each other.
    """
    over_PxN = np.take_along_axis(over_PxN, np.argsort(-unit_M[over_PxN], axis=1, kind="stable"), axis=1)
    under_PxN = np.take_along_axis(under_PxN, np.argsort(unit_M[under_PxN], axis=1, kind="stable"), axis=1)
    over, under = unit_M[over_PxN], unit_M[under_PxN]
    half_gap_P = (over.sum(1) - under.sum(1)) // 2
    distance_PxN = np.where(over > under, np.abs(over - under - half_gap_P[:, None]), np.iinfo(np.int64).max)
    change_PxN = np.arange(over_PxN.shape[1]) == distance_PxN.argmin(1)[:, None]
    change_PxN &= over_PxN != _NOBODY
    return np.where(change_PxN, under_PxN, over_PxN), np.where(change_PxN, over_PxN, under_PxN)
