"""OPT: a GPT-2 with ReLU, whose position table starts two rows later. Paper: https://arxiv.org/abs/2205.01068

Its 350M, with norms after each block and narrow embeddings, is not had. Parameters start as GPT-2's do.
"""

from __future__ import annotations

import functools
from typing import Literal

from jaxpt.config import PositiveInt
from jaxpt.models.base import compute_dtype
from jaxpt.models.gpt2 import GPT2, INIT, POSITION_INIT, Block, GPT2Config
from jaxpt.models.layers import Activation, Dropout, Embed, LayerNorm
from jaxpt.models.lm import UntiedHead
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Stack

OFFSET = 2  # rows of the position table before that of position 0


class OPTConfig(GPT2Config):
    """Sizes of an OPT."""

    kind: Literal["opt"] = "opt"
    max_positions: PositiveInt = 2048
    activation: Activation = "relu"

    def build(self) -> OPT:
        """The model of these sizes."""
        return OPT(self)


class OPT(GPT2):
    """OPT."""

    config: OPTConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype)
        self.position_embed = LearnedPositions(c.max_positions + OFFSET, c.embed_dim, POSITION_INIT, dtype, OFFSET)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack((Segment((functools.partial(Block, c),), c.layers),), c.remat, c.unroll)
        self.final_norm = LayerNorm(c.epsilon, dtype)
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, INIT, dtype)
