"""Prefix language modelling: attention is bidirectional in the prefix, and the rest is predicted token by token.

    text     a b c d e f                (prefix a b c)
    inputs   a b c d e                  bidirectional attention in a b c, causal in d e
    targets      . d e f                the prefix has no loss

The prefix's length is uniform on 1 … length - 1. For encoder-decoders use `denoising` with noise: prefix_lm.
Paper: https://arxiv.org/abs/1910.10683 (section 3.2.1)
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Literal

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec, text_windows
from jaxpt.errors import UserError
from jaxpt.objectives.base import Baseline
from jaxpt.objectives.causal_lm import DecoderLM, check_separator, decoder_features, lengths_of_texts


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

    def data_spec(self, length: int) -> DataSpec:
        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            separator = vocabulary.eos if self.separator else None
            cut = {"join": self.join_documents, "separator": separator, "shortest": 2}
            return Transforms(
                offline=text_windows(length + 1, **cut, group=self.documents_per_group),
                online=(
                    Call(preprocessors.denoising.mark_prefix),
                    Call(preprocessors.features.decoder, {"length": length}),
                ),
            )

        features = decoder_features(length) | {"decoder_prefix": ((length,), "int32")}
        return DataSpec(features, transforms, lengths_of_texts)

    @property
    def baseline(self) -> Baseline:
        return dataclasses.replace(super().baseline, target_name="target tokens after the prefix")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        check_separator(self.separator, False, vocabulary)
        self.check_length(length, 2)
        if "prefix" not in inspect.signature(type(model.build()).decode).parameters:
            raise UserError(
                f"model.kind: {model.kind} does not support objective.kind: {self.kind}: its decode has no argument "
                "prefix; set objective.kind: causal_lm"
            )
