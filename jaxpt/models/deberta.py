"""DeBERTa v2 and v3: a BERT with disentangled attention (separate terms for content and relative position).

Paper: https://arxiv.org/abs/2006.03654, v3 https://arxiv.org/abs/2111.09543

Shapes: B batch · L length (S of the keys) · D embedding width · H heads · K head width · R relative positions
V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
import math
from typing import Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from pydantic import model_validator

from jaxpt.config import HeadName, NonNegativeInt, PoolerOptions, PositiveFloat, Size
from jaxpt.models import bert
from jaxpt.models.attention import attend, sow_weights
from jaxpt.models.base import Encoder, compute_dtype
from jaxpt.models.bert import INIT, BertConfig
from jaxpt.models.layers import ACTIVATIONS, Activation, Dense, Dropout, Embed, LayerNorm, SmallEmbed, constrain, param
from jaxpt.models.mask import Mask
from jaxpt.models.output import NOTHING, Output, Past
from jaxpt.models.position_terms import PositionTerms, relative_rows
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Shared, Stack


class DebertaConfig(BertConfig):
    """Configuration of DeBERTa."""

    kind: Literal["deberta"] = "deberta"
    max_positions: Size = 512
    """Maximum sequence length, and the maximum distance of relative positions."""
    buckets: Size | None = 256
    """k: distances up to k/2 are exact, longer ones share logarithmic buckets; None: all are exact."""
    content_to_position: bool = True
    """Add Qc·Kr to the scores."""
    position_to_content: bool = True
    """Add Kc·Qr to the scores."""
    share_projections: bool = True
    """Project relative positions with the content projections."""
    norm_relative: bool = True
    """LayerNorm on the relative embeddings."""
    absolute_positions: bool = False
    """Add a table of absolute positions to the embeddings."""
    token_types: NonNegativeInt = 0
    convolution: Size | None = None
    """Kernel width of the convolution parallel to the first layer, odd (v2: 3); None: no convolution."""
    convolution_activation: Activation = "tanh"
    mask_decoder: bool = False
    """Enhanced mask decoder: the last layer runs twice, with absolute positions added to the first queries. In
    version 3 only the generator has it."""
    epsilon: PositiveFloat = 1e-7
    """ε of the norms."""

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if self.convolution and self.convolution % 2 == 0:
            raise ValueError(f"convolution: {self.convolution} is even; set an odd width")
        if self.buckets == 1:
            raise ValueError("buckets: 1 has no exact distances; set 2 or more, or null")
        if self.layers <= bool(self.convolution) + self.mask_decoder:
            raise ValueError(f"layers: {self.layers} are too few with convolution or mask_decoder")
        return self

    def idle_settings(self) -> tuple[str, ...]:
        idle = () if self.convolution else self._idle(("convolution_activation",), "without convolution")
        return (*super().idle_settings(), *idle)

    @property
    def relative(self) -> bool:
        """True if relative positions are used."""
        return self.content_to_position or self.position_to_content

    @property
    def span(self) -> int:
        """k: there are 2k relative embeddings."""
        return self.buckets or self.max_positions

    def parts(self) -> dict[str, range]:
        """{name of a stack: its layer numbers}, in order; the first and the last layer may be separate stacks."""
        start, end = int(bool(self.convolution)), self.layers - self.mask_decoder
        parts = {"first": range(start), "encoder": range(start, end), "last": range(end, self.layers)}
        return {name: numbers for name, numbers in parts.items() if numbers}

    def pooler(self, name: HeadName) -> PoolerOptions:
        """As BERT's, with GELU."""
        return PoolerOptions("gelu")

    def build(self) -> Deberta:
        """Builds the model."""
        return Deberta(self)


