"""A held-out split of a file that has none: stratified, a function of what the rows say; texts in two splits."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Text = str | Sequence[str]
"""A text, or the texts of a pair."""


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Which rows are held out: in each stratum those with the smallest hashes. `held_out` makes it."""

    strata: tuple[str, ...]
    """Labels in alphabetical order; ("",) where all rows are one stratum."""
    thresholds: tuple[int, ...]
    """The largest hash of a text that is held out, for each of `strata`; -1: none is."""
    edges: tuple[float, ...] = ()
    """Of a regression: the values that divide the strata."""
    exceptions: tuple[tuple[int, bool], ...] = ()
    """(hash, whether it is held out) of texts with several labels, which the thresholds would put on both sides."""

    def is_held_out(self, text: Text, label: Any = "") -> bool:
        """Tells on which side a row stands.

        Args:
          text: its text or texts, as when the split was made.
          label: its label; the value of a regression; not used where all rows are one stratum.

        Returns:
          True if the row is held out.

        Raises:
          KeyError: no row had this label when the split was made.
        """
        return self._at(digest(text), self._stratum(label))

    def _at(self, hash: int, stratum: str) -> bool:
        at = bisect.bisect_left(self.exceptions, (hash,))
        if at < len(self.exceptions) and self.exceptions[at][0] == hash:
            return self.exceptions[at][1]
        return hash <= self._threshold_of[stratum]

    @functools.cached_property
    def _threshold_of(self) -> dict[str, int]:
        return dict(zip(self.strata, self.thresholds))

    def _stratum(self, label: Any) -> str:
        return str(bisect.bisect_right(self.edges, label)) if self.edges else str(label)


def held_out(
    rows: Iterable[Any],
    text_of: Callable[[Any], Text],
    label_of: Callable[[Any], Any],
    fraction: float,
    quantiles: int = 0,
) -> HeldOut:
    """Chooses rows to hold out.

    In each stratum that is the fraction of its rows whose texts have the smallest hashes; at least one text, but never
    all. The choice depends on neither the order of the rows nor chance. Rows with the same text stand on the same
    side, whatever their labels.

    Args:
      rows: the training set.
      text_of: row → its text, or its texts.
      label_of: row → its label; "" for all (several labels, tags, questions): they are one stratum.
      fraction: of the rows, above 0 and below 1.
      quantiles: for a regression: `label_of` gives numbers, and so many quantiles of them are the strata.

    Returns:
      The choice. It is small, frozen, hashable and can be pickled.

    Example:
      >>> rows = [(f"text {i}", "spam" if i % 4 == 0 else "ham") for i in range(40)]
      >>> split = held_out(rows, lambda row: row[0], lambda row: row[1], 0.2)
      >>> collections.Counter(label for text, label in rows if split.is_held_out(text, label)) == {"ham": 6, "spam": 2}
      True
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction wants a number above 0 and below 1, got {fraction}")
    if quantiles == 1:
        raise ValueError("quantiles wants 2 or more")
    hashed_rows = [(digest(text_of(row)), label_of(row)) for row in rows]
    empty = HeldOut((), (), _edges([value for _, value in hashed_rows], quantiles) if quantiles else ())
    counts: dict[str, collections.Counter[int]] = {}
    for hash, label in hashed_rows:
        counts.setdefault(empty._stratum(label), collections.Counter())[hash] += 1
    strata = tuple(sorted(counts))
    split = HeldOut(strata, tuple(_threshold(counts[stratum], fraction) for stratum in strata), empty.edges)
    return dataclasses.replace(split, exceptions=_exceptions(split, counts))


def _edges(values: list[float], quantiles: int) -> tuple[float, ...]:
    """The smallest value of each quantile but the first."""
    values = sorted(values)
    return tuple(values[len(values) * part // quantiles] for part in range(1, quantiles)) if values else ()


def _threshold(rows: collections.Counter[int], fraction: float) -> int:
    """The hash up to which texts are held out. Several rows may have one text: the nearest number of rows is taken."""
    hashes = sorted(rows)
    target = max(int(fraction * rows.total() + 0.5), 1)
    best, threshold, below = target, -1, 0
    for hash in hashes[:-1]:  # the last text stays in the training set
        below += rows[hash]
        if threshold < 0 or abs(below - target) < best:
            best, threshold = abs(below - target), hash
        if below >= target:
            break
    return threshold


def _exceptions(split: HeldOut, counts: dict[str, collections.Counter[int]]) -> tuple[tuple[int, bool], ...]:
    """Of texts in several strata that would be on both sides: the side that most of their rows would be on."""
    strata_of = collections.Counter(itertools.chain.from_iterable(counts.values()))
    sides = {hash: collections.Counter() for hash, num_strata in strata_of.items() if num_strata > 1}
    for stratum, rows in counts.items():
        for hash in sides.keys() & rows.keys():
            sides[hash][split._at(hash, stratum)] += rows[hash]
    return tuple(sorted((hash, tally[True] > tally[False]) for hash, tally in sides.items() if len(tally) == 2))


def overlap(train: Iterable[Text], other: Iterable[Text]) -> int:
    """Counts the rows of a split whose text stands in the training set too.

    Args:
      train: the training set's texts. 8 bytes of each are kept, not the text.
      other: the texts of the other split.

    Returns:
      Rows of the other split; one that it has twice counts twice.

    Example:
      >>> overlap(["a", "b", "b"], ["b", "c", "b"])
      2
    """
    train_hashes = {digest(text) for text in train}
    return sum(digest(text) in train_hashes for text in other)


def digest(text: Text) -> int:
    """64 bits of the blake2b hash of a text, or of the texts of a pair.

    Example:
      >>> digest("ab") == digest(("ab",)) != digest(("a", "b"))
      True
    """
    parts = [text] if isinstance(text, str) else text
    data = b"\x1f".join(part.encode("utf-8", "surrogatepass") for part in parts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
