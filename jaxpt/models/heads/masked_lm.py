"""BERT's masked-LM head: LN(f(x · W + b)) · Eᵀ + c, with the token embeddings E; W maps to their width.

Paper: https://arxiv.org/abs/1810.04805
Shapes: D width of the hidden states · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.models.base import compute_dtype
from jaxpt.models.heads import INIT
from jaxpt.models.layers import ACTIVATIONS, Activation, Dense, LayerNorm, param, stored_rows
from jaxpt.models.network import Head


class MaskedLMHead(nn.Module):
    """The layers before the projection, and the projection's bias."""

    vocab_size: int
    width: int
    """Width of the token embeddings."""
    dtype: DTypeLike
    activation: Activation = "gelu"
    epsilon: float = 1e-12
    """ε of the norm."""
    dense_bias: bool = True
    """Use b."""
    norm_bias: bool = True
    use_bias: bool = True
    """Use c."""

    def setup(self) -> None:
        self.dense = Dense(self.width, ("embed", "norm"), INIT, self.dtype, self.dense_bias)
        self.norm = LayerNorm(self.epsilon, self.dtype, self.norm_bias)
        rows = (stored_rows(self.vocab_size),)
        self.bias = param(self, "bias", nn.initializers.zeros, rows, ("vocab",)) if self.use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Input of Eᵀ: [..., D] → [..., width of the token embeddings]."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(x)))

    def projection_bias(self) -> jax.Array | None:
        """c: [Vp], or None."""
        return self.bias


def declare(model: ModelConfig) -> dict[str, Head]:
    """The masked-LM head of a backbone.

    Args:
      model: configuration of the backbone, with `masked_lm_options`.

    Returns:
      {"masked_lm": head}; {} for a backbone without one (XLNet).
    """
    options = model.masked_lm_options
    if options is None:
        return {}
    return {"masked_lm": Head(MaskedLMHead(model.vocab_size, dtype=compute_dtype(model), **options))}
