"""Multi-head attention. All of it goes through one function, `attend`.

Shapes: B batch · L query length · S key length · D embedding width · H heads · G heads of keys · K head width
"""

from __future__ import annotations

import functools
import math

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from jaxpt.models.layers import Dense, Initializer, constrain
from jaxpt.models.positions import Rotation, rotate

# Finite, so that a row which may look nowhere (padding) gives a plain average and not NaN.
MASKED = -1e30


@flax.struct.dataclass
class Mask:
    """Which keys a query may look at, described by parts, so that a kernel need not see an [L, S] array.

    A query looks at keys of its own segment alone. Segment 0 is padding: no one looks there. Without ids, all is
    one segment. Causality and windows go by the index in the row, which is right for packed rows as well.
    """

    query_segments_BxL: jax.Array | None = None
    key_segments_BxS: jax.Array | None = None
    prefix_BxS: jax.Array | None = None
    """True at keys that a causal mask leaves open to all of their segment (prefix LM)."""
    query_ranks_BxL: jax.Array | None = None
    key_ranks_BxS: jax.Array | None = None
    """Where there are ranks, a query looks at keys of a lower rank than its own (XLNet)."""
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)
    """A query looks at keys that are less than so many positions away."""

    def materialise(self, queries: int, keys: int) -> jax.Array | None:
        """The mask as an array.

        Args:
          queries: L.
          keys: S.

        Returns:
          bool, broadcastable to [B, L, S], True where a query may look; None where all may look everywhere.

        Example:
          >>> segments = jnp.array([[1, 2, 2, 0]])
          >>> Mask(segments, segments, causal=True).materialise(4, 4).astype(int)
          Array([[[1, 0, 0, 0],
                  [0, 1, 0, 0],
                  [0, 1, 1, 0],
                  [0, 0, 0, 0]]], dtype=int32)
        """
        parts = []
        distance_LxS = jnp.arange(queries)[:, None] - jnp.arange(keys)
        if self.causal:
            before = (distance_LxS >= 0)[None]
            parts.append(before if self.prefix_BxS is None else before | self.prefix_BxS[:, None, :])
        if self.window is not None:
            parts.append((jnp.abs(distance_LxS) < self.window)[None])
        q_BxL, k_BxS = self.query_segments_BxL, self.key_segments_BxS
        if self.query_ranks_BxL is not None:
            parts.append(self.key_ranks_BxS[:, None, :] < self.query_ranks_BxL[:, :, None])
        if q_BxL is not None or k_BxS is not None:
            q_BxL = jnp.ones((1, queries), jnp.int32) if q_BxL is None else q_BxL
            k_BxS = jnp.ones((1, keys), jnp.int32) if k_BxS is None else k_BxS
            parts.append((q_BxL[:, :, None] == k_BxS[:, None, :]) & (k_BxS != 0)[:, None, :])
        return functools.reduce(jnp.logical_and, parts) if parts else None


