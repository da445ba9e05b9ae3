"""BERT's masked-LM head: LN(f(x · W + b)) · Eᵀ + c, with the token embeddings E; W maps to their width.

EuroBERT's is x · U + c, with a projection U of its own.
Papers: https://arxiv.org/abs/1810.04805 https://arxiv.org/abs/2503.05500
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
from jaxpt.models.output import Projection


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
    has_transform: bool = True
    """Use the layers before the projection."""
    is_tied: bool = True
    """Use E; else U."""

    def setup(self) -> None:
        if self.has_transform:
            self.dense = Dense(self.width, ("embed", "norm"), INIT, self.dtype, self.dense_bias)
            self.norm = LayerNorm(self.epsilon, self.dtype, self.norm_bias)
        rows = stored_rows(self.vocab_size)
        self.kernel = None if self.is_tied else param(self, "kernel", INIT, (self.width, rows), ("embed", "vocab"))
        self.bias = param(self, "bias", nn.initializers.zeros, (rows,), ("vocab",)) if self.use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Input of the projection: [..., D] → [..., width of the token embeddings]."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(x))) if self.has_transform else x

    def projection(self, embeddings: Projection) -> Projection:
        """The projection to the vocabulary.

        Args:
          embeddings: that of the token embeddings.
        """
        if self.kernel is not None:
            embeddings = Projection(self.kernel, vocab_size=self.vocab_size, dtype=self.dtype)
        return embeddings.replace(bias=self.bias)


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
