"""BERT's pooler: one vector per sequence, from the first token's hidden state. Paper: https://arxiv.org/abs/1810.04805

Shapes: B batch · L length · D width of the hidden states
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.heads import INIT
from jaxpt.models.base import compute_dtype
from jaxpt.models.layers import Dense
from jaxpt.models.network import Head


class Pooler(nn.Module):
    """tanh(x₀ · W + b)."""

    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        """[B, L, D] → [B, D]."""
        width = x_BxLxD.shape[-1]
        return jnp.tanh(Dense(width, ("embed", "norm"), INIT, self.dtype, name="dense")(x_BxLxD[:, 0]))


def declare(model: ModelConfig) -> dict[str, Head]:
    """{"pooler": head} for a backbone."""
    return {"pooler": Head(Pooler(compute_dtype(model)))}
