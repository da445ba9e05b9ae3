"""GPT (2018): a causal decoder with post-norm and no final norm.

Paper: https://openai.com/research/language-unsupervised

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

import functools
from typing import Literal

import flax.linen as nn
import jax

from jaxpt.config import Size
from jaxpt.models import adapters
from jaxpt.models.attention import Attention
from jaxpt.models.base import compute_dtype
from jaxpt.models.cache import stored
from jaxpt.models.gpt2 import GPT2, INIT, GPT2Config
from jaxpt.models.layers import Dropout, Embed, FeedForward, LayerNorm, constrain
from jaxpt.models.output import Output, Past
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Shared, Stack


class GPTConfig(GPT2Config):
    """Configuration of GPT."""

    kind: Literal["gpt"] = "gpt"
    max_positions: Size = 512
    tie_embeddings: Literal[True] = True

    def build(self) -> GPT:
        """Builds the model."""
        return GPT(self)


class Block(nn.Module):
    """Attention and feed-forward, each x ← LN(x + f(x))."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, dtype = self.config, compute_dtype(self.config)
        head_dim, mlp_dim = c.embed_dim // c.heads, c.mlp_dim or 4 * c.embed_dim
        attention = Attention(
            c.heads, head_dim, dtype, INIT, INIT, dropout=c.dropout,
            implementation=c.attention, name="attention",
        )  # fmt: skip
        feed_forward = FeedForward(mlp_dim, c.activation, INIT, INIT, dtype, name="feed_forward")

        y, kv = attention(x_BxLxD, shared.mask, past=past.of("attention"))
        y = adapters.after(c, "attention")(Dropout(c.dropout)(y))
        x_BxLxD = LayerNorm(c.epsilon, dtype, name="attention_norm")(x_BxLxD + y)
        y = adapters.after(c, "feed_forward")(Dropout(c.dropout)(feed_forward(x_BxLxD)))
        x_BxLxD = LayerNorm(c.epsilon, dtype, name="feed_forward_norm")(x_BxLxD + y)
        return Output(constrain(x_BxLxD, "act_embed"), cache=stored(attention=kv))


class GPT(GPT2):
    """GPT; the output projection is tied to the token embeddings."""

    config: GPTConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype)
        self.position_embed = LearnedPositions(c.max_positions, c.embed_dim, INIT, dtype)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack((Segment((functools.partial(Block, c),), c.layers),), c.remat, c.unroll)
        self.final_norm = None
