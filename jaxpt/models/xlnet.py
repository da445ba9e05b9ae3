"""XLNet: an encoder with relative positions and memory that can predict tokens in any order.

The content stream attends to tokens of equal or lower rank; the query stream, at the targets, only to lower rank.
Paper: https://arxiv.org/abs/1906.08237

Shapes: B batch · L length · M memory length · S = M + L keys · P predicted tokens · N = S + L distances
D embedding width · H heads · K head width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, Literal, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from pydantic import model_validator

from jaxpt.config import Fraction, HeadName, Layers, ModelConfig, PoolerOptions, PositiveFloat, Size, TaskHead
from jaxpt.models import adapters
from jaxpt.models.attention import attend, sow_weights
from jaxpt.models.base import Encoder, check_heads, compute_dtype
from jaxpt.models.layers import Activation, Dense, Dropout, Embed, FeedForward, LayerNorm, constrain, param, stored_rows
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output, Past, Projection
from jaxpt.models.stack import Segment, Shared, Stack

INIT = nn.initializers.normal(0.02)


class XLNetConfig(ModelConfig):
    """Configuration of XLNet."""

    family: ClassVar[str] = "encoder"
    text_layout: ClassVar[str] = "xlnet"

    kind: Literal["xlnet"] = "xlnet"
    layers: Layers
    embed_dim: Size
    heads: Size
    head_dim: Size | None = None
    """Width of a head; embed_dim / heads by default."""
    mlp_dim: Size
    """Hidden width of the feed-forward blocks."""
    clamp: Size | None = None
    """Maximum distance in tokens; larger distances are clamped."""
    memory_length: Size | None = None
    """Number of tokens whose hidden states are cached for the next sequence; all by default."""
    reuse_length: Size | None = None
    """Cache only the first `reuse_length` tokens of a sequence."""
    activation: Activation = "gelu"
    epsilon: PositiveFloat = 1e-12
    """ε of the norms."""
    dropout: Fraction = 0.0
    """Dropout rate on embeddings, positions, attention weights and block outputs."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.head_dim is None:
            check_heads(self.embed_dim, self.heads, hint="; set head_dim")
        return self

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.embed_dim // self.heads

    @property
    def masked_lm_options(self) -> None:
        """None: XLNet has no masked-LM head."""
        return None

    def task_head(self, name: HeadName) -> TaskHead:
        """Whole texts from the last token, which is [CLS]; no dropout before the logits of tokens."""
        if name in ("tags", "span"):
            return TaskHead("encoder", "each", drops_out=False)
        return TaskHead("encoder", "last", PoolerOptions())

    def build(self) -> XLNet:
        """Builds the model."""
        return XLNet(self)


class Streams(NamedTuple):
    """Hidden states of both streams."""

    content_BxLxD: jax.Array
    query_BxPxD: jax.Array | None


class Relative(NamedTuple):
    """Position and token-type inputs of the layers."""

    distances_NxD: jax.Array
    """Sinusoids of the distances S … 1 − L, query minus key."""
    differ_BxLxS: jax.Array | None
    """True if query and key have different token types."""
    targets_BxP: jax.Array | None
    """Positions of the query stream."""
    query_mask: Mask | None


def sinusoids(queries: int, keys: int, width: int, clamp: int | None) -> np.ndarray:
    """sin and then cos of the distances keys … 1 − queries, each over D/2 frequencies: float32 [N, D]."""
    distance_N = np.arange(keys, -queries, -1.0)
    distance_N = distance_N if clamp is None else np.clip(distance_N, -clamp, clamp)
    angle = distance_N[:, None] / 10_000.0 ** (np.arange(0, width, 2.0) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1).astype(np.float32)


def of_keys(by_distance_BxHxLxN: jax.Array, keys: int, length: int, targets_BxP: jax.Array | None) -> jax.Array:
    """What stands at the distance of each query and key: [B, H, L, N] → [B, H, L, S]; of targets [B, H, P, S]."""
    if targets_BxP is not None:
        at_BxPxS = length - targets_BxP[:, :, None] + jnp.arange(keys)
        return jnp.take_along_axis(by_distance_BxHxLxN, at_BxPxS[:, None], axis=-1)
    # Row i needs the distances from i + M: with a stride of N − 1 each row starts one later.
    B, H, L, N = by_distance_BxHxLxN.shape
    return by_distance_BxHxLxN.reshape(B, H, N, L)[:, :, 1:].reshape(B, H, L, N - 1)[..., :keys]


