"""Prefix language modelling: the first part of a text is read in both directions, the rest predicted token by token.

    text     a b c d e f                (prefix a b c)
    inputs   a b c d e                  a, b and c see each other; d and e see what stands before them
    targets      . d e f                the prefix carries no loss

The prefix's length is uniform on 1 … length - 1. Of an encoder-decoder it is `denoising` with noise: prefix_lm.
Paper: https://arxiv.org/abs/1910.10683 (section 3.2.1)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError
from jaxpt.objectives.base import Call, Pipeline, Vocabulary
from jaxpt.objectives.causal_lm import DecoderLM

if TYPE_CHECKING:
    import numpy as np


class PrefixLM(DecoderLM):
    """Hyperparameters of prefix language modelling."""

    target_name: ClassVar[str] = "target tokens after the prefix"

    kind: Literal["prefix_lm"] = "prefix_lm"
    join_documents: bool = True
    """Cut windows from the documents laid end to end; false: no window crosses a document's end."""
    separator: bool = True
    """Put EOS after every document."""

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.separator and vocabulary.eos is None:
            raise UserError("prefix_lm with separator: true needs a vocabulary with an end-of-text token")
        if length < 2:
            raise UserError(f"data.length: {length} is too short for prefix_lm, at least 2 is needed")

    def features(self, length: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return super().features(length) | {"decoder_prefix": ((length,), "int32")}

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        separator = vocabulary.eos if self.separator else None
        cut = {"length": length + 1, "join": self.join_documents, "separator": separator, "shortest": 2}
        return Pipeline(
            prepare=(Call("documents.tokenize"), Call("windows.cut", cut)),
            present=(Call("denoising.mark_prefix"), Call("features.decoder", {"length": length})),
        )

    def max_packed_lengths(self, lengths: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"decoder_input_tokens": lengths["tokens"] - 1}
