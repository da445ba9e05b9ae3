"""How a model learns of token positions: a table of absolute positions, or T5's bias by relative distance.

Shapes: B batch · L length (queries) · S keys · D embedding width · H heads · N = L + S distances
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxpt.errors import UserError
from jaxpt.models.layers import Initializer, param


class LearnedPositions(nn.Module):
    """A table [rows, D] of absolute positions (BERT, GPT-2)."""

    rows: int
    width: int
    embedding_init: Initializer
    dtype: DTypeLike

    @nn.compact
    def __call__(self, length: int, positions_BxL: jax.Array | None = None) -> jax.Array:
        """Embeddings of `positions`, or of 0 … length-1: → [B or 1, L, D]."""
        table = param(self, "table", self.embedding_init, (self.rows, self.width), ("positions", "embed"))
        table = nn.with_logical_constraint(table, ("positions", None))  # whole rows, before they are looked up
        if positions_BxL is not None:
            return jnp.take(table, positions_BxL, axis=0, mode="clip").astype(self.dtype)
        if length > self.rows:
            raise UserError(f"a sequence of {length} tokens: the model's table has {self.rows} positions")
        return table[None, :length].astype(self.dtype)


def relative_bucket(
    distance: np.ndarray, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128
) -> np.ndarray:
    """T5's bucket of each relative distance: exact for short ones, logarithmic up to `max_distance`, then the last.

    With n = |distance| and e exact buckets: n if n < e, else e + ⌊log(n/e) / log(max_distance/e) · (buckets − e)⌋.

    Args:
      distance: key position − query position, in tokens, of any shape.
      bidirectional: halves the buckets; the upper half is for keys after the query. Otherwise those share bucket 0.
      buckets: number of buckets.
      max_distance: distance from which all share one bucket.

    Returns:
      Bucket numbers, int32, of distance's shape.

    Example:
      >>> relative_bucket(np.array([-128, -16, -8, 1, 8, 20, 128]), bidirectional=True)
      array([15, 10,  8, 17, 24, 26, 31], dtype=int32)

    Paper: https://arxiv.org/abs/1910.10683
    """
    distance = np.asarray(distance)
    if bidirectional:
        buckets //= 2
        offset, n = np.where(distance > 0, buckets, 0), np.abs(distance)
    else:
        offset, n = 0, np.maximum(-distance, 0)
    exact = buckets // 2
    # float32 and this order of operations, as in the code that made the published weights.
    ratio = np.log(np.maximum(n, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(max_distance / exact))
    far = exact + (ratio * np.float32(buckets - exact)).astype(np.int32)
    return (offset + np.where(n < exact, n, np.minimum(far, buckets - 1))).astype(np.int32)


class RelativeBias(nn.Module):
    """T5's attention bias [H, L, S]: one learned number for each head and bucket of relative distance.

    Distances go by the index in the row: inside a segment of a packed row they are the same.
    """

    heads: int
    bidirectional: bool
    embedding_init: Initializer
    buckets: int = 32
    max_distance: int = 128

    @nn.compact
    def __call__(self, queries: int, keys: int) -> jax.Array:
        """The bias of `queries` × `keys` positions: → float32 [H, L, S]."""
        table = param(self, "table", self.embedding_init, (self.buckets, self.heads), ("buckets", "norm"))
        # The bias is constant along diagonals. Each distance is looked up once, in the order 0 … S-1, -L … -1; a row
        # of this vector repeated and read with a stride of N-1 is the row above shifted by one. Its gradient is a sum
        # along diagonals and no scatter of L·S entries.
        n = queries + keys
        distance_N = (np.arange(n) + queries) % n - queries
        bucket_N = relative_bucket(
            distance_N, bidirectional=self.bidirectional, buckets=self.buckets, max_distance=self.max_distance
        )
        by_distance_HxN = table[bucket_N].T
        rows = jnp.tile(by_distance_HxN, (1, queries))[:, : queries * (n - 1)]
        return rows.reshape(self.heads, queries, n - 1)[:, :, :keys]
