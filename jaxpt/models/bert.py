"""BERT: a bidirectional encoder with post-norm. Paper: https://arxiv.org/abs/1810.04805

RoBERTa, DistilBERT, ALBERT and ELECTRA are BERTs with other embeddings, shared layers or other heads: their files
override what `BertConfig` says of them.

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from pydantic import model_validator

from jaxpt.config import Fraction, Layers, ModelConfig, NonNegativeInt, PositiveFloat, Size
from jaxpt.models import adapters
from jaxpt.models.attention import AttentionBlock
from jaxpt.models.base import Encoder, check_heads, compute_dtype
from jaxpt.models.cache import stored
from jaxpt.models.layers import Activation, Dense, Dropout, Embed, FeedForward, LayerNorm, SmallEmbed, constrain
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output, Past
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Shared, Stack

INIT = nn.initializers.truncated_normal(0.02)


class BertConfig(ModelConfig):
    """Configuration of BERT."""

    family: ClassVar[str] = "encoder"
    text_layout: ClassVar[str] = "bert"
    project_embeddings: ClassVar[bool] = False
    """True if a projection maps the embeddings to the hidden width."""

    kind: Literal["bert"] = "bert"
    layers: Layers
    embed_dim: Size
    """Width of the hidden states; a multiple of `heads`."""
    heads: Size
    mlp_dim: Size
    """Hidden width of the feed-forward blocks."""
    max_positions: Size = 512
    token_types: NonNegativeInt = 2
    """Number of token types; 0: no token-type embedding."""
    activation: Activation = "gelu"
    epsilon: PositiveFloat = 1e-12
    """ε of the norms."""
    dropout: Fraction = 0.0
    """Dropout rate on embeddings, attention weights and block outputs (BERT: 0.1)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_heads(self.embed_dim, self.heads)
        return self

    @property
    def position_offset(self) -> int:
        """Row of position 0 in the table."""
        return 0

    @property
    def position_limit(self) -> int | None:
        """Maximum sequence length."""
        return self.max_positions - self.position_offset

    @property
    def table_dim(self) -> int:
        """Width of the embeddings."""
        return self.embed_dim

    @property
    def masked_lm_options(self) -> dict[str, Any]:
        """Options of the masked-LM head."""
        return {"width": self.table_dim, "activation": self.activation, "epsilon": self.epsilon}

    def segments(self) -> tuple[Segment, ...]:
        """The layers."""
        return (Segment((functools.partial(Block, self),), self.layers),)

    def build(self) -> Bert:
        """Builds the model."""
        return Bert(self)


class Block(AttentionBlock):
    """Attention and feed-forward, each x ← LN(x + f(x)); keys and values come from `shared.memory_BxSxD` if given."""

    config: BertConfig
    init: nn.initializers.Initializer = INIT

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, dtype = self.config, compute_dtype(self.config)
        mlp_dim = c.mlp_dim or 4 * c.embed_dim  # GPT may leave it out
        y, kv = self.attention()(
            x_BxLxD, shared.mask, memory_BxSxD=shared.memory_BxSxD, positional=shared.positional,
            past=past.of("attention"),
        )  # fmt: skip
        y = adapters.after(c, "attention")(Dropout(c.dropout)(y))
        x_BxLxD = LayerNorm(c.epsilon, dtype, name="attention_norm")(x_BxLxD + y)
        y = FeedForward(mlp_dim, c.activation, self.init, self.init, dtype, name="feed_forward")(x_BxLxD)
        y = adapters.after(c, "feed_forward")(Dropout(c.dropout)(y))
        x_BxLxD = LayerNorm(c.epsilon, dtype, name="feed_forward_norm")(x_BxLxD + y)
        return Output(constrain(x_BxLxD, "act_embed"), cache=stored(attention=kv))

    @nn.nowrap
    def attention(self) -> nn.Module:
        """The attention, which is called as `Attention` is."""
        c = self.config
        return self.attention_class(
            c.heads, c.embed_dim // c.heads, compute_dtype(c), self.init, self.init, dropout=c.dropout,
            implementation=c.attention, name="attention",
        )  # fmt: skip


class Bert(Encoder):
    """The encoder."""

    config: BertConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.table_dim, INIT, dtype)
        self.position_embed = LearnedPositions(c.max_positions, c.table_dim, INIT, dtype, c.position_offset)
        self.type_embed = SmallEmbed(c.token_types, c.table_dim, INIT, dtype) if c.token_types else None
        self.embed_norm = LayerNorm(c.epsilon, dtype)
        self.embed_dropout = Dropout(c.dropout)
        self.embed_project = Dense(c.embed_dim, ("norm", "embed"), INIT, dtype) if c.project_embeddings else None
        self.encoder = Stack(c.segments(), c.remat, c.unroll)

    def embed(
        self, tokens_BxL: jax.Array, token_types: jax.Array | None = None, positions: jax.Array | None = None
    ) -> jax.Array:
        """The sum of the embeddings, before the norm: [B, L] → [B, L, table's width]."""
        x_BxLxD = self.token_embed(tokens_BxL) + self.position_embed(tokens_BxL.shape[1], positions)
        if self.type_embed is None:
            return x_BxLxD
        return x_BxLxD + self.type_embed(jnp.zeros_like(tokens_BxL) if token_types is None else token_types)

    def encode(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        ranks: jax.Array | None = None,
        embedded: jax.Array | None = None,
        layers: bool = False,
        at_BxT: jax.Array | None = None,
    ) -> Output:
        """As `Encoder.encode`, with more arguments.

        Args:
          tokens_BxL, token_types, segment_ids, positions, layers: as of `Encoder.encode`.
          ranks: int [B, L]: a token attends to tokens of equal or lower rank; by default to all.
          embedded: replaces the result of `embed`.
          at_BxT: positions whose hidden states are wanted, all by default: the last layer computes no others.

        Returns:
          Hidden states [B, L, D] in the compute dtype; [B, T, D] at given positions.
        """
        x_BxLxD = self.embed(tokens_BxL, token_types, positions) if embedded is None else embedded
        x_BxLxD = self.embed_dropout(self.embed_norm(x_BxLxD))
        if self.embed_project is not None:
            x_BxLxD = self.embed_project(x_BxLxD)
        x_BxLxD = constrain(x_BxLxD, "act_embed")
        shared = Shared(Mask.self_attention(segment_ids, ranks))
        return self.encoder(x_BxLxD, shared, layers=layers, at_BxT=at_BxT)
