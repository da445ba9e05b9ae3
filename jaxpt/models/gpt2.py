"""GPT-2: a causal decoder with pre-norm. Paper: https://openai.com/research/better-language-models

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar, Literal, Self

import flax.linen as nn
import jax
from pydantic import model_validator

from jaxpt.config import Fraction, Layers, ModelConfig, PositiveFloat, Size
from jaxpt.models import adapters
from jaxpt.models.attention import Attention
from jaxpt.models.base import check_heads, compute_dtype
from jaxpt.models.cache import Cache, NewCache, Step, stored
from jaxpt.models.layers import Activation, Dropout, Embed, FeedForward, LayerNorm, constrain
from jaxpt.models.lm import LanguageModel, UntiedHead
from jaxpt.models.output import Output, Past
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Shared, Stack

INIT = nn.initializers.normal(0.02)
POSITION_INIT = nn.initializers.normal(0.01)


class GPT2Config(ModelConfig):
    """Configuration of GPT-2."""

    family: ClassVar[str] = "decoder"
    text_layout: ClassVar[str] = "decoder"

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
    """Dropout rate on embeddings, attention weights and block outputs (GPT-2: 0.1)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_heads(self.embed_dim, self.heads)
        return self

    @property
    def position_limit(self) -> int | None:
        """Maximum sequence length."""
        return self.max_positions

    def build(self) -> GPT2:
        """Builds the model."""
        return GPT2(self)


class Block(nn.Module):
    """Attention and feed-forward, each x ← x + f(LN(x))."""

    config: GPT2Config

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, dtype = self.config, compute_dtype(self.config)
        # Scaled by 2 · layers residual sums, so the variance of the output does not grow with depth.
        residual = nn.initializers.normal(0.02 / math.sqrt(2 * c.layers))
        head_dim, mlp_dim = c.embed_dim // c.heads, c.mlp_dim or 4 * c.embed_dim
        attention = Attention(
            c.heads, head_dim, dtype, INIT, residual, dropout=c.dropout,
            implementation=c.attention, name="attention",
        )  # fmt: skip
        feed_forward = FeedForward(mlp_dim, c.activation, INIT, residual, dtype, name="feed_forward")

        y = LayerNorm(c.epsilon, dtype, name="attention_norm")(x_BxLxD)
        y, kv = attention(y, shared.mask, past=past.of("attention"))
        x_BxLxD += adapters.after(c, "attention")(Dropout(c.dropout)(y))
        y = LayerNorm(c.epsilon, dtype, name="feed_forward_norm")(x_BxLxD)
        y = feed_forward(y)
        x_BxLxD += adapters.after(c, "feed_forward")(Dropout(c.dropout)(y))
        return Output(constrain(x_BxLxD, "act_embed"), cache=stored(attention=kv))


class GPT2(LanguageModel):
    """GPT-2."""

    config: GPT2Config

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype, c.tie_embeddings)
        self.position_embed = LearnedPositions(c.max_positions, c.embed_dim, POSITION_INIT, dtype)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack((Segment((functools.partial(Block, c),), c.layers),), c.remat, c.unroll)
        self.final_norm = LayerNorm(c.epsilon, dtype)
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, INIT, dtype)

    def decode(
        self,
        tokens_BxL: jax.Array,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        prefix: jax.Array | None = None,
        branches: jax.Array | None = None,
        layers: bool = False,
        cache: Cache | NewCache | None = None,
    ) -> Output:
        """Hidden states after the final norm; causal attention, bidirectional in the prefix.

        Args:
          tokens_BxL: token ids.
          segment_ids: [B, L], 0 on padding, packed sequences numbered from 1; one segment by default.
          positions: [B, L], 0 … L-1 by default.
          prefix: bool [B, L], True at tokens visible to their whole segment; none by default.
          branches: [B, L], branch of each token in its segment: tokens of branch 0 are visible to the whole segment,
            those of another branch only to itself (continuations of one context); not with a cache.
          layers: also return the hidden states of all layers.
          cache: of earlier tokens, or `NewCache`: then the output has the cache for the next call. Positions continue,
            the prompt may be padded on the left (segment 0).

        Returns:
          Hidden states [B, L, D] in the compute dtype.
        """
        step = Step(cache, tokens_BxL, segment_ids, positions, branches=branches)
        x_BxLxD = self.token_embed(tokens_BxL) + self.position_embed(tokens_BxL.shape[1], step.positions)
        x_BxLxD = constrain(self.embed_dropout(x_BxLxD), "act_embed")
        output = step.finish(self.decoder(x_BxLxD, Shared(step.mask(prefix)), step.past, layers=layers))
        return output if self.final_norm is None else output.with_hidden(self.final_norm(output.hidden))

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        """Next-token logits [B, L, V]: uses every parameter."""
        return self.logits(self.decode(tokens_BxL).hidden)