class DisentangledAttention(nn.Module):
    """(Qc·Kc + Qc·Kr[δ] + Kc·Qr[δ]) / √(3K), with the configured terms."""

    config: DebertaConfig

    @nn.compact
    def __call__(
        self,
        x_BxLxD: jax.Array,
        mask: Mask,
        *,
        memory_BxSxD: jax.Array | None = None,
        positional: jax.Array | None = None,
        past: Past = NOTHING,
    ) -> tuple[jax.Array, None]:
        """As `Attention`; `positional` are the relative embeddings [2k, D]."""
        c, dtype = self.config, compute_dtype(self.config)
        memory_BxSxD = x_BxLxD if memory_BxSxD is None else memory_BxSxD
        heads, width = c.heads, c.embed_dim // c.heads
        keys = memory_BxSxD.shape[1]

        def projection(name: str) -> Dense:
            return Dense(c.embed_dim, ("embed", "heads"), INIT, dtype, name=name)

        def split(x: jax.Array, saved: str) -> jax.Array:
            return checkpoint_name(constrain(x, "act_heads"), saved).reshape(*x.shape[:-1], heads, width)

        query, key = projection("query"), projection("key")
        q_BxLxHxK, k_BxSxHxK = split(query(x_BxLxD), "query"), split(key(memory_BxSxD), "key")
        v_BxSxHxK = split(projection("value")(memory_BxSxD), "value")
        scale = 1 / math.sqrt(width * (1 + c.content_to_position + c.position_to_content))
        terms = None
        if c.relative:
            # Only the relative embeddings that occur at this length, to save work on short sequences.
            ends = relative_rows(np.array([1 - keys, keys - 1]), c.span, c.buckets, c.max_positions)
            low, high = int(ends[0]), int(ends[1])
            relative_RxD = Dropout(c.dropout)(positional[low : high + 1])
            kr = qr = None
            if c.content_to_position:
                kr = split((key if c.share_projections else projection("position_key"))(relative_RxD), "key")
            if c.position_to_content:
                qr = split((query if c.share_projections else projection("position_query"))(relative_RxD), "query")
            terms = PositionTerms(kr, qr, low, c.span, c.buckets, c.max_positions)
        dropping = c.dropout > 0 and self.has_rng("dropout")
        sow_weights(self, q_BxLxHxK, k_BxSxHxK, mask, terms, scale=scale)
        y_BxLxHxK = attend(
            q_BxLxHxK, k_BxSxHxK, v_BxSxHxK, mask, terms, scale=scale, dropout=c.dropout,
            dropout_key=self.make_rng("dropout") if dropping else None, implementation=c.attention,
        )  # fmt: skip
        y_BxLxD = checkpoint_name(constrain(y_BxLxHxK.reshape(*x_BxLxD.shape), "act_heads"), "context")
        return Dense(c.embed_dim, ("heads", "embed"), INIT, dtype, name="output")(y_BxLxD), None


class Block(bert.Block):
    """BERT's, with disentangled attention."""

    @nn.nowrap
    def attention(self) -> nn.Module:
        return DisentangledAttention(self.config, name="attention")


class Convolution(nn.Module):
    """LN(y + f(conv(x))): a convolution over tokens, parallel to the first layer with output y. Padding stays 0.

    Tokens of another segment count as zeros, as padding does, so a text of a packed row is as it is alone.
    """

    config: DebertaConfig

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, y_BxLxD: jax.Array, segments_BxL: jax.Array) -> jax.Array:
        c, dtype = self.config, compute_dtype(self.config)
        shape = (c.convolution, c.embed_dim, c.embed_dim)
        kernel = param(self, "kernel", INIT, shape, ("positions", "embed", "norm")).astype(dtype)
        bias = param(self, "bias", nn.initializers.zeros, (c.embed_dim,), ("norm",)).astype(dtype)
        side, length = c.convolution // 2, x_BxLxD.shape[1]
        x, segments = (jnp.pad(x, [(0, 0), (side, side), (0, 0)][: x.ndim]) for x in (x_BxLxD, segments_BxL))
        windows = [slice(first, first + length) for first in range(c.convolution)]
        taps = [jnp.where((segments[:, at] == segments_BxL)[..., None], x[:, at], 0) for at in windows]
        z = jnp.einsum("BLND,NDE->BLE", jnp.stack(taps, axis=2), kernel) + bias
        real_BxLx1 = segments_BxL[..., None] > 0
        z = jnp.where(real_BxLx1, z, 0)
        z = ACTIVATIONS[c.convolution_activation](Dropout(c.dropout)(z))
        return jnp.where(real_BxLx1, LayerNorm(c.epsilon, dtype, name="norm")(y_BxLxD + z), 0)


