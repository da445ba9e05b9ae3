"""The Huffman tree of word frequencies: the ways to frequent words are short.

word2vec (https://arxiv.org/abs/1310.4546) and fastText take it for their hierarchical softmax. V words have V − 1 inner
nodes; the ways are those from the root down.
"""

from __future__ import annotations

import heapq

import numpy as np


def paths(counts_V: np.ndarray, length: int) -> np.ndarray:
    """The way to each word.

    Args:
      counts_V: how often each word is; words of count 0 are not in the tree.
      length: longest way that there is room for.

    Returns:
      int32 [V, length], from the root on: 2 · inner node + direction (0 or 1), −1 after the way's end. Inner nodes are
      numbered from 0 in the order in which they are made; the root is the last.

    Raises:
      ValueError: a way is longer; its text says how long.

    Example:
      >>> paths(np.array([1, 1, 3]), 2).tolist()  # node 0: words 0 and 1; node 1, the root: node 0 and word 2
      [[2, 0], [2, 1], [3, -1]]
    """
    words = np.flatnonzero(counts_V).tolist()
    heap = [(int(counts_V[word]), order, word) for order, word in enumerate(words)]  # inner node n is V + n
    heapq.heapify(heap)
    above: dict[int, int] = {}
    for node in range(len(words) - 1):
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        above[first[2]], above[second[2]] = 2 * node, 2 * node + 1
        heapq.heappush(heap, (first[0] + second[0], len(words) + node, len(counts_V) + node))
    table = np.full((len(counts_V), length), -1, np.int32)
    for word in words:
        way, at = [], word
        while at in above:
            way.append(above[at])
            at = len(counts_V) + above[at] // 2
        if len(way) > length:
            raise ValueError(f"the Huffman tree of the words has ways of {len(way)} nodes, there is room for {length}")
        table[word, : len(way)] = way[::-1]
    return table
