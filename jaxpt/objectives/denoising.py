"""The unsupervised objectives that T5 was compared with; the decoder restores what noise has taken from a text.

    text           a b c d e f                                      (b, c and e are noise)
    replace_spans  a <X> d <Y> f            → <X> b c <Y> e <Z>     T5's i.i.d. denoising
    drop           a d f                    → b c e
    bert_style     a <M> <M> d x f          → a b c d e f           x is a random token
    mass_style     a <M> <M> d <M> f        → a b c d e f
    deshuffle      c f a d b e              → a b c d e f
    prefix_lm      a b                      → c d e f

EOS ends both sides. <M> is the vocabulary's mask, or its first sentinel where it has none, as in T5.
Spans of a mean length are `span_corruption`'s. Paper: https://arxiv.org/abs/1910.10683 (table 3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig
from jaxpt.errors import UserError
from jaxpt.objectives.base import Call, Pipeline, Vocabulary
from jaxpt.objectives.seq2seq import TextDenoising, encoder_decoder_features, mask_id

_DEVIATIONS = 5  # standard deviations that are planned for: more noise is in one text of a million


class Denoising(TextDenoising):
    """Hyperparameters of T5's objectives besides span corruption; the defaults are the paper's."""

    more_noise: ClassVar[str] = "raise objective.density, or data.length"

    kind: Literal["denoising"] = "denoising"
    noise: Literal["replace_spans", "drop", "bert_style", "mass_style", "deshuffle", "prefix_lm"] = "replace_spans"
    """What is taken from a text, and what the targets are; see the table at the head of the module."""
    density: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Probability that a token is noise; of no meaning for deshuffle and prefix_lm."""
    random_probability: Fraction = 0.1
    """Share of bert_style's noise that becomes a random token; the rest becomes masks."""

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if vocabulary.eos is None:
            raise UserError("denoising needs a vocabulary with EOS; data.tokenizer.kind: sentencepiece has it")
        if length < 4:
            raise UserError(f"data.length: {length} is too short for denoising, at least 4 is needed")
        if self.noise in ("bert_style", "mass_style"):
            mask_id(vocabulary, self.kind)
        if self.noise == "replace_spans":
            spans = self._spans(length)
            if spans > vocabulary.sentinels:
                raise UserError(
                    f"data.length: {length} tokens with density {self.density} need up to {spans} sentinels, the "
                    f"vocabulary has {vocabulary.sentinels}; shorten data.length, lower objective.density or raise "
                    "data.tokenizer.extra_ids"
                )

    def features(self, length: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return encoder_decoder_features(length, self._targets(length))

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        shortest = 2 if self.noise == "prefix_lm" else 1
        sizes = {"inputs_length": length, "targets_length": self._targets(length), "start": vocabulary.pad}
        return Pipeline(
            prepare=self.windows(self._text(length), vocabulary, shortest),
            present=(self._noise(length, vocabulary), Call("features.encoder_decoder", sizes)),
        )

    def _noise(self, length: int, vocabulary: Vocabulary) -> Call:
        eos, density = {"eos": vocabulary.eos}, {"density": self.density}
        room = {"targets_length": self._targets(length)}
        if self.noise == "replace_spans":
            sentinels = {"first_sentinel": vocabulary.size - 1, "sentinels": vocabulary.sentinels}
            return Call("denoising.replace_spans", {**density, **sentinels, **room, **eos})
        if self.noise == "drop":
            return Call("denoising.drop", {**density, **room, **eos})
        if self.noise == "deshuffle":
            return Call("denoising.deshuffle", eos)
        if self.noise == "prefix_lm":
            return Call("denoising.split", eos)
        random = self.random_probability if self.noise == "bert_style" else 0.0
        masks = {"mask": mask_id(vocabulary, self.kind), "random_probability": random, "vocab_size": vocabulary.size}
        return Call("denoising.mask", {**density, **masks, **eos})

    def max_packed_lengths(self, lengths: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tokens = lengths["tokens"]
        if self.noise == "prefix_lm":
            return {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
        targets = np.array([self._most_targets(int(n)) for n in range(tokens.max(initial=0) + 1)])[tokens]
        return {"encoder_input_tokens": tokens + 1, "decoder_input_tokens": targets}

    def _text(self, length: int) -> int:
        """Tokens of a window: each side has room for EOS."""
        return length if self.noise == "prefix_lm" else length - 1

    def _targets(self, length: int) -> int:
        return length if self.noise == "prefix_lm" else self._most_targets(self._text(length))

    def _most_targets(self, text: int) -> int:
        """Most tokens of the targets of a text, EOS included."""
        mean, deviation = text * self.density, math.sqrt(text * self.density * (1 - self.density))
        if self.noise == "drop":
            return min(text, math.ceil(mean + _DEVIATIONS * deviation)) + 1
        if self.noise == "replace_spans":
            most = mean * (2 - self.density) + _DEVIATIONS * 2 * deviation  # a sentinel for each span
            return min(text + 1, math.ceil(most)) + 2
        return text + 1

    def _spans(self, length: int) -> int:
        """Most sentinels: a span begins where noise follows a token that is kept; two never begin side by side."""
        begins = self.density * (1 - self.density)
        deviation = math.sqrt(max(length * begins * (1 - 3 * begins), 0.0))
        return min(math.ceil(length * begins + _DEVIATIONS * deviation), length // 2) + 1
