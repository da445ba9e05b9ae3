"""Position encodings: absolute (learned, sinusoidal) and relative (T5, ALiBi, RoPE).

All take an `offset`: the position of the first query, for decoding with a cache. It may be a traced number; keys start
at position 0.

Shapes: B batch · L length (queries) · S keys · D embedding width · H heads · K head width · N = L + S distances
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxpt.errors import UserError
from jaxpt.models.layers import Initializer, param

Offset = int | jax.Array


def positions_from(length: int, offset: Offset = 0) -> jax.Array:
    """offset … offset + length − 1: int32 [1, L]."""
    return offset + jnp.arange(length)[None]


def distances(queries: int, keys: int, offset: Offset = 0, key_index_S: jax.Array | None = None) -> jax.Array:
    """Key position − query position: int32 [L, S].

    Args:
      queries: L.
      keys: S.
      offset: position of the first query.
      key_index_S: position of each key, if they are not in order (the ring of a cache).

    Example:
      >>> distances(2, 3, offset=1)
      Array([[-1,  0,  1],
             [-2, -1,  0]], dtype=int32)
    """
    return (jnp.arange(keys) if key_index_S is None else key_index_S) - positions_from(queries, offset).T


class LearnedPositions(nn.Module):
    """A table [rows, D] of absolute positions (BERT, GPT-2)."""

    rows: int
    width: int
    embedding_init: Initializer
    dtype: DTypeLike
    first_row: int = 0
    """Row of position 0 (RoBERTa, BART: 2)."""

    @nn.compact
    def __call__(self, length: int, positions_BxL: jax.Array | None = None, offset: Offset = 0) -> jax.Array:
        """Embeddings of `positions`, or of offset … offset + length − 1: → [B or 1, L, D]."""
        table = param(self, "table", self.embedding_init, (self.rows, self.width), ("positions", "embed"))
        table = nn.with_logical_constraint(table, ("positions", None))  # replicated along D before the lookup
        if positions_BxL is None and isinstance(offset, int):
            length, rows = offset + length, self.rows - self.first_row
            if length > rows:
                raise UserError(f"a sequence of {length} tokens is too long: the model's table has {rows} positions")
            return table[None, self.first_row + offset : self.first_row + length].astype(self.dtype)
        positions_BxL = positions_from(length, offset) if positions_BxL is None else positions_BxL
        return jnp.take(table, positions_BxL + self.first_row, axis=0, mode="clip").astype(self.dtype)


def relative_bucket(
    distance: np.ndarray, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128
) -> np.ndarray:
    """T5's bucket of each relative distance: exact if short, then logarithmic up to `max_distance`.

    With n = |distance| and e exact buckets: n if n < e, else e + ⌊log(n/e) / log(max_distance/e) · (buckets − e)⌋.

    Args:
      distance: key position − query position, in tokens, of any shape.
      bidirectional: the upper half of the buckets is for keys after the query. If false, these share bucket 0.
      buckets: number of buckets.
      max_distance: larger distances share the last bucket.

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
    # float32 and this order of operations, as in T5's code.
    ratio = np.log(np.maximum(n, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(max_distance / exact))
    far = exact + (ratio * np.float32(buckets - exact)).astype(np.int32)
    return (offset + np.where(n < exact, n, np.minimum(far, buckets - 1))).astype(np.int32)


class DistanceBias:
    """An attention bias that depends on the distance alone; an array only where an implementation wants one."""

    def by_distance(self, queries: int, keys: int) -> jax.Array:
        """The bias of the distances −L … S − 1: [H, L + S]."""
        raise NotImplementedError

    def materialise(
        self, queries: int, keys: int, offset: Offset = 0, key_index_S: jax.Array | None = None
    ) -> jax.Array:
        """The bias of `queries` × `keys` positions: [H, L, S].

        Args:
          queries: L.
          keys: S.
          offset: position of the first query.
          key_index_S: as in `Mask`.
        """
        raise NotImplementedError


@flax.struct.dataclass
class LearnedBias(DistanceBias):
    """A table of one number for each bucket of distances and each head."""

    table_NxH: jax.Array
    """Rows are buckets."""
    bidirectional: bool = flax.struct.field(pytree_node=False)
    max_distance: int = flax.struct.field(pytree_node=False)

    def by_distance(self, queries: int, keys: int) -> jax.Array:
        """As `DistanceBias.by_distance`."""
        return self._of(np.arange(-queries, keys)).T

    def materialise(
        self, queries: int, keys: int, offset: Offset = 0, key_index_S: jax.Array | None = None
    ) -> jax.Array:
        """As `DistanceBias.materialise`."""
        if not isinstance(offset, int) or offset:  # a few rows of the [S, S] bias
            by_distance_NxH = self._of(np.arange(1 - keys, keys))
            at_LxS = distances(queries, keys, offset, key_index_S) + keys - 1
            return jnp.take(by_distance_NxH, at_LxS, axis=0, mode="clip").transpose(2, 0, 1)
        # The bias is constant along diagonals. Each distance is looked up once, in the order 0 … S-1, -L … -1; a row
        # of this vector repeated and read with a stride of N-1 is the row above shifted by one. Its gradient is a sum
        # along diagonals instead of a scatter of L·S entries.
        n = queries + keys
        by_distance_HxN = self._of((np.arange(n) + queries) % n - queries).T
        rows = jnp.tile(by_distance_HxN, (1, queries))[:, : queries * (n - 1)]
        return rows.reshape(-1, queries, n - 1)[:, :, :keys]

    def _of(self, distance_N: np.ndarray) -> jax.Array:
        bucket = relative_bucket(
            distance_N, bidirectional=self.bidirectional, buckets=len(self.table_NxH), max_distance=self.max_distance
        )
        # As a product: a gather and its scatter take 30 MB on a TPU v5p, in each layer.
        return jnp.dot(jax.nn.one_hot(bucket, len(self.table_NxH)), self.table_NxH, precision="highest")


class RelativeBias(nn.Module):
    """T5's attention bias: one learned number for each head and bucket of relative distance.

    Distances use the index in the row, which is also correct within a segment of a packed row.
    """

    heads: int
    bidirectional: bool
    embedding_init: Initializer
    buckets: int = 32
    max_distance: int = 128

    @nn.compact
    def __call__(self) -> LearnedBias:
        """The bias as a table, which `attend` takes."""
        table = param(self, "table", self.embedding_init, (self.buckets, self.heads), ("buckets", "norm"))
        return LearnedBias(table, self.bidirectional, self.max_distance)


def sinusoids_in_halves(positions_BxL: jax.Array, width: int) -> jax.Array:
    """Tensor2tensor's variant: [B, L] → float32 [B, L, D], sin(p / 10000^(i/(D/2 − 1))) at i < D/2, then cosines."""
    half = width // 2
    frequencies = np.exp(np.arange(half) * (-math.log(10_000.0) / (half - 1))).astype(np.float32)
    angle_BxLxF = positions_BxL[..., None].astype(jnp.float32) * frequencies
    return jnp.concatenate([jnp.sin(angle_BxLxF), jnp.cos(angle_BxLxF)], axis=-1)


class Rotation(NamedTuple):
    """Cosines and sines that rotate queries and keys."""

    cos_BxLxK: jax.Array
    sin_BxLxK: jax.Array


class Rope(NamedTuple):
    """Frequencies of rotary positions."""

    theta: float = 10_000.0
    """θ: pair i is rotated by θ^(−2i/K) per position."""
    scaling: Literal["none", "linear", "llama3", "yarn", "longrope"] = "none"
    """`linear` divides all frequencies by `factor`, `llama3` and `yarn` only low ones, `longrope` each by its own."""
    factor: float = 1.0
    low_frequency: float = 1.0
    """llama3: pairs with fewer rotations over `original_positions` are scaled by the full factor."""
    high_frequency: float = 4.0
    """llama3: pairs with more rotations are not scaled; pairs in between are interpolated."""
    original_positions: int = 8192
    """llama3, yarn, longrope: length of the original training."""
    slow_turns: float = 1.0
    """yarn: pairs with fewer rotations over `original_positions` are scaled by the full factor."""
    fast_turns: float = 32.0
    """yarn: pairs with more rotations are not scaled."""
    whole_pairs: bool = True
    """yarn: the pairs with just so many rotations are rounded outwards."""
    short_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency in a text of up to `original_positions` tokens."""
    long_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency in a longer text."""
    amplitude: float | None = None
    """yarn, longrope: factor of cosines and sines; the paper's by default."""
    share: float = 1.0
    """Share of a head's coordinates, the first ones, that is rotated."""

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Rotation angle of each pair per position, with longrope that of short texts: float32 [K/2]."""
        width = int(head_dim * self.share)
        plain = self.theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
        match self.scaling:
            case "none":
                return plain.astype(np.float32)
            case "linear":
                return (plain / self.factor).astype(np.float32)
            case "longrope":
                return (plain / np.array(self.short_factors)).astype(np.float32)
            case "llama3":
                turns = self.original_positions * plain / (2 * np.pi)
                smooth_factor = np.clip((turns - self.low_frequency) / (self.high_frequency - self.low_frequency), 0, 1)
            case "yarn":
                smooth_factor = 1 - self._ramp(width)
        return (smooth_factor * plain + (1 - smooth_factor) * plain / self.factor).astype(np.float32)

    def _ramp(self, width: int) -> np.ndarray:
        """yarn: 0 at pairs with at least `fast_turns` rotations, 1 at those with at most `slow_turns`."""

        def pair(turns: float) -> float:
            return width * math.log(self.original_positions / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        first, last = pair(self.fast_turns), pair(self.slow_turns)
        first, last = (math.floor(first), math.ceil(last)) if self.whole_pairs else (first, last)
        first, last = max(first, 0), min(last, width - 1)
        return np.clip((np.arange(width // 2) - first) / ((last - first) or 0.001), 0, 1)

    @property
    def magnitude(self) -> float:
        """Factor of cosines and sines."""
        if self.scaling not in ("yarn", "longrope"):
            return 1.0
        if self.amplitude is not None or self.factor <= 1:
            return 1.0 if self.amplitude is None else self.amplitude
        grown = math.log(self.factor)
        return 0.1 * grown + 1 if self.scaling == "yarn" else math.sqrt(1 + grown / math.log(self.original_positions))

    def rotation(self, positions_BxL: jax.Array, head_dim: int, segments_BxL: jax.Array | None = None) -> Rotation:
        """The rotation of each position: [B, L] → cosines and sines, float32 [B, L, K] (of the rotated K).

        With longrope a text of more than `original_positions` tokens has long factors at all positions. Keys in a cache
        keep the rotation that they were stored with, so decoding reads a row again where it becomes so long
        (`Decoder.step` of `jaxpt.decode.decoding`), as `generate` of transformers does. Their models have one set of
        factors for all texts of a call, by the longest; here no text changes another.

        Args:
          positions_BxL: positions.
          head_dim: K of the whole head.
          segments_BxL: which text of a packed row each token belongs to; one text by default.
        """
        frequencies = self.frequencies(head_dim)
        if self.scaling == "longrope":
            long = (frequencies * np.array(self.short_factors) / np.array(self.long_factors)).astype(np.float32)
            is_long_BxL = _longest(positions_BxL, segments_BxL) >= self.original_positions
            frequencies = jnp.where(is_long_BxL[..., None], long, frequencies)
        angle_BxLxK = positions_BxL[..., None].astype(jnp.float32) * jnp.tile(frequencies, 2)
        cos, sin = jnp.cos(angle_BxLxK), jnp.sin(angle_BxLxK)
        return Rotation(cos, sin) if self.magnitude == 1 else Rotation(cos * self.magnitude, sin * self.magnitude)


def _longest(positions_BxL: jax.Array, segments_BxL: jax.Array | None) -> jax.Array:
    """The last position of each token's text: [B, L] or [B, 1]."""
    if segments_BxL is None or segments_BxL.shape[1] == 1:
        return positions_BxL.max(axis=1, keepdims=True)
    positions_BxL, count = jnp.broadcast_to(positions_BxL, segments_BxL.shape), segments_BxL.shape[1] + 1
    longest_BxN = jax.vmap(lambda p_L, ids_L: jax.ops.segment_max(p_L, ids_L, count))(positions_BxL, segments_BxL)
    return jnp.take_along_axis(longest_BxN, segments_BxL, axis=1, mode="clip")


def rotate(x_BxLxHxK: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotary positions: rotates each pair of coordinates (i, i + K/2) by the position's angle.

    Of wider heads than the rotation is, the first coordinates are rotated.

    Args:
      x_BxLxHxK: queries or keys.
      rotation: of their positions.

    Returns:
      Same shape as `x`. Dot products depend only on the difference of positions.

    Paper: https://arxiv.org/abs/2104.09864
    """
    if (width := rotation.cos_BxLxK.shape[-1]) < x_BxLxHxK.shape[-1]:
        return jnp.concatenate([rotate(x_BxLxHxK[..., :width], rotation), x_BxLxHxK[..., width:]], axis=-1)
    first, second = jnp.split(x_BxLxHxK, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    cos, sin = (part[:, :, None] for part in rotation)
    return (x_BxLxHxK * cos + turned * sin).astype(x_BxLxHxK.dtype)