def attend(
    q_BxLxHxK: jax.Array,
    k_BxSxGxK: jax.Array,
    v_BxSxGxK: jax.Array,
    mask: Mask,
    bias_HxLxS: jax.Array | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Scaled dot-product attention, softmax(scale · q·kᵀ + bias) · v, with the softmax in float32.

    Args:
      q_BxLxHxK: queries.
      k_BxSxGxK: keys; H/G neighbouring heads of the queries share one (G = H: each has its own).
      v_BxSxGxK: values.
      mask: which keys each query may look at.
      bias_HxLxS: added to the scores, or None; with a leading batch axis where rows differ.
      scale: factor of the scores; 1/√K by default.
      dropout: rate on the attention weights.
      dropout_key: random key; None for no dropout.

    Returns:
      [B, L, H, K] in q's dtype. A query that may look nowhere gets the average of all values.

    Papers: https://arxiv.org/abs/1706.03762, shared keys https://arxiv.org/abs/2305.13245
    """
    B, L, H, K = q_BxLxHxK.shape
    S, G = k_BxSxGxK.shape[1:3]
    scale = 1 / math.sqrt(K) if scale is None else scale
    # Heads before length: several times faster on CPUs than contracting in [B, L, H, K].
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q_BxLxHxK, k_BxSxGxK, v_BxSxGxK))
    q = q * scale if scale != 1.0 else q
    if G == H:
        scores_BxHxLxS = jnp.einsum("BHLK,BHSK->BHLS", q, k, preferred_element_type=jnp.float32)
    else:
        q = q.reshape(B, G, H // G, L, K)
        scores = jnp.einsum("BGRLK,BGSK->BGRLS", q, k, preferred_element_type=jnp.float32)
        scores_BxHxLxS = scores.reshape(B, H, L, S)
    if bias_HxLxS is not None:
        scores_BxHxLxS += bias_HxLxS
    allowed_BxLxS = mask.materialise(L, S)
    if allowed_BxLxS is not None:
        scores_BxHxLxS = jnp.where(allowed_BxLxS[:, None], scores_BxHxLxS, MASKED)
    weights = jax.nn.softmax(scores_BxHxLxS, axis=-1).astype(v.dtype)
    if dropout_key is not None and dropout > 0:
        keep = jax.random.bernoulli(dropout_key, 1 - dropout, weights.shape)
        weights = jnp.where(keep, weights / (1 - dropout), 0)
    if G == H:
        return jnp.einsum("BHLS,BHSK->BHLK", weights, v).transpose(0, 2, 1, 3)
    y = jnp.einsum("BGRLS,BGSK->BGRLK", weights.reshape(B, G, H // G, L, S), v)
    return y.reshape(B, H, L, K).transpose(0, 2, 1, 3)


class Attention(nn.Module):
    """Multi-head attention with its four projections; kernels are stored [in, heads·K] and [H·K, out]."""

    heads: int
    head_dim: int
    dtype: DTypeLike
    kernel_init: Initializer
    """Of key and value, and of query unless `query_init` says otherwise."""
    output_init: Initializer
    query_init: Initializer | None = None
    use_bias: bool = True
    scale: float | None = None
    dropout: float = 0.0
    """Rate on the attention weights."""
    kv_heads: int | None = None
    """Heads of keys and values; as many as queries have by default."""

    @nn.compact
    def __call__(
        self,
        x_BxLxD: jax.Array,
        mask: Mask,
        *,
        memory_BxSxD: jax.Array | None = None,
        bias_HxLxS: jax.Array | None = None,
        rotation: Rotation | None = None,
        deterministic: bool,
    ) -> jax.Array:
        """Attends from `x` to `memory`, or to `x` itself, queries and keys turned by `rotation`: → [B, L, D]."""

        def project(name: str, x: jax.Array, heads: int, init: Initializer) -> jax.Array:
            dense = Dense(heads * self.head_dim, ("embed", "heads"), init, self.dtype, self.use_bias, name=name)
            y = checkpoint_name(constrain(dense(x), "act_heads"), name)
            return y.reshape(*y.shape[:2], heads, self.head_dim)

        memory, kv_heads = x_BxLxD if memory_BxSxD is None else memory_BxSxD, self.kv_heads or self.heads
        q_BxLxHxK = project("query", x_BxLxD, self.heads, self.query_init or self.kernel_init)
        k_BxSxGxK, v_BxSxGxK = (project(name, memory, kv_heads, self.kernel_init) for name in ("key", "value"))
        if rotation is not None:
            q_BxLxHxK, k_BxSxGxK = rotate(q_BxLxHxK, rotation), rotate(k_BxSxGxK, rotation)
        dropping = self.dropout > 0 and not deterministic
        y_BxLxHxK = attend(
            q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, mask, bias_HxLxS,
            scale=self.scale, dropout=self.dropout, dropout_key=self.make_rng("dropout") if dropping else None,
        )  # fmt: skip
        y = checkpoint_name(constrain(y_BxLxHxK.reshape(*x_BxLxD.shape[:2], -1), "act_heads"), "context")
        output = Dense(
            x_BxLxD.shape[-1], ("heads", "embed"), self.output_init, self.dtype, self.use_bias, name="output"
        )
        return output(y)
