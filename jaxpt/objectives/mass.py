"""MASS: the decoder predicts the fragment of a text that is masked in the encoder.

    text             a b c d e f g
    encoder          </s> a b <M> <M> <M> <M> g </s>
    decoder inputs          b c d e              at the positions 2, 3, 4, 5
    targets                 c d e f

Of the tokens outside the fragment, the decoder sees only the one before it. 80 % of the fragment's tokens become <M>
(the vocabulary's mask token, or its first sentinel if it has no mask token), 10 % a random token, and 10 % stay
unchanged, as in the released code. So are the two EOS, of which the last may be in the fragment (MASS-unsupNMT;
MASS-summarization has neither, and a fragment in every 64 tokens). Paper: https://arxiv.org/abs/1905.02450
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.formats import Format
from jaxpt.objectives.seq2seq import TextDenoising, mask_id


class Mass(TextDenoising):
    """Hyperparameters of MASS; the defaults are the paper's."""

    kind: Literal["mass"] = "mass"
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Length of the fragment as a fraction of the text; 1 is a language model whose encoder sees only masks."""
    start_probability: Fraction = 0.2
    """Fraction of the fragments at the beginning of the text."""
    end_probability: Fraction = 0.2
    """Fraction of the fragments at the end of the text; the others begin at a random token."""
    mask_probability: Fraction = 0.8
    """Fraction of the fragment's tokens that become masks in the encoder."""
    random_probability: Fraction = 0.1
    """Fraction that become a random token; the rest stay unchanged."""
    eos: bool = True
    """Texts begin and end with EOS; false: there is no EOS."""

    def fragment_length(self, length: int) -> int:
        """Number of tokens of the fragment of a text with `length` tokens."""
        return max(round(self.share * length), 1)

    def data_spec(self, length: int) -> DataSpec:
        names = ("share", "start_probability", "end_probability", "mask_probability", "random_probability")

        def transforms(vocabulary: Vocabulary) -> Transforms:
            ids = {"mask": mask_id(vocabulary, self.kind), "vocab_size": vocabulary.size}
            ids |= {"start": self.start_id(vocabulary), "eos": vocabulary.eos if self.eos else None}
            fragment = {name: getattr(self, name) for name in names} | ids
            windows = self.windows(length - 2 if self.eos else length, vocabulary)
            return Transforms(windows, (Call(preprocessors.mass.fragment, fragment),))

        def max_packed_lengths(lengths: Arrays) -> dict[str, np.ndarray]:
            tokens = lengths["tokens"] + (2 if self.eos else 0)
            fragments = np.maximum(np.round(self.share * tokens).astype(np.int64), 1)
            return {"encoder_input_tokens": tokens, "decoder_input_tokens": fragments}

        return self.pair_spec(length, self.fragment_length(length), transforms, max_packed_lengths)

    def start_id(self, vocabulary: Vocabulary) -> int:
        return vocabulary.pad if vocabulary.eos is None else vocabulary.eos

    def text_format(self, model: ModelConfig, vocabulary: Vocabulary, **options: Any) -> Format:
        with_end = super().text_format(model, vocabulary, **options)
        return dataclasses.replace(with_end, before=with_end.after)  # EOS at both ends

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        mask_id(vocabulary, self.kind)
        if self.eos and vocabulary.eos is None:
            raise UserError("objective.eos: true requires a vocabulary with EOS; set objective.eos=false")
        self.check_length(length, 4)
        for key, other in (("start_probability", "end_probability"), ("mask_probability", "random_probability")):
            if getattr(self, key) + getattr(self, other) > 1:
                raise UserError(f"objective.{key} + objective.{other} is more than 1")
        if not self.mask_probability and not self.random_probability:
            raise UserError(
                "objective.mask_probability + objective.random_probability is 0: the encoder would see the targets"
            )
