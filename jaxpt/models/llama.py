"""Llama: the decoder of `jaxpt.models.decoder_only` as it is without options; with a window it is Mistral.

Papers: https://arxiv.org/abs/2302.13971, Llama 3 https://arxiv.org/abs/2407.21783, Mistral
https://arxiv.org/abs/2310.06825
"""

from __future__ import annotations

from typing import Literal

from jaxpt.models.decoder_only import Block as Block
from jaxpt.models.decoder_only import DecoderOnlyConfig


class LlamaConfig(DecoderOnlyConfig):
    """Configuration of Llama; it has all keys of `decoder_only`."""

    kind: Literal["llama"] = "llama"
