"""Packing: which records share a row. Planned once, from lengths; nothing is cut, dropped or repeated.

Best fit, largest first: each record goes into the row in which it leaves the least room. Records of the same sizes, and
rows with the same room left, are handled together, so that the work grows with the number of different sizes.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

_FORMAT = 1
_LOOKED_AT = 64  # rows' rooms that are tried before a new row is begun; it matters only where a row has several sides


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
    # The side that is short of room comes first: the order of sizes and the search go by it.
    names = sorted(room, key=lambda name: -int(np.sum(sizes[name], dtype=np.int64)) / room[name])
    table = np.stack([np.asarray(sizes[name], np.int64) for name in names], axis=1)
    full = np.array([room[name] for name in names], np.int64)
    if (over := np.flatnonzero((table > full).any(axis=1))).size:
        took = dict(zip(names, table[over[0]].tolist()))
        raise ValueError(f"record {over[0]} takes {took}, a row has {dict(room)}")
    kinds, kind_of = np.unique(table, axis=0, return_inverse=True)
    members = np.split(np.argsort(kind_of.ravel(), kind="stable"), np.cumsum(np.bincount(kind_of.ravel()))[:-1])
    row_of, rows = np.empty(len(table), np.int64), _Rows()
    for kind, records in zip(kinds[::-1], members[::-1]):
        size = tuple(kind.tolist())
        while records.size:
            left = rows.best(size)
            if left is None:
                row_of[records] = rows.begin(tuple(full.tolist()), size, len(records))
                break
            taken = rows.take(left, size, len(records))
            row_of[records[: len(taken)]] = taken
            records = records[len(taken) :]
    order = np.argsort(row_of, kind="stable")
    return Packs(order, np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=rows.count))]))


class _Rows:
    """Rows under way, by the room that they have left."""

    def __init__(self) -> None:
        self.count = 0
        self._with: dict[tuple[int, ...], list[np.ndarray]] = {}
        self._rooms: list[tuple[int, ...]] = []  # the keys, ascending

    def best(self, size: tuple[int, ...]) -> tuple[int, ...] | None:
        """The least room that holds `size`."""
        first = bisect.bisect_left(self._rooms, size)
        nearest = self._rooms[first : first + _LOOKED_AT]
        return next((left for left in nearest if all(a >= b for a, b in zip(left, size))), None)

    def take(self, left: tuple[int, ...], size: tuple[int, ...], most: int) -> np.ndarray:
        """Puts a record each into at most so many of the rows with this room left: their numbers."""
        rows = np.concatenate(self._with.pop(left))
        self._rooms.pop(bisect.bisect_left(self._rooms, left))
        if rows[most:].size:
            self._add(left, rows[most:])
        self._add(tuple(a - b for a, b in zip(left, size)), rows[:most])
        return rows[:most]

    def begin(self, full: tuple[int, ...], size: tuple[int, ...], records: int) -> np.ndarray:
        """Begins as many rows as so many records of one size need: the row of each record."""
        each = min((a // b for a, b in zip(full, size) if b), default=records)
        rows = self.count + np.arange(records) // each
        for held in {min(each, records), records % each or each}:
            of_these = np.unique(rows)[np.bincount(rows - self.count) == held]
            self._add(tuple(a - held * b for a, b in zip(full, size)), of_these)
        self.count = int(rows[-1]) + 1
        return rows

    def _add(self, left: tuple[int, ...], rows: np.ndarray) -> None:
        if left not in self._with:
            bisect.insort(self._rooms, left)
        self._with.setdefault(left, []).append(rows)


def planned(directory: Path, sizes: Sizes, room: Room) -> Packs:
    """`plan`, kept in a directory under a name that depends on all of its arguments.

    Args:
      directory: where plans are kept.
      sizes: as for `plan`.
      room: as for `plan`.

    Returns:
      The rows.
    """
    name = hashlib.blake2b(json.dumps([_FORMAT, _LOOKED_AT, dict(room)], sort_keys=True).encode(), digest_size=10)
    for feature in sorted(sizes):
        name.update(np.ascontiguousarray(sizes[feature], np.int32).data)
    path = directory / f"{name.hexdigest()}.npz"
    try:
        with np.load(path) as file:
            return Packs(file["records"], file["offsets"])
    except (OSError, ValueError, KeyError):  # not there, or torn
        packs = plan(sizes, room)
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{uuid.uuid4().hex}.npz"
    np.savez(temporary, records=packs.records, offsets=packs.offsets)
    temporary.replace(path)
    return packs


def fill(rows: int, sizes: Sizes, room: Room) -> dict[str, float]:
    """Share of the places of so many rows that the records take: {feature: 0 … 1}."""
    return {name: float(np.sum(sizes[name], dtype=np.int64)) / (rows * room[name]) for name in room}
