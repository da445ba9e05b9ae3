"""Llama: a causal decoder with RMSNorm before each block, rotary positions, gated feed-forward and no biases.

Supports grouped-query attention and, with a window, Mistral. Papers: https://arxiv.org/abs/2302.13971, Llama 3
https://arxiv.org/abs/2407.21783, Mistral https://arxiv.org/abs/2310.06825

Shapes: B batch · L length · D embedding width · K head width · V vocabulary (Vp: its rows in storage)
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
from jaxpt.models import gpt2
from jaxpt.models.attention import Attention
from jaxpt.models.base import UntiedHead, check_heads, compute_dtype
from jaxpt.models.cache import Step
from jaxpt.models.decoder import Decoder
from jaxpt.models.layers import Activation, Embed, FeedForward, RMSNorm
from jaxpt.models.positions import Rope, positions_from
from jaxpt.models.stack import Segment, Shared, Stack

INIT = nn.initializers.normal(0.02)


class LlamaConfig(ModelConfig):
    """Configuration of Llama."""

    family: ClassVar[str] = "decoder"
    text_layout: ClassVar[str] = "decoder"

    kind: Literal["llama"] = "llama"
    layers: Layers
    embed_dim: Size
    heads: Size
    """Number of query heads."""
    kv_heads: Size | None = None
    """Number of key and value heads, a divisor of `heads`; default `heads`, 1 is multi-query attention."""
    head_dim: Size | None = None
    """Width of a head; embed_dim / heads by default."""
    mlp_dim: Size
    """Hidden width of the gated feed-forward blocks."""
    max_positions: Size = 2048
    """Maximum sequence length."""
    window: Size | None = None
    """Sliding window: each token attends to itself and window − 1 earlier tokens; None: to all earlier tokens."""
    rope_theta: PositiveFloat = 10_000.0
    """θ: pair i of a head's coordinates is rotated by θ^(−2i/K) per position."""
    rope_scaling: Literal["none", "linear", "llama3"] = "none"
    """`linear` divides all frequencies by `rope_factor`, `llama3` only low frequencies."""
    rope_factor: PositiveFloat = 1.0
    rope_low_frequency: PositiveFloat = 1.0
    """llama3: pairs with fewer rotations over `rope_original_positions` are scaled by the full factor."""
    rope_high_frequency: PositiveFloat = 4.0
    """llama3: pairs with more rotations are not scaled."""
    rope_original_positions: Size = 8192
    activation: Activation = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_embeddings: bool = False
    """Use the token embeddings as the output projection."""
    epsilon: PositiveFloat = 1e-5
    """ε of the norms."""
    dropout: Fraction = 0.0
    """Dropout rate on attention weights and block outputs."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.head_dim is None:
            check_heads(self.embed_dim, self.heads, hint="; set head_dim")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads: {self.kv_heads} does not divide heads {self.heads}")
        if self.width % 2:
            raise ValueError(f"head_dim: {self.width} is odd, but rotary positions need an even width")
        return self

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.embed_dim // self.heads

    @property
    def rope(self) -> Rope:
        """The rotary positions."""
        return Rope(
            self.rope_theta, self.rope_scaling, self.rope_factor, self.rope_low_frequency, self.rope_high_frequency,
            self.rope_original_positions,
        )  # fmt: skip

    def segments(self) -> tuple[Segment, ...]:
        """The layers. A subclass may take another block."""
        return (Segment((functools.partial(Block, self),), self.layers),)

    def build(self) -> Llama:
        """Builds the model."""
        return Llama(self)


class Block(gpt2.Block):
    """GPT-2's, with RMSNorm, rotary positions, fewer key heads and a gated feed-forward."""

    config: LlamaConfig

    @nn.nowrap
    def parts(self) -> tuple[Attention, FeedForward, Callable[..., nn.Module]]:
        c, dtype = self.config, compute_dtype(self.config)
        residual = nn.initializers.normal(0.02 / math.sqrt(2 * c.layers))
        attention = self.attention_class(
            c.heads, c.width, dtype, INIT, residual, use_bias=c.attention_bias, dropout=c.dropout,
            kv_heads=c.kv_heads, implementation=c.attention, name="attention",
        )  # fmt: skip
        feed_forward = FeedForward(
            c.mlp_dim, c.activation, INIT, residual, dtype, gated=True, use_bias=c.mlp_bias, name="feed_forward"
        )
        return attention, feed_forward, functools.partial(RMSNorm, c.epsilon, dtype)


class Llama(Decoder):
    """Llama and Mistral."""

    config: LlamaConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype, c.tie_embeddings)
        self.decoder = Stack(c.segments(), c.remat, c.unroll)
        self.final_norm = RMSNorm(c.epsilon, dtype)
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, INIT, dtype)

    def shared(self, step: Step, prefix: jax.Array | None) -> Shared:
        """The mask, with the window, and the rotary positions."""
        c, positions = self.config, step.positions
        positions = positions_from(step.length) if positions is None else positions
        return Shared(step.mask(prefix, c.window), positional=c.rope.rotation(positions, c.width))
