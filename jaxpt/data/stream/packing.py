"""Packing: which records share a row. Planned once, from lengths; nothing is cut, dropped or repeated.

Best fit, largest first: each record goes into the row in which it leaves the least room; where a row has several sides,
the sum of the squares of what is left of each. Records of the same sizes, and
rows with the same room left, are handled together, so that the work grows with the number of different sizes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpt.runtime import disk

_FORMAT = 1
_MOST_OPEN = 1024  # different rooms that rows under way may have left; above it the fullest row is finished


class Packs(NamedTuple):
    """Rows of records: row i is records[offsets[i]:offsets[i+1]]."""

    records: np.ndarray
    """int64 [records]: each record once."""
    offsets: np.ndarray
    """int64 [rows + 1]."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The records of some rows.

        Args:
          rows: int64 [n].

        Returns:
          (their records end to end, int64 [n + 1]: where each row begins among these).
        """
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        splits = np.concatenate([[0], np.cumsum(ends - starts)])
        within = np.arange(splits[-1]) - np.repeat(splits[:-1] - starts, ends - starts)
        return self.records[within], splits


Sizes = Mapping[str, np.ndarray]
Room = Mapping[str, int]


def plan(sizes: Sizes, room: Room) -> Packs:
    """Plans the rows.

    Args:
      sizes: {feature: int [records]}: the most places that each record takes in it.
      room: {feature: places in a row}.

    Returns:
      The rows; no feature of any row is asked for more than its room.

    Raises:
      ValueError: a record is larger than a row.

    Example:
      >>> packs = plan({"tokens": np.array([3, 6, 4, 2, 5])}, {"tokens": 10})
      >>> [packs.records[a:b].tolist() for a, b in zip(packs.offsets, packs.offsets[1:])]
      [[1, 2], [0, 3, 4]]
    """
    names = sorted(room)
    table = np.stack([np.asarray(sizes[name], np.int64) for name in names], axis=1)
    full = np.array([room[name] for name in names], np.int64)
    if (over := np.flatnonzero((table > full).any(axis=1))).size:
        took = dict(zip(names, table[over[0]].tolist()))
        raise ValueError(f"record {over[0]} takes {took}, a row has {dict(room)}")
    kinds, kind_of = np.unique(table, axis=0, return_inverse=True)
    members = np.split(np.argsort(kind_of.ravel(), kind="stable"), np.cumsum(np.bincount(kind_of.ravel()))[:-1])
    row_of, rows = np.empty(len(table), np.int64), _Rows(full)
    for n in _order(kinds / full, np.array([len(m) for m in members])):
        size, records = kinds[n], members[n]
        while records.size:
            place = rows.best(size)
            if place is None:
                row_of[records] = rows.begin(size, len(records))
                break
            taken = rows.take(place, size, len(records))
            row_of[records[: len(taken)]] = taken
            records = records[len(taken) :]
    order = np.argsort(row_of, kind="stable")
    return Packs(order, np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=rows.count))]))


def _order(share: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The order of the kinds: the largest first; where rows have several sides, those that are large on one side in
    turn with those that are large on another, so that they meet in a row.

    Takes what a record of each kind fills of each side of a row, and how many there are.
    """
    relative = share / np.maximum(share.T @ count, 1e-9)
    side = relative.argmax(axis=1)
    done = np.empty(len(share))
    for side_index in np.unique(side):
        of_side = np.flatnonzero(side == side_index)
        of_side = of_side[np.argsort(-share[of_side].sum(axis=1), kind="stable")]
        weight = np.cumsum((share.sum(axis=1) * count)[of_side])
        done[of_side] = weight / max(weight[-1], 1e-9)
    return np.argsort(done, kind="stable")


class _Rows:
    """Rows under way: those with the same room left are one entry of a table."""

    def __init__(self, full: np.ndarray) -> None:
        self.count = 0
        self._full = full
        self._left = np.zeros((0, len(full)), np.int64)
        self._rows: list[np.ndarray] = []

    def best(self, size: np.ndarray) -> int | None:
        """The entry that holds `size` and has the least room left then, by the sum of squares over its sides."""
        left = (self._left - size) / self._full
        waste = np.where((left >= 0).all(axis=1), (left * left).sum(axis=1), np.inf)
        place = int(waste.argmin()) if len(waste) else 0
        return place if len(waste) and np.isfinite(waste[place]) else None

    def take(self, place: int, size: np.ndarray, most: int) -> np.ndarray:
        """Puts a record each into at most so many rows of an entry: their numbers."""
        rows, left = self._rows[place], self._left[place].copy()
        if len(rows) > most:
            self._rows[place] = rows[most:]
        else:
            self._remove(place)
        self._add(left - size, rows[:most])
        return rows[:most]

    def begin(self, size: np.ndarray, records: int) -> np.ndarray:
        """Begins as many rows as so many records of one size need: the row of each record."""
        each = int(np.min(self._full[size > 0] // size[size > 0], initial=records))
        rows = self.count + np.arange(records) // each
        held = np.bincount(rows - self.count)
        for number in {int(held[0]), int(held[-1])}:
            self._add(self._full - number * size, self.count + np.flatnonzero(held == number))
        self.count += len(held)
        return rows

    def _add(self, left: np.ndarray, rows: np.ndarray) -> None:
        same = np.flatnonzero((self._left == left).all(axis=1))
        if same.size:
            self._rows[same[0]] = np.concatenate([self._rows[same[0]], rows])
            return
        if len(self._rows) == _MOST_OPEN:
            self._remove(int((self._left / self._full).min(axis=1).argmin()))
        self._left = np.concatenate([self._left, left[None]])
        self._rows.append(rows)

    def _remove(self, place: int) -> None:
        """The last entry takes the place."""
        self._left[place], self._rows[place] = self._left[-1], self._rows[-1]
        self._left = self._left[:-1]
        self._rows.pop()


def planned(directory: Path, sizes: Sizes, room: Room) -> Packs:
    """`plan`, kept in a directory under a name that depends on all of its arguments.

    Args:
      directory: where plans are kept.
      sizes: as for `plan`.
      room: as for `plan`.

    Returns:
      The rows.
    """
    name = hashlib.blake2b(json.dumps([_FORMAT, _MOST_OPEN, dict(room)], sort_keys=True).encode(), digest_size=10)
    for feature in sorted(sizes):
        name.update(np.ascontiguousarray(sizes[feature], np.int32).data)
    path = directory / f"{name.hexdigest()}.npz"
    try:
        with np.load(path) as file:
            packs = Packs(file["records"], file["offsets"])
        if len(packs.records) == packs.offsets[-1] == len(sizes[next(iter(room))]):  # zipfile takes 0 bytes for whole
            return packs
    except Exception:  # not there, or damaged, which zipfile says in many ways
        pass
    packs = plan(sizes, room)
    directory.mkdir(parents=True, exist_ok=True)
    with disk.whole_file(path) as file:
        np.savez(file, **packs._asdict())
    return packs


def fill(rows: int, sizes: Sizes, room: Room) -> dict[str, float]:
    """Share of the places of so many rows that the records take: {feature: 0 … 1}."""
    return {name: float(np.sum(sizes[name], dtype=np.int64)) / (rows * room[name]) for name in room}
