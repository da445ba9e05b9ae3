"""BERT's sentence-pair head: next-sentence prediction (BERT) or sentence-order prediction (ALBERT).

    logits = pooled · W + b

from the pooler's output (`jaxpt.models.heads.pooler`), without dropout in between, as in BERT's pretraining code.
Paper: https://arxiv.org/abs/1810.04805

Shapes: B batch · L length · D width of the hidden states
"""

from __future__ import annotations

import jax

from jaxpt.config import ModelConfig
from jaxpt.models.base import Bound
from jaxpt.models.heads import pooler
from jaxpt.models.heads.classes import Classes
from jaxpt.models.network import Head


def declare(model: ModelConfig) -> dict[str, Head]:
    """The sentence-pair head of a backbone, and its pooler.

    Args:
      model: configuration of the backbone.

    Returns:
      {"pooler": head, "sentence_pair": head}.
    """
    return pooler.declare(model) | {"sentence_pair": Head(Classes(2))}


def logits(model: Bound, hidden_BxLxD: jax.Array) -> jax.Array:
    """Logits of the labels 0 (original) and 1 (random or swapped), of both heads: [B, L, D] → float32 [B, 2]."""
    return model.heads["sentence_pair"](model.heads["pooler"](hidden_BxLxD[:, 0]))
