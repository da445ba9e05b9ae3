"""ULMFiT's classifier: two layers on the concatenation of a text's last, largest and mean hidden states.

    x = [h_T; max_t h_t; mean_t h_t]
    logits = W₂ · dropout(LN(relu(W₁ · dropout(LN(x))))) + b

Where the released code has batch norms, these are layer norms: statistics of a batch would make what is predicted of a
text depend on the others beside it, and running averages of them would be state beside the parameters.
Paper: https://arxiv.org/abs/1801.06146

Shapes: B rows · N texts of a row · L length · D width of the hidden states
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxpt.models.heads import INIT
from jaxpt.models.layers import Dense, Dropout, LayerNorm

_EPSILON = 1e-5


class ConcatPoolHead(nn.Module):
    """The two layers, in float32."""

    outputs: int
    hidden: int
    """Width of the layer between (50)."""
    dropout: float = 0.4
    """Dropout on x."""
    hidden_dropout: float = 0.1
    """Dropout on the layer between."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., 3 · D] → float32 [..., outputs]."""
        x = Dropout(self.dropout)(LayerNorm(_EPSILON, jnp.float32, name="norm")(x))
        x = nn.relu(Dense(self.hidden, ("embed", "norm"), INIT, jnp.float32, use_bias=False, name="hidden")(x))
        x = Dropout(self.hidden_dropout)(LayerNorm(_EPSILON, jnp.float32, name="hidden_norm")(x))
        return Dense(self.outputs, ("norm", "classes"), INIT, jnp.float32, name="dense")(x)


@jax.checkpoint  # [B, N, L, D] is not kept for the backward pass
def concat_pool(x_BxLxD: jax.Array, last_BxN: jax.Array, is_own_BxNxL: jax.Array) -> jax.Array:
    """The last, the largest and the mean state of each text.

    Args:
      x_BxLxD: hidden states.
      last_BxN: place of each text's last token.
      is_own_BxNxL: which tokens are pooled for it.

    Returns:
      [B, N, 3 · D].

    Example:
      >>> x = jnp.array([[[1.0], [4.0], [2.5], [9.0]]])
      >>> concat_pool(x, jnp.array([[2]]), jnp.array([[[True, True, True, False]]])).tolist()
      [[[2.5, 4.0, 2.5]]]
    """
    last_BxNxD = jnp.take_along_axis(x_BxLxD, last_BxN[..., None], axis=1)
    is_any_BxNx1 = is_own_BxNxL.any(-1, keepdims=True)
    largest_BxNxD = jnp.where(is_own_BxNxL[..., None], x_BxLxD[:, None], -jnp.inf).max(2)
    largest_BxNxD = jnp.where(is_any_BxNx1, largest_BxNxD, 0)
    counts_BxNx1 = jnp.maximum(is_own_BxNxL.sum(-1, keepdims=True), 1).astype(x_BxLxD.dtype)
    mean_BxNxD = jnp.einsum("bnl,bld->bnd", is_own_BxNxL.astype(x_BxLxD.dtype), x_BxLxD) / counts_BxNx1
    return jnp.concatenate([last_BxNxD, largest_BxNxD, mean_BxNxD], axis=-1)