class Deberta(Encoder):
    """The encoder."""

    config: DebertaConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        positions = c.absolute_positions or c.mask_decoder
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype)
        self.position_embed = LearnedPositions(c.max_positions, c.embed_dim, INIT, dtype) if positions else None
        self.type_embed = SmallEmbed(c.token_types, c.embed_dim, INIT, dtype) if c.token_types else None
        self.embed_norm = LayerNorm(c.epsilon, dtype)
        self.embed_dropout = Dropout(c.dropout)
        if c.relative:
            self.relative_table = param(self, "relative_table", INIT, (2 * c.span, c.embed_dim), ("buckets", "embed"))
            self.relative_norm = LayerNorm(c.epsilon, dtype) if c.norm_relative else None

        block = (functools.partial(Block, c),)
        stacks = {name: Stack((Segment(block, len(at)),), c.remat, c.unroll) for name, at in c.parts().items()}
        self.first, self.encoder, self.last = (stacks.get(name) for name in ("first", "encoder", "last"))
        self.convolution = Convolution(c) if c.convolution else None

    def embed(
        self, tokens_BxL: jax.Array, token_types: jax.Array | None = None, positions: jax.Array | None = None
    ) -> jax.Array:
        """The sum of the embeddings, before the norm: [B, L] → [B, L, D]."""
        x_BxLxD = self.token_embed(tokens_BxL)
        if self.config.absolute_positions:
            x_BxLxD += self.position_embed(tokens_BxL.shape[1], positions)
        if self.type_embed is not None:
            x_BxLxD += self.type_embed(jnp.zeros_like(tokens_BxL) if token_types is None else token_types)
        return x_BxLxD

    def encode(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        embedded: jax.Array | None = None,
        layers: bool = False,
    ) -> Output:
        """As `Encoder.encode`; the enhanced mask decoder, if there is one, runs the last layer twice.

        `positions` are the absolute ones; `embedded` replaces the result of `embed`.
        """
        c, dtype = self.config, compute_dtype(self.config)
        x_BxLxD = self.embed(tokens_BxL, token_types, positions) if embedded is None else embedded
        segments_BxL = jnp.ones((1, x_BxLxD.shape[1]), jnp.int32) if segment_ids is None else segment_ids
        x_BxLxD = jnp.where(segments_BxL[..., None] > 0, self.embed_norm(x_BxLxD), 0)
        x_BxLxD = constrain(self.embed_dropout(x_BxLxD), "act_embed")

        relative_RxD = None
        if c.relative:
            relative_RxD = self.relative_table.astype(dtype)
            relative_RxD = relative_RxD if self.relative_norm is None else self.relative_norm(relative_RxD)
        shared = Shared(Mask(segment_ids, segment_ids), positional=relative_RxD)
        output = Output(x_BxLxD)
        if self.convolution is not None:
            output = self.first(x_BxLxD, shared, layers=layers)
            output = output.with_hidden(self.convolution(x_BxLxD, output.hidden, segments_BxL))
        output = output.concat(self.encoder(output.hidden, shared, layers=layers))
        if self.last is None:
            return output
        shared = shared.replace(memory_BxSxD=output.hidden)
        at_BxLxD = self.position_embed(tokens_BxL.shape[1], positions)
        output = output.concat(self.last(output.hidden + at_BxLxD, shared, layers=layers))
        return output.concat(self.last(output.hidden, shared, layers=layers))
