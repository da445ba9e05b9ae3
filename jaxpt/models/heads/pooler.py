"""A layer between the hidden states and the logits of a text or token: LN(f(dropout(x) · W + b)).

BERT's is tanh(x₀ · W + b) of the first token's state x₀, pretrained with the sentence-pair head. Those of other
architectures have another activation, or dropout, or a norm; `ModelConfig.task_head` says which.
Paper: https://arxiv.org/abs/1810.04805

Shapes: D width of the hidden states
"""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig, PoolerOptions
from jaxpt.models.base import compute_dtype
from jaxpt.models.heads import INIT
from jaxpt.models.layers import ACTIVATIONS, Dense, Dropout, LayerNorm
from jaxpt.models.network import Head

BERT = PoolerOptions()


class Pooler(nn.Module):
    """The layer, with or without dropout and norm."""

    dtype: DTypeLike
    options: PoolerOptions = BERT
    dropout: float = 0.0
    """Dropout rate on x."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] → [..., D]."""
        o = self.options
        dense = Dense(x.shape[-1], ("embed", "norm"), INIT, self.dtype, o.use_bias, name="dense")
        x = ACTIVATIONS[o.activation](dense(Dropout(self.dropout)(x)))
        return x if o.epsilon is None else LayerNorm(o.epsilon, self.dtype, o.norm_bias, name="norm")(x)


def declare(model: ModelConfig, options: PoolerOptions | None = BERT, dropout: float = 0.0) -> dict[str, Head]:
    """The pooler of a backbone.

    Args:
      model: configuration of the backbone.
      options: what the layer has; by default as BERT's.
      dropout: rate, where the options have dropout.

    Returns:
      {"pooler": head}; {} without options.
    """
    if options is None:
        return {}
    return {"pooler": Head(Pooler(compute_dtype(model), options, dropout if options.drops_out else 0.0))}
