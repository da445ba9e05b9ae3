"""A softmax over the vocabulary with a table of its own: logits = x · Wᵀ + b (ELMo)."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from jaxpt.models.layers import param, stored_rows
from jaxpt.models.output import Projection


class Softmax(nn.Module):
    """W [Vp, D], normal with deviation 1/√D at the start, and b [Vp]."""

    vocab_size: int
    width: int
    """D."""
    dtype: DTypeLike

    def setup(self) -> None:
        rows, init = stored_rows(self.vocab_size), nn.initializers.normal(self.width**-0.5)
        self.table = param(self, "table", init, (rows, self.width), ("vocab", "embed"))
        self.bias = param(self, "bias", nn.initializers.zeros, (rows,), ("vocab",))

    def projection(self) -> Projection:
        """x · Wᵀ + b."""
        return Projection(self.table, self.bias, vocab_size=self.vocab_size, tied=True, dtype=self.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits float32 [..., Vp] of states [..., D]."""
        return self.projection()(x)