class RelativeAttention(nn.Module):
    """((q + u)·k + (q + v)·r[i − j] + (q + w)·s[same type?]) / √K, for both streams with the same keys and values."""

    config: XLNetConfig

    @nn.compact
    def __call__(self, streams: Streams, memory_BxMxD: jax.Array | None, shared: Shared) -> Streams:
        c, dtype = self.config, compute_dtype(self.config)
        relative: Relative = shared.positional
        heads, width, length = c.heads, c.width, streams.content_BxLxD.shape[1]

        def project(name: str, saved: str | None = None) -> Any:
            dense = Dense(heads * width, ("embed", "heads"), INIT, dtype, use_bias=False, name=name)

            def run(x: jax.Array) -> jax.Array:
                y = checkpoint_name(constrain(dense(x), "act_heads"), saved or name)
                return y.reshape(*x.shape[:-1], heads, width)

            return run

        def vector(name: str) -> jax.Array:
            return param(self, name, INIT, (heads, width), ("heads", "norm")).astype(dtype)

        h = streams.content_BxLxD
        all_BxSxD = h if memory_BxMxD is None else jnp.concatenate([memory_BxMxD.astype(dtype), h], axis=1)
        keys = all_BxSxD.shape[1]
        query, k_BxSxHxK, v_BxSxHxK = project("query"), project("key")(all_BxSxD), project("value")(all_BxSxD)
        r_NxHxK = project("position", saved="key")(relative.distances_NxD)
        content_bias, position_bias, type_bias = vector("content_bias"), vector("position_bias"), vector("type_bias")
        types = param(self, "types", INIT, (2, heads * width), ("classes", "heads")).astype(dtype)
        types_2xHxK = types.reshape(2, heads, width)
        output = Dense(c.embed_dim, ("heads", "embed"), INIT, dtype, use_bias=False, name="output")
        dropping = c.dropout > 0 and self.has_rng("dropout")

        def run(x_BxLxD: jax.Array, mask: Mask, targets: jax.Array | None) -> jax.Array:
            q = query(x_BxLxD)
            by_row = jnp.einsum("BLHK,NHK->BHLN", q + position_bias, r_NxHxK, preferred_element_type=jnp.float32)
            bias = of_keys(by_row, keys, length, targets)
            if relative.differ_BxLxS is not None:
                by_type = jnp.einsum("BLHK,THK->BHLT", q + type_bias, types_2xHxK).astype(jnp.float32)
                differ = relative.differ_BxLxS
                differ = differ if targets is None else jnp.take_along_axis(differ, targets[:, :, None], axis=1)
                bias += jnp.where(differ[:, None], by_type[..., 1:], by_type[..., :1])
            scale = 1 / math.sqrt(width)
            sow_weights(self, q + content_bias, k_BxSxHxK, mask, bias * scale, scale=scale)
            y = attend(
                q + content_bias, k_BxSxHxK, v_BxSxHxK, mask, bias * scale, scale=scale, dropout=c.dropout,
                dropout_key=self.make_rng("dropout") if dropping else None, implementation=c.attention,
            )  # fmt: skip
            y = constrain(y.reshape(*x_BxLxD.shape[:2], -1), "act_heads")
            return output(checkpoint_name(y, "context"))

        g = streams.query_BxPxD
        return Streams(
            run(h, shared.mask, None), None if g is None else run(g, relative.query_mask, relative.targets_BxP)
        )


class Block(nn.Module):
    """Attention and feed-forward, each x ← LN(x + f(x)), on both streams; returns the layer's next memory."""

    config: XLNetConfig

    @nn.compact
    def __call__(self, x: Streams, past: Past, shared: Shared) -> Output:
        c, dtype = self.config, compute_dtype(self.config)
        attention_norm = LayerNorm(c.epsilon, dtype, name="attention_norm")
        feed_forward_norm = LayerNorm(c.epsilon, dtype, name="feed_forward_norm")
        feed_forward = FeedForward(c.mlp_dim, c.activation, INIT, INIT, dtype, dropout=c.dropout, name="feed_forward")
        drop = Dropout(c.dropout)
        after_attention, after_feed_forward = (adapters.after(c, name) for name in ("attention", "feed_forward"))

        memory = x.content_BxLxD[:, : c.reuse_length]
        memory = memory if past.memory is None else jnp.concatenate([past.memory.astype(memory.dtype), memory], axis=1)
        memory = memory if c.memory_length is None else memory[:, -c.memory_length :]

        attended = RelativeAttention(c, name="attention")(x, past.memory, shared)

        def rest(x_BxLxD: jax.Array, y_BxLxD: jax.Array) -> jax.Array:
            x_BxLxD = attention_norm(x_BxLxD + after_attention(drop(y_BxLxD)))
            y_BxLxD = after_feed_forward(drop(feed_forward(x_BxLxD)))
            return constrain(feed_forward_norm(x_BxLxD + y_BxLxD), "act_embed")

        query = None if x.query_BxPxD is None else rest(x.query_BxPxD, attended.query_BxPxD)
        content = rest(x.content_BxLxD, attended.content_BxLxD)
        return Output(Streams(content, query), memory=jax.lax.stop_gradient(memory))


