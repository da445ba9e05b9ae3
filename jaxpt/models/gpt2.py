"""GPT-2: a causal decoder with pre-norm. Paper: https://openai.com/research/better-language-models

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ClassVar, Literal, Self

import flax.linen as nn
import jax
from pydantic import model_validator

from jaxpt.config import Fraction, Layers, ModelConfig, PositiveFloat, Size
from jaxpt.models import adapters
from jaxpt.models.attention import Attention, AttentionBlock
from jaxpt.models.base import UntiedHead, check_heads, compute_dtype
from jaxpt.models.cache import stored
from jaxpt.models.decoder import Decoder
from jaxpt.models.layers import Activation, Dropout, Embed, FeedForward, LayerNorm, constrain
from jaxpt.models.output import Output, Past
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Shared, Stack

INIT = nn.initializers.normal(0.02)


class GPT2Config(ModelConfig):
    """Configuration of GPT-2."""

    family: ClassVar[str] = "decoder"
    text_layout: ClassVar[str] = "decoder"
    first_position: ClassVar[int] = 0
    """Row of position 0 in the position table; the rows before it are unused."""
    position_std: ClassVar[float] = 0.01
    """Standard deviation of fresh position embeddings."""
    final_norm: ClassVar[bool] = True
    """True if there is a norm after the last layer."""
    drops_embeddings: ClassVar[bool] = True
    """True if there is dropout on embeddings."""

    kind: Literal["gpt2"] = "gpt2"
    layers: Layers
    embed_dim: Size
    """Width of the hidden states; a multiple of `heads`. `mlp_dim` is 4 · embed_dim by default."""
    heads: Size
    mlp_dim: Size | None = None
    max_positions: Size = 1024
    activation: Activation = "gelu_tanh"
    tie_embeddings: bool = True
    """Use the token embeddings as the output projection."""
    epsilon: PositiveFloat = 1e-5
    """ε of the norms."""
    dropout: Fraction = 0.0
    """Dropout rate on embeddings, attention weights and block outputs (GPT-2: 0.1); OPT has none on embeddings."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_heads(self.embed_dim, self.heads)
        return self

    def segments(self) -> tuple[Segment, ...]:
        """The layers."""
        return (Segment((functools.partial(Block, self),), self.layers),)

    def build(self) -> GPT2:
        """Builds the model."""
        return GPT2(self)


class Block(AttentionBlock):
    """Attention and feed-forward, each x ← x + f(norm(x))."""

    config: GPT2Config

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, (attention, feed_forward, norm) = self.config, self.parts()
        y = norm(name="attention_norm")(x_BxLxD)
        y, kv = attention(y, shared.mask, positional=shared.positional, past=past.of("attention"))
        x_BxLxD += adapters.after(c, "attention")(Dropout(c.dropout)(y))
        y = feed_forward(norm(name="feed_forward_norm")(x_BxLxD))
        x_BxLxD += adapters.after(c, "feed_forward")(Dropout(c.dropout)(y))
        return Output(constrain(x_BxLxD, "act_embed"), cache=stored(attention=kv))

    @nn.nowrap
    def parts(self) -> tuple[Attention, FeedForward, Callable[..., nn.Module]]:
        """Attention, feed-forward, and what makes a norm of a name."""
        c, dtype = self.config, compute_dtype(self.config)
        # Scaled by 2 · layers residual sums, so the variance of the output does not grow with depth.
        residual = nn.initializers.normal(0.02 / math.sqrt(2 * c.layers))
        attention = self.attention_class(
            c.heads, c.embed_dim // c.heads, dtype, INIT, residual, dropout=c.dropout,
            implementation=c.attention, name="attention",
        )  # fmt: skip
        mlp_dim = c.mlp_dim or 4 * c.embed_dim
        feed_forward = FeedForward(mlp_dim, c.activation, INIT, residual, dtype, name="feed_forward")
        return attention, feed_forward, functools.partial(LayerNorm, c.epsilon, dtype)


class GPT2(Decoder):
    """GPT-2."""

    config: GPT2Config

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        rows, init = c.first_position + c.max_positions, nn.initializers.normal(c.position_std)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype, c.tie_embeddings)
        self.position_embed = LearnedPositions(rows, c.embed_dim, init, dtype, c.first_position)
        self.embed_dropout = Dropout(c.dropout if c.drops_embeddings else 0.0)
        self.decoder = Stack(c.segments(), c.remat, c.unroll)
        self.final_norm = LayerNorm(c.epsilon, dtype) if c.final_norm else None
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, INIT, dtype)

    def embed(self, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """The sum of the embeddings."""
        x_BxLxD = self.token_embed(tokens_BxL) + self.position_embed(tokens_BxL.shape[1], positions)
        return constrain(self.embed_dropout(x_BxLxD), "act_embed")
