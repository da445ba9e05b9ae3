"""Logits over the vocabulary, from tied token embeddings or an untied projection.

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
    """Base of models with vocabulary logits: x · Eᵀ with the token embeddings E, or x · W if untied.

    `setup` creates `token_embed`, and `head` if untied. A masked-LM head is not part of the model:
    `jaxpt.models.base.Bound` combines both.
    """

    config: ModelConfig

    def output_projection(self) -> Projection:
        """The projection from hidden states to logits; losses apply it to chunks of positions."""
        if getattr(self, "head", None) is not None:
            return self.head.projection()
        embed = self.token_embed
        return Projection(embed.table, vocab_size=self.config.vocab_size, tied=True, dtype=embed.dtype)

    def logits(self, x: jax.Array) -> jax.Array:
        """Logits of the model without a head: hidden states [..., D] → float32 [..., V]; see `Bound.logits`."""
        return self.output_projection()(x, padded=False)


class UntiedHead(nn.Module):
    """x · W with an untied W [D, Vp] (T5 1.1)."""

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