class XLNet(Encoder):
    """XLNet; the output projection is tied to the token embeddings."""

    config: XLNetConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype)
        self.query_embed = param(self, "query_embed", INIT, (c.embed_dim,), ("norm",))
        self.encoder = Stack((Segment((functools.partial(Block, c),), c.layers),), c.remat, c.unroll)
        self.drop = Dropout(c.dropout)
        self.vocab_bias = param(self, "vocab_bias", nn.initializers.zeros, (stored_rows(c.vocab_size),), ("vocab",))

    def streams(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        ranks: jax.Array | None = None,
        targets: jax.Array | None = None,
        memory: Any = None,
        layers: bool = False,
    ) -> Output:
        """Both streams and the memory for the next sequence.

        Args:
          tokens_BxL: token ids.
          token_types: [B, L]; only equality of types matters; memory has type 0.
          segment_ids: [B, L], 0 on padding, packed sequences numbered from 1 (all 1 with memory).
          ranks: [B, L], rank of each token in the factorization order; −1 for context visible to all tokens. A token
            attends to tokens of equal or lower rank; by default to all.
          targets: [B, P] positions to predict, which attend only to lower ranks; None: no query stream.
          memory: `memory` of the output for the previous sequence.
          layers: also return the hidden states of all layers.

        Returns:
          Hidden states as `Streams` (content [B, L, D], query [B, P, D] or None), and memory.
        """
        c, dtype, (B, L) = self.config, compute_dtype(self.config), tokens_BxL.shape
        M = 0 if memory is None else jax.tree.leaves(memory)[0].shape[2]

        def before(x: jax.Array | None, value: int) -> jax.Array | None:
            """A property of the keys: of the memory, then of the sequence."""
            return x if x is None or M == 0 else jnp.concatenate([jnp.full((B, M), value, x.dtype), x], axis=1)

        def at_targets(x: jax.Array | None) -> jax.Array | None:
            return None if x is None else jnp.take_along_axis(x, targets, axis=1)

        key_segments, key_ranks = before(segment_ids, 1), before(ranks, -1)
        mask = Mask(
            segment_ids, key_segments, query_ranks_BxL=None if ranks is None else ranks + 1, key_ranks_BxS=key_ranks
        )
        query_mask = query_BxPxD = None
        if targets is not None:
            query_mask = Mask(
                at_targets(segment_ids), key_segments, query_ranks_BxL=at_targets(ranks), key_ranks_BxS=key_ranks
            )
            query_BxPxD = jnp.broadcast_to(self.query_embed.astype(dtype), (*targets.shape, c.embed_dim))
            query_BxPxD = self.drop(query_BxPxD)
        differ = None if token_types is None else token_types[:, :, None] != before(token_types, 0)[:, None, :]
        distances = self.drop(jnp.asarray(sinusoids(L, M + L, c.embed_dim, c.clamp), dtype))
        content = self.drop(self.token_embed(tokens_BxL))
        shared = Shared(mask, positional=Relative(distances, differ, targets, query_mask))
        output = self.encoder(Streams(content, query_BxPxD), shared, Past(memory=memory), layers=layers)
        x: Streams = output.hidden
        query_BxPxD = None if targets is None else self.drop(x.query_BxPxD)
        return output.with_hidden(Streams(self.drop(x.content_BxLxD), query_BxPxD))

    def encode(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        layers: bool = False,
    ) -> Output:
        """As `Encoder.encode`: the content stream, with bidirectional attention.

        Only equality of `token_types` matters. `positions` are ignored: relative ones are the same in a packed row.
        """
        output = self.streams(tokens_BxL, token_types=token_types, segment_ids=segment_ids, layers=layers)
        every = None if output.layers is None else output.layers.content_BxLxD
        return output.replace(hidden=output.hidden.content_BxLxD, layers=every)

    def output_projection(self) -> Projection:
        """The token embeddings, with a bias; for hidden states of either stream."""
        return super().output_projection().replace(bias=self.vocab_bias)

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        """Logits [B, L, V] of left-to-right prediction: uses every parameter."""
        order = jnp.broadcast_to(jnp.arange(tokens_BxL.shape[1]), tokens_BxL.shape)
        streams = self.streams(tokens_BxL, token_types=order, ranks=order, targets=order).hidden
        return self.logits(streams.query_BxPxD)
