"""BERT's sentence-pair head: next-sentence prediction (BERT) or sentence-order prediction (ALBERT).

    logits = pooled · W + b

from the pooler's output (`jaxpt.models.heads.pooler`), without dropout in between, as in BERT's pretraining code.
Paper: https://arxiv.org/abs/1810.04805

Shapes: B batch · L length · D width of the hidden states
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxpt.config import ModelConfig
from jaxpt.models.base import Bound
from jaxpt.models.heads import INIT, pooler
from jaxpt.models.layers import Dense
from jaxpt.models.network import Head


class SentencePairHead(nn.Module):
    """x · W + b, in float32."""

    @nn.compact
    def __call__(self, x_BxD: jax.Array) -> jax.Array:
        """Logits of the labels 0 (original) and 1 (random or swapped): [B, D] → float32 [B, 2]."""
        return Dense(2, ("embed", "classes"), INIT, jnp.float32, name="dense")(x_BxD)


def declare(model: ModelConfig) -> dict[str, Head]:
    """The sentence-pair head of a backbone, and its pooler.

    Args:
      model: configuration of the backbone.

    Returns:
      {"pooler": head, "sentence_pair": head}.
    """
    pooled = jax.ShapeDtypeStruct((1, model.embed_dim), jnp.float32)
    return pooler.declare(model) | {"sentence_pair": Head(SentencePairHead(), (pooled,))}


def logits(model: Bound, hidden_BxLxD: jax.Array) -> jax.Array:
    """Applies both heads: [B, L, D] → float32 [B, 2]."""
    return model.heads["sentence_pair"](model.heads["pooler"](hidden_BxLxD[:, 0]))
