"""Overlapping windows over tokens that do not fit into one example, and the window where a token has most context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
    """Tokens, or words, `start` … `end` − 1."""

    start: int
    end: int


def windows(lengths: Sequence[int], room: int, stride: int) -> list[Window]:
    """Windows of at most `room` tokens, each about `stride` tokens after the one before (BERT's run_squad).

    Args:
      lengths: tokens of each word, none above `room`; a word stays whole. All 1: a word is a token.
      room: most tokens in a window.
      stride: tokens from one window's start to the next, at least; a window starts at a word, and never behind the end
        of the one before.

    Returns:
      At least one window, of words; together they have all.

    Example:
      >>> [tuple(window) for window in windows([2, 1, 3, 1, 1], 5, 2)]
      [(0, 2), (1, 4), (3, 5)]
      >>> [tuple(window) for window in windows([1] * 10, 6, 3)]
      [(0, 6), (3, 9), (6, 10)]
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    words, spans, first = len(lengths), [], 0
    while True:
        end = int(np.searchsorted(starts, starts[first] + room, "right")) - 1
        spans.append(Window(first, end))
        if end >= words:
            return spans
        following = int(np.searchsorted(starts, starts[first] + stride))
        first = min(max(following, first + 1), end)


def most_context(found: Sequence[Window], places: np.ndarray) -> np.ndarray:
    """The window in which each token has the most tokens on its poorer side (BERT's "max context").

    Args:
      found: windows of tokens, as `windows` gives them.
      places: tokens, int [N]; each is in one window at least.

    Returns:
      int [N], numbers of windows; never descending where `places` ascend.

    Example:
      >>> most_context(windows([1] * 10, 6, 3), np.arange(10)).tolist()
      [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
    """
    start, end = np.array(found).reshape(-1, 2).T
    left = places[:, None] - start
    right = end - 1 - places[:, None]
    context = np.minimum(left, right) + 0.01 * (end - start)
    return np.where((left >= 0) & (right >= 0), context, -np.inf).argmax(1)
