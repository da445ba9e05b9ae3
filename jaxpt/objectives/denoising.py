"""The unsupervised objectives of T5's comparison: the decoder restores a corrupted text.

    text           a b c d e f                                      (b, c and e are noise tokens)
    replace_spans  a <X> d <Y> f            → <X> b c <Y> e <Z>     T5's i.i.d. denoising
    drop           a d f                    → b c e
    bert_style     a <M> <M> d x f          → a b c d e f           x is a random token
    mass_style     a <M> <M> d <M> f        → a b c d e f
    deshuffle      c f a d b e              → a b c d e f
    prefix_lm      a b                      → c d e f

Inputs and targets end with EOS. <M> is the vocabulary's mask token, or its first sentinel if it has no mask token, as
in T5. For spans with a mean length use `span_corruption`. Paper: https://arxiv.org/abs/1910.10683 (table 3)
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.objectives.base import Arrays, Features
from jaxpt.objectives.seq2seq import TextDenoising, TextDenoisingBatches, encoder_decoder_features, mask_id

_DEVIATIONS = 5  # standard deviations of headroom: exceeded by one text in a million


class Denoising(TextDenoising):
    """Hyperparameters of T5's other denoising objectives; the defaults are the paper's."""

    kind: Literal["denoising"] = "denoising"
    noise: Literal["replace_spans", "drop", "bert_style", "mass_style", "deshuffle", "prefix_lm"] = "replace_spans"
    """Kind of noise and targets; see the table in the module docstring."""
    density: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Probability that a token is noise; not used by deshuffle and prefix_lm."""
    random_probability: Fraction = 0.1
    """Fraction of bert_style's noise tokens that become a random token; the rest become masks."""

    @property
    def batches(self) -> DenoisingBatches:
        return DenoisingBatches(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if vocabulary.eos is None:
            raise UserError("denoising needs a vocabulary with EOS; data.tokenizer.kind: sentencepiece has it")
        if length < 4:
            raise UserError(f"data.length: {length} is too short for denoising, at least 4 is needed")
        if self.noise in ("bert_style", "mass_style"):
            mask_id(vocabulary, self.kind)
        if self.noise == "replace_spans":
            spans = self.most_spans(length)
            if spans > vocabulary.sentinels:
                raise UserError(
                    f"data.length: {length} tokens with density {self.density} need up to {spans} sentinels, the "
                    f"vocabulary has {vocabulary.sentinels}; shorten data.length, lower objective.density or raise "
                    "data.tokenizer.extra_ids"
                )

    def text_length(self, length: int) -> int:
        """Tokens of a window, so that inputs and targets fit with EOS."""
        return length if self.noise == "prefix_lm" else length - 1

    def targets_length(self, length: int) -> int:
        """Maximum number of target tokens."""
        return length if self.noise == "prefix_lm" else self.most_targets(self.text_length(length))

    def most_targets(self, text: int) -> int:
        """Maximum number of target tokens of a text, including EOS."""
        mean, deviation = text * self.density, math.sqrt(text * self.density * (1 - self.density))
        if self.noise == "drop":
            return min(text, math.ceil(mean + _DEVIATIONS * deviation)) + 1
        if self.noise == "replace_spans":
            most = mean * (2 - self.density) + _DEVIATIONS * 2 * deviation  # a sentinel for each span
            return min(text + 1, math.ceil(most)) + 2
        return text + 1

    def most_spans(self, length: int) -> int:
        """Maximum number of sentinels: adjacent noise tokens form one span, so they are at most half of the tokens."""
        begins = self.density * (1 - self.density)
        deviation = math.sqrt(max(length * begins * (1 - 3 * begins), 0.0))
        return min(math.ceil(length * begins + _DEVIATIONS * deviation), length // 2) + 1


class DenoisingBatches(TextDenoisingBatches):
    """Windows of text with noise."""

    h: Denoising
    copy_advice: ClassVar[str] = "raise objective.density, or data.length"

    def features(self, length: int) -> Features:
        return encoder_decoder_features(length, self.h.targets_length(length))

    def transforms(self, length: int, vocabulary: Vocabulary, seed: int) -> Transforms:
        shortest = 2 if self.h.noise == "prefix_lm" else 1
        sizes = {"inputs_length": length, "targets_length": self.h.targets_length(length), "start": vocabulary.pad}
        return Transforms(
            offline=self.windows(self.h.text_length(length), vocabulary, shortest),
            online=(self._noise(length, vocabulary), Call(preprocessors.features.encoder_decoder, sizes)),
        )

    def _noise(self, length: int, vocabulary: Vocabulary) -> Call:
        eos, density = {"eos": vocabulary.eos}, {"density": self.h.density}
        room = {"targets_length": self.h.targets_length(length)}
        if self.h.noise == "replace_spans":
            sentinels = {"first_sentinel": vocabulary.first_sentinel, "sentinels": vocabulary.sentinels}
            return Call(preprocessors.denoising.replace_spans, {**density, **sentinels, **room, **eos})
        if self.h.noise == "drop":
            return Call(preprocessors.denoising.drop, {**density, **room, **eos})
        if self.h.noise == "deshuffle":
            return Call(preprocessors.denoising.deshuffle, eos)
        if self.h.noise == "prefix_lm":
            return Call(preprocessors.denoising.split, eos)
        random = self.h.random_probability if self.h.noise == "bert_style" else 0.0
        masks = {"mask": mask_id(vocabulary, self.h.kind), "random_probability": random, "vocab_size": vocabulary.size}
        return Call(preprocessors.denoising.mask, {**density, **masks, **eos})

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        tokens = lengths["tokens"]
        if self.h.noise == "prefix_lm":
            return {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
        targets = np.array([self.h.most_targets(int(n)) for n in range(tokens.max(initial=0) + 1)])[tokens]
        return {"encoder_input_tokens": tokens + 1, "decoder_input_tokens": targets}
