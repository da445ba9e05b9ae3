"""Where the entries of records stand in rows of static length. NumPy alone.

Shapes: R records · B rows · N entries of all records end to end · L length of a row
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Rows = dict[str, np.ndarray]


class Ragged(NamedTuple):
    """Rows of unequal length: `values` [Σ lengths] end to end, `lengths` [rows]."""

    values: np.ndarray
    lengths: np.ndarray


class Layout:
    """Where the entries of records stand in rows: one record after the other, from the first place on."""

    def __init__(self, lengths: np.ndarray, length: int, packs: np.ndarray | None, name: str) -> None:
        """For records of `lengths` [R] in rows of `length` places; `name` says in an error what does not fit."""
        packs = np.arange(len(lengths) + 1) if packs is None else packs
        splits = np.concatenate([[0], np.cumsum(lengths)])
        self._length, self._name, self._rows = length, name, splits[packs]
        of_row, sizes_B = np.diff(packs), np.diff(splits[packs])
        if (longest := sizes_B.max(initial=0)) > length:
            raise ValueError(f"{name} of an example are longer than their feature of length {length}: {longest}")
        self.lengths, self._first_R = lengths, splits[:-1]
        self._number_R = np.arange(1, len(lengths) + 1) - np.repeat(packs[:-1], of_row)
        self._real_BxL = np.arange(length) < sizes_B[:, None]
        self.before_R = self._first_R - np.repeat(splits[packs[:-1]], of_row)
        """Entries that stand before each record in its row."""

    def rows(self, values_N: np.ndarray) -> np.ndarray:
        """Values as rows, zeros after them: int32 [B, L]."""
        rows = np.zeros(self._real_BxL.shape, np.int32)
        rows[self._real_BxL] = values_N  # the real places, row by row, are in the order of the values
        return rows

    def features(self, side: str) -> Rows:
        """Segment ids and positions."""
        segment_ids = self.rows(np.repeat(self._number_R, self.lengths))
        return {f"{side}_segment_ids": segment_ids, f"{side}_positions": self.rows(self.places())}

    def places(self) -> np.ndarray:
        """Place of each entry in its record: [N]."""
        return np.arange(self.lengths.sum()) - np.repeat(self._first_R, self.lengths)

    def cut_at(self, opens_N: np.ndarray) -> Layout:
        """The same rows of smaller records: one begins at each entry that opens one."""
        opens_N[self.starts()] = True
        bounds = np.append(np.flatnonzero(opens_N), len(opens_N))
        return Layout(np.diff(bounds), self._length, np.searchsorted(bounds, self._rows), self._name)

    def weights(self) -> np.ndarray:
        """1.0 on the real places, zeros after them: float32 [B, L]."""
        return self._real_BxL.astype(np.float32)

    def starts(self) -> np.ndarray:
        """Where records begin among the values; records without an entry are passed over."""
        return self._first_R[self.lengths > 0]
