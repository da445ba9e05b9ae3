"""BART and mBART: encoder-decoders with learned positions; post-norm or pre-norm.

Papers: https://arxiv.org/abs/1910.13461, mBART https://arxiv.org/abs/2001.08210

Shapes: B batch · S encoder length · T decoder length · D embedding width · V vocabulary (Vp: rows in storage)
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, Literal, Self

import flax.linen as nn
import jax
from pydantic import model_validator

from jaxpt.config import Fraction, Layers, ModelConfig, Size
from jaxpt.models import adapters
from jaxpt.models.attention import Attention
from jaxpt.models.base import check_heads, compute_dtype
from jaxpt.models.cache import stored
from jaxpt.models.decoder import EncoderDecoder
from jaxpt.models.layers import Activation, Dropout, Embed, FeedForward, LayerNorm, constrain
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output, Past
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Shared, Stack

EPSILON = 1e-5
INIT = nn.initializers.normal(0.02)
OFFSET = 2
"""Row of position 0; the rows before it are unused."""


class BartConfig(ModelConfig):
    """Configuration of BART."""

    family: ClassVar[str] = "encoder_decoder"
    text_layout: ClassVar[str] = "bart"

    kind: Literal["bart"] = "bart"
    layers: Layers
    """Layers of the encoder, and of the decoder unless `decoder_layers` is set."""
    decoder_layers: Layers | None = None
    embed_dim: Size
    heads: Size
    """Attention heads of the encoder; embed_dim must be a multiple."""
    decoder_heads: Size | None = None
    mlp_dim: Size
    """Hidden width of the encoder's feed-forward blocks."""
    decoder_mlp_dim: Size | None = None
    max_positions: Size = 1024
    pre_norm: bool = False
    """LayerNorm before each block and at the end of both stacks (mBART); false: after each residual sum (BART)."""
    scale_embeddings: bool = False
    """Multiply token embeddings by √D (mBART)."""
    activation: Activation = "gelu"
    dropout: Fraction = 0.0
    """Dropout rate on embeddings, attention weights and block outputs (BART: 0.1)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_heads(self.embed_dim, self.heads)
        check_heads(self.embed_dim, self.decoder_heads or self.heads, "decoder_heads")
        return self

    def build(self) -> Bart:
        """Builds the model."""
        return Bart(self)


class Block(nn.Module):
    """Self-attention, in the decoder cross-attention, and feed-forward."""

    config: BartConfig
    cross: bool

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, dtype = self.config, compute_dtype(self.config)
        heads = (c.decoder_heads if self.cross else None) or c.heads
        mlp_dim = (c.decoder_mlp_dim if self.cross else None) or c.mlp_dim
        attention = functools.partial(
            Attention, heads, c.embed_dim // heads, dtype, INIT, INIT, dropout=c.dropout, implementation=c.attention
        )

        key_values = {}

        def residual(name: str, x: jax.Array, f: Any) -> jax.Array:
            """x + f(LN(x)), or LN(x + f(x))."""
            norm = LayerNorm(EPSILON, dtype, name=f"{name}_norm")
            y = adapters.after(c, name)(Dropout(c.dropout)(f(norm(x) if c.pre_norm else x)))
            return x + y if c.pre_norm else norm(x + y)

        def attend(name: str, mask: Mask | None, memory_BxSxD: jax.Array | None = None) -> Any:
            def run(x: jax.Array) -> jax.Array:
                y, key_values[name] = attention(name=name)(x, mask, memory_BxSxD=memory_BxSxD, past=past.of(name))
                return y

            return run

        x_BxLxD = residual("attention", x_BxLxD, attend("attention", shared.mask))
        if self.cross:
            cross = attend("cross_attention", shared.memory_mask, shared.memory_BxSxD)
            x_BxLxD = residual("cross_attention", x_BxLxD, cross)
        feed_forward = FeedForward(mlp_dim, c.activation, INIT, INIT, dtype, name="feed_forward")
        x_BxLxD = residual("feed_forward", x_BxLxD, feed_forward)
        return Output(constrain(x_BxLxD, "act_embed"), cache=stored(**key_values))


class Bart(EncoderDecoder):
    """BART and mBART; the output projection is tied to the token embeddings."""

    config: BartConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        positions = functools.partial(LearnedPositions, c.max_positions + OFFSET, c.embed_dim, INIT, dtype, OFFSET)
        norm = functools.partial(LayerNorm, EPSILON, dtype)
        encoder = Segment((functools.partial(Block, c, cross=False),), c.layers)
        decoder = Segment((functools.partial(Block, c, cross=True),), c.decoder_layers or c.layers)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype)
        self.encoder_positions, self.decoder_positions = positions(), positions()
        self.encoder_embed_norm, self.decoder_embed_norm = norm(), norm()
        self.encoder, self.decoder = Stack((encoder,), c.remat, c.unroll), Stack((decoder,), c.remat, c.unroll)
        self.encoder_norm, self.decoder_norm = (norm(), norm()) if c.pre_norm else (None, None)
        self.encoder_drop, self.decoder_drop = Dropout(c.dropout), Dropout(c.dropout)

    def embed(self, stack: str, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """The sum of the embeddings, normalised."""
        scale = math.sqrt(self.config.embed_dim) if self.config.scale_embeddings else 1.0
        table, norm, drop = (getattr(self, f"{stack}_{name}") for name in ("positions", "embed_norm", "drop"))
        x_BxLxD = self.token_embed(tokens_BxL) * scale + table(tokens_BxL.shape[1], positions)
        return constrain(drop(norm(x_BxLxD)), "act_embed")

    def finish(self, stack: str, hidden_BxLxD: jax.Array) -> jax.Array:
        """The final norm of mBART."""
        norm = getattr(self, f"{stack}_norm")
        return hidden_BxLxD if norm is None else norm(hidden_BxLxD)
