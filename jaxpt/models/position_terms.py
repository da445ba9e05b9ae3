"""What positions add to the scores: DeBERTa's disentangled attention, and ALiBi.

Papers: https://arxiv.org/abs/2006.03654, ALiBi https://arxiv.org/abs/2108.12409

Shapes: B batch · L query length · S key length · H heads · K head width · R relative embeddings · N = L + S distances
"""

from __future__ import annotations

import math

import flax
import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.models.positions import DistanceBias, Offset, distances


def relative_rows(distance: np.ndarray, span: int, buckets: int | None, max_positions: int) -> np.ndarray:
    """δ(i, j) = clamp(bucket(i − j) + k, 0, 2k − 1): index of the relative embedding of a query and a key.

    Args:
      distance: i − j, of any shape.
      span: k.
      buckets: k if distances beyond k/2 share logarithmic buckets, None if all are exact.
      max_positions: larger distances share the last bucket.

    Returns:
      int32 of the same shape.

    Example:
      >>> relative_rows(np.array([-3, -2, -1, 0, 1, 2]), 2, None, 4)
      array([0, 0, 1, 2, 3, 3], dtype=int32)
    """
    if buckets is not None:
        middle = buckets // 2
        far = np.maximum(np.abs(distance), middle).astype(np.float32)
        ratio = np.log(far / np.float32(middle)) / np.log(np.float32((max_positions - 1) / middle))
        bucket = np.ceil(ratio * np.float32(middle - 1)) + middle
        distance = np.where(np.abs(distance) <= middle, distance, np.sign(distance) * bucket)
    return np.clip(distance.astype(np.int32) + span, 0, 2 * span - 1)


@flax.struct.dataclass
class PositionTerms:
    """Terms of the scores, Qc·Kr[δ] + Kc·Qr[δ]: products of queries and keys with relative embeddings."""

    kr_RxHxK: jax.Array | None
    """What queries meet."""
    qr_RxHxK: jax.Array | None
    """What keys meet."""
    first: int = flax.struct.field(pytree_node=False)
    """δ of the first row: rows that no distance has are left out."""
    span: int = flax.struct.field(pytree_node=False)
    buckets: int | None = flax.struct.field(pytree_node=False)
    max_positions: int = flax.struct.field(pytree_node=False)

    @property
    def is_whole(self) -> bool:
        """True if there are both terms."""
        return self.kr_RxHxK is not None and self.qr_RxHxK is not None

    def by_distance(self, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
        """([N, H·K] of j − i = −L … S − 1 for queries, [N, H·K] of i − j = −S … L − 1 for keys), N = L + S."""
        of_queries, of_keys = np.arange(queries, -keys, -1), np.arange(-keys, queries)
        terms = self.kr_RxHxK[self._rows(of_queries)], self.qr_RxHxK[self._rows(of_keys)]
        return terms[0].reshape(queries + keys, -1), terms[1].reshape(queries + keys, -1)

    def _rows(self, distance: np.ndarray) -> np.ndarray:
        last = len(self.kr_RxHxK if self.qr_RxHxK is None else self.qr_RxHxK) - 1
        return np.clip(relative_rows(distance, self.span, self.buckets, self.max_positions) - self.first, 0, last)

    def materialise(self, q_BxLxHxK: jax.Array, k_BxSxHxK: jax.Array, offset: jax.Array | None) -> jax.Array:
        """Both terms before scaling: float32 [B, H, L, S]; `offset` is the index of the first query."""
        queries, keys = q_BxLxHxK.shape[1], k_BxSxHxK.shape[1]
        at_LxS = jnp.asarray(self._rows(np.arange(keys)[:, None] - np.arange(keys)))[None, None]
        if offset is not None:  # the queries are a slice of the row
            at_LxS = jax.lax.dynamic_slice_in_dim(at_LxS, offset, queries, axis=2)
        total = jnp.zeros((), jnp.float32)
        if self.kr_RxHxK is not None:
            by_row = jnp.einsum("BLHK,RHK->BHLR", q_BxLxHxK, self.kr_RxHxK, preferred_element_type=jnp.float32)
            total += jnp.take_along_axis(by_row, at_LxS, axis=-1)
        if self.qr_RxHxK is not None:
            by_row = jnp.einsum("BSHK,RHK->BHRS", k_BxSxHxK, self.qr_RxHxK, preferred_element_type=jnp.float32)
            total += jnp.take_along_axis(by_row, at_LxS, axis=-2)
        return total


# ---- ALiBi ----------------------------------------------------------------------------------------------------------


def alibi_slopes(heads: int) -> np.ndarray:
    """ALiBi's slope of each head: 2^(−8h/H) for h = 1 … H, where H is a power of 2; else the slopes of the next smaller
    power, and every second slope of the next larger one.

    Args:
      heads: H.

    Returns:
      float32 [H].

    Example:
      >>> alibi_slopes(4)
      array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """

    def powers(n: int) -> list[float]:
        return [2.0 ** (-8 * (h + 1) / n) for h in range(n)]

    whole = 2 ** math.floor(math.log2(heads))
    return np.array(powers(whole) + powers(2 * whole)[::2][: heads - whole], np.float32)


@flax.struct.dataclass
class Alibi(DistanceBias):
    """ALiBi's bias, −slope · |i − j|, float32 [H, L, S]. Nothing is learned.

    Paper: https://arxiv.org/abs/2108.12409
    """

    heads: int = flax.struct.field(pytree_node=False)

    def by_distance(self, queries: int, keys: int) -> jax.Array:
        """As `DistanceBias.by_distance`."""
        return -alibi_slopes(self.heads)[:, None] * jnp.abs(jnp.arange(-queries, keys))

    def materialise(
        self, queries: int, keys: int, offset: Offset = 0, key_index_S: jax.Array | None = None
    ) -> jax.Array:
        """As `DistanceBias.materialise`."""
        return -alibi_slopes(self.heads)[:, None, None] * jnp.abs(distances(queries, keys, offset, key_index_S))


def alibi_of_keys(heads: int, positions_BxS: jax.Array) -> jax.Array:
    """Falcon's ALiBi: slope · position of the key, both and their product in bfloat16: float32 [B, H, 1, S].

    Args:
      heads: H.
      positions_BxS: position of each key.
    """
    slopes_Hx1x1 = jnp.asarray(alibi_slopes(heads)[:, None, None], jnp.bfloat16)
    return (slopes_Hx1x1 * positions_BxS[:, None, None].astype(jnp.bfloat16)).astype(jnp.float32)
