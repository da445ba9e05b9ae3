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
from jaxpt.data.spec import Arrays, DataSpec, Features, text_windows
from jaxpt.errors import UserError
from jaxpt.objectives.base import Baseline, NextToken, batch_feature


def decoder_features(length: int) -> Features:
    """Shape and dtype of a decoder's features, as `DataSpec.features`."""
    names = ("decoder_input_tokens", "decoder_target_tokens", "decoder_segment_ids", "decoder_positions")
    return {**dict.fromkeys(names, ((length,), "int32")), "decoder_loss_weights": ((length,), "float32")}


def lengths_of_texts(lengths: Arrays) -> dict[str, np.ndarray]:
    """`DataSpec.max_packed_lengths` of texts of which the last token is only a target."""
    return {"decoder_input_tokens": lengths["tokens"] - 1}


def check_separator(separator: bool, reset_at_documents: bool, vocabulary: Vocabulary) -> None:
    """Raises UserError where documents are to be parted by a token that there is not."""
    if separator and vocabulary.eos is None:
        raise UserError(
            "objective.separator: true requires a vocabulary with an end-of-text token; set objective.separator=false"
        )
    if reset_at_documents and not separator:
        raise UserError(
            "objective.reset_at_documents: true requires EOS between documents; set objective.separator=true"
        )


class DecoderLM(NextToken):
    """Base of objectives whose only loss is the next-token cross-entropy of a decoder."""

    family: ClassVar[str] = "decoder"

    @property
    def baseline(self) -> Baseline:
        return Baseline("bigram", "all target tokens", batch_feature("decoder_loss_weights"))


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

    def data_spec(self, length: int) -> DataSpec:
        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            separator = vocabulary.eos if self.separator else None
            opening = {"opening": vocabulary.eos} if self.reset_at_documents else {}
            return Transforms(
                offline=text_windows(length + 1, join=self.join_documents, separator=separator, overlap=1, shortest=2),
                online=(Call(preprocessors.features.decoder, {"length": length, **opening}),),
            )

        return DataSpec(
            features=decoder_features(length),
            transforms=transforms,
            max_packed_lengths=lengths_of_texts,
            overhead_tokens=1,  # windows overlap by one token
        )

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        check_separator(self.separator, self.reset_at_documents, vocabulary)
