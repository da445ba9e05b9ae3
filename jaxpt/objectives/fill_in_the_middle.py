"""Fill-in-the-middle: causal language modelling of texts whose middle was moved to the end.

    text   a b c d e f                                  (middle c d)
    PSM    <PRE> a b <SUF> e f <MID> c d </s>
    SPM    <PRE> <SUF> e f <MID> a b c d </s>

Windows do not cross document boundaries. Each window is split into three at token boundaries. The paper also compares
splits at lines and characters; character splits, for infilling inside a word, are not supported. Every token but the
first has loss, as in the paper. <PRE>, <SUF> and <MID> are the vocabulary's first three sentinels. `data.packing` packs
several windows into a row. Paper: https://arxiv.org/abs/2207.14255
"""

from __future__ import annotations

from typing import Any, Literal

from jaxpt.config import Fraction, ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec, text_windows
from jaxpt.errors import UserError
from jaxpt.objectives.causal_lm import DecoderLM, decoder_features
from jaxpt.objectives.formats import Format

_MARKS = 4  # <PRE>, <SUF>, <MID> and EOS


def mark_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The ids of <PRE>, <SUF> and <MID>.

    Example:
      >>> mark_ids(Vocabulary(size=100, sentinels=10))
      {'prefix': 99, 'suffix': 98, 'middle': 97}
    """
    return {name: vocabulary.first_sentinel - n for n, name in enumerate(("prefix", "suffix", "middle"))}


class FillInTheMiddle(DecoderLM):
    """Hyperparameters of fill-in-the-middle."""

    kind: Literal["fill_in_the_middle"] = "fill_in_the_middle"
    rate: Fraction = 0.5
    """Fraction of the texts that are rearranged (the paper compares 0.5 and 0.9); the others are left to right."""
    spm_rate: Fraction = 0.5
    """Fraction of the rearranged texts in the order suffix, prefix, middle; the others: prefix, suffix, middle."""

    def data_spec(self, length: int) -> DataSpec:
        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            text, separator = length + 1 - _MARKS, vocabulary.eos
            marks = {**mark_ids(vocabulary), "eos": vocabulary.eos}
            rates = {"rate": self.rate, "spm_rate": self.spm_rate}
            return Transforms(
                offline=text_windows(text, join=False, separator=separator, overlap=1, shortest=2),
                online=(
                    Call(preprocessors.fill_in_the_middle.rearrange, {**rates, **marks}),
                    Call(preprocessors.features.decoder, {"length": length}),
                ),
            )

        return DataSpec(
            features=decoder_features(length),
            transforms=transforms,
            max_packed_lengths=lambda lengths: {"decoder_input_tokens": lengths["tokens"] + _MARKS - 1},
            overhead_tokens=1,  # windows overlap by one token
        )

    def text_format(self, model: ModelConfig, vocabulary: Vocabulary, **options: Any) -> Format:
        return Format(blank="middle")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if vocabulary.eos is None or vocabulary.sentinels < 3:
            raise UserError(
                "fill_in_the_middle needs a vocabulary with EOS and 3 sentinels for <PRE>, <SUF> and <MID>; this one "
                f"has {vocabulary.sentinels}; data.tokenizer.kind: sentencepiece has data.tokenizer.extra_ids of them"
            )
        self.check_length(length, 2 * _MARKS)
