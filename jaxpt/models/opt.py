"""OPT: a GPT-2 with ReLU and a position table that starts at row 2. Paper: https://arxiv.org/abs/2205.01068

OPT-350M (post-norm, narrow embeddings) is not supported. Parameters are initialised as in GPT-2.
"""

from __future__ import annotations

import functools
from typing import Literal

from jaxpt.config import Size
from jaxpt.models.base import compute_dtype
from jaxpt.models.gpt2 import GPT2, INIT, POSITION_INIT, Block, GPT2Config
from jaxpt.models.layers import Activation, Dropout, Embed, LayerNorm
from jaxpt.models.lm import UntiedHead
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Stack

OFFSET = 2  # row of position 0 in the position table


class OPTConfig(GPT2Config):
    """Configuration of OPT."""

    kind: Literal["opt"] = "opt"
    max_positions: Size = 2048
    activation: Activation = "relu"

    def build(self) -> OPT:
        """Builds the model."""
        return OPT(self)


class OPT(GPT2):
    """OPT."""

    config: OPTConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype, c.tie_embeddings)
        self.position_embed = LearnedPositions(c.max_positions + OFFSET, c.embed_dim, POSITION_INIT, dtype, OFFSET)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack((Segment((functools.partial(Block, c),), c.layers),), c.remat, c.unroll)
        self.final_norm = LayerNorm(c.epsilon, dtype)
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, INIT, dtype)
