"""GPT (2018): a causal decoder of BERT's blocks, with post-norm and no final norm.

Paper: https://openai.com/research/language-unsupervised
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

from jaxpt.config import Size
from jaxpt.models import bert
from jaxpt.models.gpt2 import INIT, GPT2Config
from jaxpt.models.stack import Segment


class GPTConfig(GPT2Config):
    """Configuration of GPT."""

    position_std: ClassVar[float] = 0.02
    final_norm: ClassVar[bool] = False

    kind: Literal["gpt"] = "gpt"
    max_positions: Size = 512
    tie_embeddings: Literal[True] = True

    def segments(self) -> tuple[Segment, ...]:
        """The layers."""
        return (Segment((functools.partial(bert.Block, self, INIT),), self.layers),)
