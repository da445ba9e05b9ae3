"""Where the tokens of a corrupted text stand in the whole one, for `jaxpt inspect`."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

_LONG = 3  # tokens of a stretch that is surely the same text in both


class Stretch(NamedTuple):
    """Tokens that stand in both texts."""

    at: int
    """The first one's place in the corrupted text."""
    whole_at: int
    size: int


class Noise(NamedTuple):
    """What became of a text."""

    gone: frozenset[int]
    """Positions of the original text whose tokens are not in the corrupted one."""
    seams: frozenset[int]
    """Positions of the corrupted text that are followed by text from an earlier position of the original."""
    filled: dict[int, tuple[int, int]]
    """{place of a mask: the stretch of the whole text that it stands for, alone or with the masks right before it}."""


def in_place(corrupted: Sequence[int], whole: Sequence[int], mask: int | None) -> bool:
    """True if a text was corrupted token by token: nearly every position has its original token, or the mask.

    Example:
      >>> in_place([7, 9, 9, 8], [7, 5, 6, 8], mask=9), in_place([7, 9, 8], [7, 5, 6, 8], mask=9)
      (True, False)
    """
    same = [x in (y, mask) for x, y in zip(corrupted, whole)]
    return len(corrupted) == len(whole) > 0 and sum(same) >= 0.8 * len(same)


def noise(corrupted: Sequence[int], whole: Sequence[int], mask: int | None) -> Noise | None:
    """Finds what was taken from a text and what was moved, the longest common stretches first.

    Args:
      corrupted: the text that has lost, or moved, some of its tokens.
      whole: the text.
      mask: id that stands for what is gone.

    Returns:
      The noise; None where most of `whole` is not in `corrupted`, or its tokens are shuffled.

    Example:
      >>> noise([15, 16, 17, 18, 19, 11, 12, 9, 14], [11, 12, 13, 14, 15, 16, 17, 18, 19], mask=9)
      Noise(gone=frozenset({2}), seams=frozenset({5}), filled={7: (2, 3)})
    """
    stretches = sorted(_stretches(corrupted, whole))
    if 2 * sum(s.size for s in stretches if s.size >= _LONG) < len(whole):
        return None
    matched = {n for s in stretches for n in range(s.whole_at, s.whole_at + s.size)}
    seams, filled = set(), {}
    ends = [Stretch(0, 0, 0), *stretches, Stretch(len(corrupted), len(whole), 0)]
    for before, after in itertools.pairwise(ends):
        first, last = before.whole_at + before.size, after.whole_at
        between = range(before.at + before.size, after.at)
        if last < first:
            seams |= {after.at} if after.size else set()
        elif between and corrupted[between[-1]] == mask and matched.isdisjoint(range(first, last)):
            filled[between[-1]] = first, last
    return Noise(frozenset(range(len(whole))) - matched, frozenset(seams), filled)


def _stretches(corrupted: Sequence[int], whole: Sequence[int]) -> list[Stretch]:
    """Common stretches, the longest first; each token is in one at most."""
    a, b, stretches = list(corrupted), list(whole), []
    while (match := difflib.SequenceMatcher(None, a, b, autojunk=False).find_longest_match()).size:
        stretches.append(Stretch(*match))
        if len(stretches) > 3 and match.size < _LONG and sum(s.size for s in stretches) < len(whole) // 2:
            return stretches  # shuffled: nothing to be seen
        a[match.a : match.a + match.size] = [-1] * match.size
        b[match.b : match.b + match.size] = [-2] * match.size
    return stretches
