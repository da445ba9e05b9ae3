"""Attention masks.

Shapes: B batch · L query length · S key length
"""

from __future__ import annotations

import functools
from fractions import Fraction

import flax
import jax
import jax.numpy as jnp

# Finite, so that a query without visible keys (padding) gives an average and not NaN.
MASKED = -1e30


@flax.struct.dataclass
class Mask:
    """Describes which keys a query attends to, so that kernels need no [L, S] array.

    A query attends to keys of its segment. Segment 0 is padding and is never attended to. Without segment ids there is
    one segment. Causality and windows use the index in the row, which is also correct for packed rows.
    """

    query_segments_BxL: jax.Array | None = None
    key_segments_BxS: jax.Array | None = None
    prefix_BxS: jax.Array | None = None
    """True at keys that are visible to their whole segment despite a causal mask (prefix LM)."""
    query_ranks_BxL: jax.Array | None = None
    key_ranks_BxS: jax.Array | None = None
    """With ranks, a query attends only to keys of lower rank (XLNet, UniLM)."""
    query_branches_BxL: jax.Array | None = None
    key_branches_BxS: jax.Array | None = None
    """Keys of branch 0 are visible to their whole segment, those of another branch only to queries of that branch."""
    offset: jax.Array | None = None
    """Index of the first query if the queries are a slice of the row; `query_…` cover only the slice."""
    key_index_S: jax.Array | None = None
    """Index of each key in the row, if the keys are not in order (the ring of a cache)."""
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)
    """A query attends to keys at a distance below this."""
    same_segments: bool | None = flax.struct.field(pytree_node=False, default=None)
    """True if queries and keys have the same segments, as in self-attention. Set at construction, because a scan or
    rematerialisation traces the array twice."""

    def __post_init__(self) -> None:
        if self.same_segments is None:
            object.__setattr__(self, "same_segments", self.query_segments_BxL is self.key_segments_BxS)

    @property
    def has_segments_only(self) -> bool:
        """True if segments, causality and a window say all."""
        return self.query_ranks_BxL is None and self.query_branches_BxL is None and self.prefix_BxS is None

    @classmethod
    def self_attention(cls, segments_BxL: jax.Array | None, ranks_BxL: jax.Array | None = None) -> Mask:
        """Self-attention mask: a token attends to tokens of its segment with equal or lower rank.

        Example:
          >>> ranks = jnp.array([[0, 0, 1, 2]])  # bidirectional between the first two tokens, then causal
          >>> Mask.self_attention(None, ranks).materialise(4, 4).astype(int)
          Array([[[1, 1, 0, 0],
                  [1, 1, 0, 0],
                  [1, 1, 1, 0],
                  [1, 1, 1, 1]]], dtype=int32)
        """
        above_BxL = None if ranks_BxL is None else ranks_BxL + 1
        return cls(segments_BxL, segments_BxL, query_ranks_BxL=above_BxL, key_ranks_BxS=ranks_BxL)

    def of_queries(self, at_BxT: jax.Array) -> Mask:
        """The mask of the queries at some positions; not causal and without a window, which count in the row.

        Example:
          >>> segments = jnp.array([[1, 2, 2, 0]])
          >>> Mask(segments, segments).of_queries(jnp.array([[1]])).materialise(1, 4).astype(int)
          Array([[[0, 1, 1, 0]]], dtype=int32)
        """
        names = "query_segments_BxL", "query_ranks_BxL", "query_branches_BxL"
        of_row = {name: x for name in names if (x := getattr(self, name)) is not None}
        chosen = {name: jnp.take_along_axis(x_BxL, at_BxT, axis=1) for name, x_BxL in of_row.items()}
        return self.replace(**chosen, same_segments=False)

    def visible_share(self, length: int) -> Fraction:
        """The share of a long row's scores that causality and the window leave; a causal mask leaves one half.

        Args:
          length: of the row, as long as the queries.

        Example:
          >>> [str(Mask(**options).visible_share(8)) for options in ({}, {"causal": True}, {"window": 4})]
          ['1', '1/2', '3/4']
          >>> str(Mask(causal=True, window=4).visible_share(8))
          '3/8'
        """
        if self.offset is not None:
            return Fraction(1)
        reach = Fraction(1) if self.window is None else min(Fraction(self.window, length), Fraction(1))
        share = 2 * reach - reach**2
        return share / 2 if self.causal and self.prefix_BxS is None else share

    def materialise(self, queries: int, keys: int, start: jax.Array | int = 0) -> jax.Array | None:
        """The mask as an array.

        Args:
          queries: L.
          keys: S.
          start: index of the first query, for a slice of the mask.

        Returns:
          bool, broadcastable to [B, L, S], True where a query attends; None if nothing is masked.

        Example:
          >>> segments = jnp.array([[1, 2, 2, 0]])
          >>> Mask(segments, segments, causal=True).materialise(4, 4).astype(int)
          Array([[[1, 0, 0, 0],
                  [0, 1, 0, 0],
                  [0, 1, 1, 0],
                  [0, 0, 0, 0]]], dtype=int32)
          >>> branches = jnp.array([[0, 1, 1, 2]])  # a context and two continuations
          >>> Mask(query_branches_BxL=branches, key_branches_BxS=branches, causal=True).materialise(4, 4).astype(int)
          Array([[[1, 0, 0, 0],
                  [1, 1, 0, 0],
                  [1, 1, 1, 0],
                  [1, 0, 0, 1]]], dtype=int32)
        """
        parts, is_slice = [], not isinstance(start, int) or start > 0

        def rows(x_BxL: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(x_BxL, start, queries, 1) if is_slice else x_BxL

        first = start if self.offset is None else self.offset + start
        index_S = jnp.arange(keys) if self.key_index_S is None else self.key_index_S
        distance_LxS = (first + jnp.arange(queries))[:, None] - index_S
        if self.causal:
            before = (distance_LxS >= 0)[None]
            parts.append(before if self.prefix_BxS is None else before | self.prefix_BxS[:, None, :])
        if self.window is not None:
            parts.append((jnp.abs(distance_LxS) < self.window)[None])
        q_BxL, k_BxS = self.query_segments_BxL, self.key_segments_BxS
        if self.query_ranks_BxL is not None:
            parts.append(self.key_ranks_BxS[:, None, :] < rows(self.query_ranks_BxL)[:, :, None])
        if self.query_branches_BxL is not None:
            branches_Bx1xS = self.key_branches_BxS[:, None, :]
            parts.append((rows(self.query_branches_BxL)[:, :, None] == branches_Bx1xS) | (branches_Bx1xS == 0))
        if q_BxL is not None or k_BxS is not None:
            q_BxL = jnp.ones((1, queries), jnp.int32) if q_BxL is None else rows(q_BxL)
            k_BxS = jnp.ones((1, keys), jnp.int32) if k_BxS is None else k_BxS
            parts.append((q_BxL[:, :, None] == k_BxS[:, None, :]) & (k_BxS != 0)[:, None, :])
        return functools.reduce(jnp.logical_and, parts) if parts else None
