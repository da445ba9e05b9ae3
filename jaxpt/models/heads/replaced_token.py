"""ELECTRA's head: one logit per token, of the probability that the token was replaced.

    score = f(x · W + b) · w + c                     ELECTRA
    score = f(LN(x + x₀) · W + b) · w + c            DeBERTa-v3: each token also uses the state of its text's first

Papers: https://arxiv.org/abs/2003.10555 https://arxiv.org/abs/2111.09543
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.models.base import compute_dtype
from jaxpt.models.heads import INIT
from jaxpt.models.layers import ACTIVATIONS, Activation, Dense, LayerNorm
from jaxpt.models.network import Head


class ReplacedTokenHead(nn.Module):
    """The hidden layer and the logit."""

    activation: Activation
    dtype: DTypeLike
    epsilon: float | None = None
    """ε of the norm; None: no norm and no first token's state."""

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, first_BxL: jax.Array | None = None) -> jax.Array:
        """The logits.

        Args:
          x_BxLxD: hidden states.
          first_BxL: index of the first token of each token's text, in packed rows; 0 by default.

        Returns:
          float32 [B, L].
        """
        if self.epsilon is not None:
            first_BxLxD = x_BxLxD[:, :1]
            if first_BxL is not None:  # as an exact product: a gather's gradient adds all tokens of a text serially
                is_first_BxLxL = jax.nn.one_hot(first_BxL, x_BxLxD.shape[1], dtype=x_BxLxD.dtype)
                first_BxLxD = jnp.einsum("blf,bfd->bld", is_first_BxLxL, x_BxLxD, precision="highest")
            x_BxLxD = LayerNorm(self.epsilon, self.dtype, name="norm")(x_BxLxD + first_BxLxD)
        x_BxLxD = Dense(x_BxLxD.shape[-1], ("embed", "norm"), INIT, self.dtype, name="dense")(x_BxLxD)
        x_BxLxD = ACTIVATIONS[self.activation](x_BxLxD)
        return Dense(1, ("embed", "classes"), INIT, jnp.float32, name="score")(x_BxLxD)[..., 0]


def declare(model: ModelConfig, sees_first: bool = False) -> dict[str, Head]:
    """The replaced-token head of a backbone.

    Args:
      model: configuration of the backbone.
      sees_first: also use the first token's hidden state.

    Returns:
      {"replaced_token": head}.
    """
    epsilon = model.epsilon if sees_first else None
    return {"replaced_token": Head(ReplacedTokenHead(model.activation, compute_dtype(model), epsilon))}
