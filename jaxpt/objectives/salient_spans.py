"""Salient span masking: the decoder predicts the name or date that was removed from a sentence.

    inputs   nem: The mill burned down in _X_ . </s>
    targets  May 1912 </s>

There is one example for each span of each sentence. The finder defines the spans: the default finds dates, years and
capitalised names; a custom one may call a tagger. Papers: https://arxiv.org/abs/2002.08909, for T5
https://arxiv.org/abs/2002.08910
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.base import Baseline
from jaxpt.objectives.seq2seq import EncoderDecoder


class SalientSpans(EncoderDecoder):
    """Hyperparameters of salient span masking; the defaults are T5's."""

    kind: Literal["salient_spans"] = "salient_spans"
    finder: str = "salient_spans.dates_and_names"
    """Dotted path of a function from a sentence to its spans, [(start character, end character)]. Records are made
    again after an edit of its module or of a module in the same folder that it imports."""
    prefix: str = "nem: "
    """Text before each sentence."""
    blank: str = "_X_"
    """Text that replaces the span."""
    targets_length: PositiveInt = 32
    """Maximum number of tokens of a span, including EOS; longer spans are skipped."""

    def data_spec(self, length: int) -> DataSpec:
        sizes = {"inputs_length": length, "targets_length": self.targets_length}
        texts = {"finder": self.finder, "prefix": self.prefix, "blank": self.blank}

        def transforms(vocabulary: Vocabulary) -> Transforms:
            options = {**texts, **sizes, "eos": vocabulary.eos}
            return Transforms((Call(preprocessors.salient_spans.make, options, uses=(self.finder,)),), ())

        return self.pair_spec(length, self.targets_length, transforms)

    @property
    def baseline(self) -> Baseline:
        def eval_mask(batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
            return batch["decoder_loss_weights"] * (batch["decoder_target_tokens"] != vocabulary.eos)

        return Baseline("unigram", "target tokens without EOS", eval_mask)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_tokens(vocabulary, "eos")
        self.check_length(length, 16)
        if self.targets_length < 2:
            raise UserError("objective.targets_length: 1 is too short for a span and EOS, at least 2 is needed")
