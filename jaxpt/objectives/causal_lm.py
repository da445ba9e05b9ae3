"""Causal language modelling: every token is predicted from those before it.

    text     a b c d
    inputs   a b c
    targets  b c d

Documents are concatenated, each followed by EOS, and cut into windows that overlap by one token, so every token but
the first is a target exactly once. Paper (GPT-2): https://openai.com/research/better-language-models
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.output import Output
from jaxpt.objectives.base import Arrays, Batch, Batches, DecoderLoss, Features, Judge, Objective


def decoder_features(length: int) -> Features:
    """Shape and dtype of a decoder's features, as `Batches.features`."""
    names = ("decoder_input_tokens", "decoder_target_tokens", "decoder_segment_ids", "decoder_positions")
    return {**dict.fromkeys(names, ((length,), "int32")), "decoder_loss_weights": ((length,), "float32")}


class DecoderLM(Objective):
    """Base of objectives whose only loss is the next-token cross-entropy of a decoder."""

    family: ClassVar[str] = "decoder"

    @property
    def loss(self) -> DecoderLMLoss:
        return DecoderLMLoss(self)

    @property
    def judge(self) -> DecoderLMJudge:
        return DecoderLMJudge(self)


class DecoderLMBatches(Batches):
    """Inputs, and the next tokens as targets."""

    def features(self, length: int) -> Features:
        return decoder_features(length)


class DecoderLMLoss(DecoderLoss):
    """Next-token cross-entropy of a decoder."""

    def output(self, model: Bound, batch: Batch) -> Output:
        prefix = {"prefix": batch["decoder_prefix"] > 0} if "decoder_prefix" in batch else {}
        return model.decode(
            batch["decoder_input_tokens"],
            segment_ids=batch["decoder_segment_ids"],
            positions=batch["decoder_positions"],
            **prefix,
        )


class DecoderLMJudge(Judge):
    """Compares all targets with a bigram model."""

    baseline: ClassVar[str] = "bigram"
    target_name: ClassVar[str] = "all target tokens"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        return batch["decoder_loss_weights"]


class CausalLM(DecoderLM):
    """Hyperparameters of causal language modelling."""

    kind: Literal["causal_lm"] = "causal_lm"
    join_documents: bool = True
    """Cut windows from the concatenated documents; false: no window crosses a document boundary."""
    separator: bool = True
    """Append EOS to every document."""
    reset_at_documents: bool = False
    """Tokens do not attend to other documents in the window, and positions restart at 0 in each document. The EOS
    between two documents belongs to the second one, so every token is still a target."""

    @property
    def batches(self) -> CausalLMBatches:
        return CausalLMBatches(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.separator and vocabulary.eos is None:
            raise UserError(
                "objective.separator: true requires a vocabulary with an end-of-text token; set "
                "objective.separator=false"
            )
        if self.reset_at_documents and not self.separator:
            raise UserError(
                "objective.reset_at_documents: true requires EOS between documents; set objective.separator=true"
            )


class CausalLMBatches(DecoderLMBatches):
    """Windows of text."""

    h: CausalLM

    def transforms(self, length: int, vocabulary: Vocabulary, seed: int) -> Transforms:
        h = self.h
        separator = vocabulary.eos if h.separator else None
        cut = {"length": length + 1, "join": h.join_documents, "separator": separator, "overlap": 1, "shortest": 2}
        opening = {"opening": vocabulary.eos} if h.reset_at_documents else {}
        return Transforms(
            offline=(Call(preprocessors.documents.tokenize), Call(preprocessors.windows.cut, cut)),
            online=(Call(preprocessors.features.decoder, {"length": length, **opening}),),
        )

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {"decoder_input_tokens": lengths["tokens"] - 1}

    def text_tokens(self, records: int, tokens: int) -> int:
        return tokens - records  # windows overlap by one token
