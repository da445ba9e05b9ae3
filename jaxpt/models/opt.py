"""OPT: a GPT-2 with ReLU, positions from row 2 and no dropout on embeddings. Paper: https://arxiv.org/abs/2205.01068

OPT-350M (post-norm, narrow embeddings) is not supported. Parameters are initialised as in GPT-2.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxpt.config import Size
from jaxpt.models.gpt2 import GPT2Config
from jaxpt.models.layers import Activation


class OPTConfig(GPT2Config):
    """Configuration of OPT."""

    first_position: ClassVar[int] = 2
    drops_embeddings: ClassVar[bool] = False

    kind: Literal["opt"] = "opt"
    max_positions: Size = 2048
    activation: Activation = "relu"
