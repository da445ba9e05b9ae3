"""Scores of the vocabulary: by the token embeddings, or by a table apart.

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.models.layers import Initializer, param, stored_rows
from jaxpt.models.output import Projection


class LanguageModel(nn.Module):
    """Base of models that score the vocabulary: by x · Eᵀ with the token embeddings E, or x · W with a table apart.

    Its `setup` makes `token_embed`, and `head` where there is W. What a masked-LM head adds is not the model's:
    `jaxpt.models.base.Bound` has both.
    """

    config: ModelConfig

    def output_projection(self) -> Projection:
        """From hidden states to scores: what losses take, to make the scores of a few positions at a time."""
        if getattr(self, "head", None) is not None:
            return self.head.projection()
        embed = self.token_embed
        return Projection(embed.table, vocab_size=self.config.vocab_size, tied=True, dtype=embed.dtype)

    def logits(self, x: jax.Array, padded: bool = False) -> jax.Array:
        """Scores of the vocabulary.

        Args:
          x: hidden states [..., D], of all positions or a few.
          padded: keep the columns that exist in storage alone, as a large negative number.

        Returns:
          float32 [..., V], or [..., Vp] if `padded`.
        """
        return self.output_projection()(x, padded)


class UntiedHead(nn.Module):
    """x · W with its own W [D, Vp] (T5 1.1)."""

    vocab_size: int
    width: int
    """D."""
    kernel_init: Initializer
    dtype: DTypeLike

    def setup(self) -> None:
        shape = (self.width, stored_rows(self.vocab_size))
        self.kernel = param(self, "kernel", self.kernel_init, shape, ("embed", "vocab"))

    def projection(self) -> Projection:
        """x · W."""
        return Projection(self.kernel, vocab_size=self.vocab_size, dtype=self.dtype)
