"""SpanBERT's head: predicts a token of a span from the span's boundary states and the token's offset.

    h = LN(f(LN(f([x_{s−1}; x_{e+1}; p_i] · W₁ + b₁)) · W₂ + b₂)),   logits = h · Eᵀ + c

with the token embeddings E; W₂ maps to their width. Paper: https://arxiv.org/abs/1907.10529
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.models.base import compute_dtype
from jaxpt.models.heads import INIT
from jaxpt.models.layers import ACTIVATIONS, Activation, Dense, LayerNorm, SmallEmbed, param, stored_rows
from jaxpt.models.network import Head


class SpanBoundaryHead(nn.Module):
    """The layers before the projection, and the projection's bias."""

    rows: int
    """Number of offsets that have an embedding p."""
    position_dim: int
    vocab_size: int
    width: int
    """Width of the token embeddings."""
    dtype: DTypeLike
    activation: Activation = "gelu"
    epsilon: float = 1e-12

    def setup(self) -> None:
        self.position_embed = SmallEmbed(self.rows, self.position_dim, INIT, self.dtype)
        self.dense_1, self.dense_2 = (Dense(self.width, ("embed", "norm"), INIT, self.dtype) for _ in range(2))
        self.norm_1, self.norm_2 = (LayerNorm(self.epsilon, self.dtype) for _ in range(2))
        self.bias = param(self, "bias", nn.initializers.zeros, (stored_rows(self.vocab_size),), ("vocab",))

    def __call__(self, left: jax.Array, right: jax.Array, offsets: jax.Array) -> jax.Array:
        """Input of Eᵀ.

        Args:
          left: hidden states of the tokens before the spans, [..., D].
          right: hidden states of the tokens after the spans, [..., D].
          offsets: int [...], offset of a token in its span, from 0.

        Returns:
          h: [..., width of the token embeddings].
        """
        x = jnp.concatenate([left, right, self.position_embed(offsets)], axis=-1)
        for dense, norm in ((self.dense_1, self.norm_1), (self.dense_2, self.norm_2)):
            x = norm(ACTIVATIONS[self.activation](dense(x)))
        return x

    def projection_bias(self) -> jax.Array:
        """c: [rows of the vocabulary in storage]."""
        return self.bias


def declare(model: ModelConfig, rows: int, position_dim: int) -> dict[str, Head]:
    """The span-boundary head of a backbone.

    Args:
      model: configuration of the backbone; width, activation and epsilon are those of its masked-LM head.
      rows: number of offsets that have an embedding.
      position_dim: width of the offset embeddings.

    Returns:
      {"span_boundary": head}.
    """
    options = {name: model.masked_lm_options[name] for name in ("width", "activation", "epsilon")}
    hidden = jax.ShapeDtypeStruct((1, 1, model.embed_dim), jnp.float32)
    offsets = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    module = SpanBoundaryHead(rows, position_dim, model.vocab_size, dtype=compute_dtype(model), **options)
    return {"span_boundary": Head(module, (hidden, hidden, offsets))}
