"""MASS: the decoder says the fragment of a text that is masked in the encoder.

    text             a b c d e f g h
    encoder          a b <M> <M> <M> <M> g h
    decoder reads        b c d e              at the positions 2, 3, 4, 5
    targets              c d e f

The decoder sees no token that the encoder sees but the one before the fragment. 80 % of the fragment's tokens become
<M> (the vocabulary's mask, or its first sentinel where it has none), 10 % a random token, 10 % stay, as in the released
code. There is no EOS. Paper: https://arxiv.org/abs/1905.02450
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig
from jaxpt.data.calls import Call, Pipeline, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.objectives.base import Arrays, Features
from jaxpt.objectives.seq2seq import TextDenoising, TextDenoisingBatches, encoder_decoder_features, mask_id


class Mass(TextDenoising):
    """Hyperparameters of MASS; the defaults are the paper's."""

    kind: Literal["mass"] = "mass"
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """How much of a text is its fragment; 1 is a language model behind an encoder that sees nothing."""
    start_probability: Fraction = 0.2
    """Share of the fragments that begin the text."""
    end_probability: Fraction = 0.2
    """Share of those that end it; the others begin anywhere."""
    mask_probability: Fraction = 0.8
    """Share of the fragment's tokens that become masks in the encoder."""
    random_probability: Fraction = 0.1
    """Share that become a random token; the rest stay."""

    @property
    def batches(self) -> MassBatches:
        return MassBatches(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        mask_id(vocabulary, self.kind)
        if length < 4:
            raise UserError(f"data.length: {length} is too short for mass, at least 4 is needed")
        for one, other in (("start_probability", "end_probability"), ("mask_probability", "random_probability")):
            if getattr(self, one) + getattr(self, other) > 1:
                raise UserError(f"objective.{one} + objective.{other} is more than 1")
        if not self.mask_probability and not self.random_probability:
            raise UserError(
                "objective.mask_probability + objective.random_probability is 0: the encoder would see the targets"
            )

    def fragment_length(self, length: int) -> int:
        """Tokens of the fragment of a text of `length`."""
        return max(round(self.share * length), 1)


class MassBatches(TextDenoisingBatches):
    """Windows of running text, a fragment of each masked."""

    h: Mass

    def features(self, length: int) -> Features:
        return encoder_decoder_features(length, self.h.fragment_length(length))

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        names = ("share", "start_probability", "end_probability", "mask_probability", "random_probability")
        start = vocabulary.pad if vocabulary.eos is None else vocabulary.eos
        ids = {"mask": mask_id(vocabulary, self.h.kind), "vocab_size": vocabulary.size, "start": start}
        sizes = {"inputs_length": length, "targets_length": self.h.fragment_length(length), "start": start}
        return Pipeline(
            offline=self.windows(length, vocabulary),
            online=(
                Call(preprocessors.mass.fragment, {name: getattr(self.h, name) for name in names} | ids),
                Call(preprocessors.features.encoder_decoder, sizes),
            ),
        )

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        tokens = lengths["tokens"]
        fragments = np.maximum(np.round(self.h.share * tokens).astype(np.int64), 1)
        return {"encoder_input_tokens": tokens, "decoder_input_tokens": fragments}
