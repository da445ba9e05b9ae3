"""Prefix language modelling: attention is bidirectional in the prefix, and the rest is predicted token by token.

    text     a b c d e f                (prefix a b c)
    inputs   a b c d e                  bidirectional attention in a b c, causal in d e
    targets      . d e f                the prefix has no loss

The prefix's length is uniform on 1 … length - 1. For encoder-decoders use `denoising` with noise: prefix_lm.
Paper: https://arxiv.org/abs/1910.10683 (section 3.2.1)
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.objectives.base import Arrays, Features
from jaxpt.objectives.causal_lm import DecoderLM, DecoderLMBatches, DecoderLMJudge


class PrefixLM(DecoderLM):
    """Hyperparameters of prefix language modelling."""

    kind: Literal["prefix_lm"] = "prefix_lm"
    join_documents: bool = True
    """Cut windows from the concatenated documents; false: no window crosses a document boundary."""
    separator: bool = True
    """Append EOS to every document."""
    documents_per_group: PositiveInt | None = 128
    """With join_documents, concatenate so many documents at a time, so that the last window of each group is short;
    null: all documents."""

    @property
    def batches(self) -> PrefixLMBatches:
        return PrefixLMBatches(self)

    @property
    def judge(self) -> PrefixLMJudge:
        return PrefixLMJudge(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.separator and vocabulary.eos is None:
            raise UserError(
                "objective.separator: true requires a vocabulary with an end-of-text token; set "
                "objective.separator=false"
            )
        if length < 2:
            raise UserError(f"data.length: {length} is too short for prefix_lm, at least 2 is needed")


class PrefixLMBatches(DecoderLMBatches):
    """Windows of text, each with a prefix of random length."""

    h: PrefixLM

    def features(self, length: int) -> Features:
        return super().features(length) | {"decoder_prefix": ((length,), "int32")}

    def transforms(self, length: int, vocabulary: Vocabulary, seed: int) -> Transforms:
        separator = vocabulary.eos if self.h.separator else None
        cut = {"length": length + 1, "join": self.h.join_documents, "separator": separator, "shortest": 2}
        cut |= {"group": self.h.documents_per_group}
        return Transforms(
            offline=(Call(preprocessors.documents.tokenize), Call(preprocessors.windows.cut, cut)),
            online=(
                Call(preprocessors.denoising.mark_prefix),
                Call(preprocessors.features.decoder, {"length": length}),
            ),
        )

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {"decoder_input_tokens": lengths["tokens"] - 1}


class PrefixLMJudge(DecoderLMJudge):
    """Compares the targets after the prefix with a bigram model."""

    target_name: ClassVar[str] = "target tokens after the prefix"
