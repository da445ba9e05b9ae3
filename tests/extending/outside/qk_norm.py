"""Llama whose queries and keys are normalised before they are rotated. Paper: https://arxiv.org/abs/2302.05442"""

import functools
from typing import Literal

from jaxpt.models import llama
from jaxpt.models.attention import Attention
from jaxpt.models.layers import RMSNorm
from jaxpt.models.stack import Segment


class QKNormAttention(Attention):
    """Attention with an RMSNorm over each head's queries and keys."""

    def normalize(self, name, x_BxLxHxK):
        return RMSNorm(1e-6, self.dtype, name=f"{name}_norm")(x_BxLxHxK)


class Block(llama.Block):
    """Llama's block with this attention."""

    attention_class = QKNormAttention


class QKNormConfig(llama.LlamaConfig):
    """Llama's configuration."""

    kind: Literal["tests.extending.outside.qk_norm"] = "tests.extending.outside.qk_norm"

    def segments(self):
        return (Segment((functools.partial(Block, self),), self.layers),)
