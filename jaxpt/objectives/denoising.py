"""The unsupervised objectives of T5's comparison: the decoder restores a corrupted text.

    text           a b c d e f                                      (b, c and e are noise tokens)
    replace_spans  a <X> d <Y> f            → <X> b c <Y> e <Z>     T5's i.i.d. denoising
    drop           a d f                    → b c e
    bert_style     a <M> <M> d x f          → a b c d e f           x is a random token
    mass_style     a <M> <M> d <M> f        → a b c d e f
    deshuffle      c f a d b e              → a b c d e f
    prefix_lm      a b                      → c d e f

Inputs and targets end with EOS. <M> is the vocabulary's mask token, or its first sentinel if it has no mask token, as
in T5. For spans with a mean length use `span_corruption`.

As in the published code, deshuffle and prefix_lm read each document by itself. The other noises read groups of 128
documents, laid end to end. The published code takes one piece of a document of more than 65,536 tokens in each epoch;
jaxpt takes all of it. Paper: https://arxiv.org/abs/1910.10683 (table 3)
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from jaxpt.config import Fraction, ModelConfig, NonNegativeInt, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.seq2seq import TextDenoising, mask_id

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
    reserved_ids: NonNegativeInt = 3
    """So many first ids are never drawn as random tokens (T5: padding, EOS and the unknown piece)."""
    targets_length: PositiveInt | None = None
    """Maximum number of target tokens of replace_spans and drop; noise ends there. T5 has 192 and 104 at `data.length`
    512. One text in a million exceeds the default."""
    join_documents: bool = True
    """Cut windows from the concatenated documents. If false, the default of deshuffle and prefix_lm, no window crosses
    a document boundary."""
    documents_per_group: PositiveInt | None = 128
    """With join_documents, concatenate so many documents at a time; the last window of each group is short. null: all
    documents."""

    @model_validator(mode="before")
    @classmethod
    def _unjoined(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"join_documents": False, **values} if values.get("noise") in ("deshuffle", "prefix_lm") else values

    def most_targets(self, text: int) -> int:
        """Maximum number of target tokens of a text, including EOS."""
        if self.noise not in ("drop", "replace_spans"):
            return text if self.noise == "prefix_lm" else text + 1
        mean, deviation = text * self.density, math.sqrt(text * self.density * (1 - self.density))
        if self.noise == "drop":
            max_targets = min(text, math.ceil(mean + _DEVIATIONS * deviation)) + 1
        else:  # a sentinel for each span
            max_targets = min(text + 1, math.ceil(mean * (2 - self.density) + _DEVIATIONS * 2 * deviation)) + 2
        return min(max_targets, self.targets_length or max_targets)

    def most_spans(self, length: int) -> int:
        """Maximum number of sentinels: adjacent noise tokens form one span, so they are at most half of the tokens."""
        begins = self.density * (1 - self.density)
        deviation = math.sqrt(max(length * begins * (1 - 3 * begins), 0.0))
        return min(math.ceil(length * begins + _DEVIATIONS * deviation), length // 2) + 1

    def data_spec(self, length: int) -> DataSpec:
        def transforms(vocabulary: Vocabulary) -> Transforms:
            windows = self.windows(length - 1, vocabulary, shortest=2 if self.noise == "prefix_lm" else 1)
            return Transforms(windows, (self._noise(length, vocabulary),))

        advice = "raise objective.density, or data.length"
        return self.pair_spec(length, self.most_targets(length - 1), transforms, self._max_packed_lengths, advice)

    def _noise(self, length: int, vocabulary: Vocabulary) -> Call:
        eos, density = {"eos": vocabulary.eos}, {"density": self.density}
        room = {"targets_length": self.most_targets(length - 1)}
        if self.noise == "replace_spans":
            sentinels = {"first_sentinel": vocabulary.first_sentinel, "sentinels": vocabulary.sentinels}
            return Call(preprocessors.denoising.replace_spans, {**density, **sentinels, **room, **eos})
        if self.noise == "drop":
            return Call(preprocessors.denoising.drop, {**density, **room, **eos})
        if self.noise == "deshuffle":
            return Call(preprocessors.denoising.deshuffle, eos)
        if self.noise == "prefix_lm":
            return Call(preprocessors.denoising.split, eos)
        random = self.random_probability if self.noise == "bert_style" else 0.0
        masks = {"mask": mask_id(vocabulary, self.kind), "random_probability": random}
        ids = {"reserved_ids": self.reserved_ids, "vocab_size": vocabulary.size}
        return Call(preprocessors.denoising.mask, {**density, **masks, **ids, **eos})

    def _max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        tokens = lengths["tokens"]
        if self.noise == "prefix_lm":
            return {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
        targets = np.array([self.most_targets(int(n)) for n in range(tokens.max(initial=0) + 1)])[tokens]
        return {"encoder_input_tokens": tokens + 1, "decoder_input_tokens": targets}

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_tokens(vocabulary, "eos")
        self.check_length(length, 4)
        if self.targets_length is not None and self.targets_length < 4:
            raise UserError(f"objective.targets_length: {self.targets_length} is too short, at least 4 is needed")
        if self.noise in ("bert_style", "mass_style"):
            mask_id(vocabulary, self.kind)
            if self.reserved_ids >= vocabulary.size:
                raise UserError(
                    f"objective.reserved_ids: {self.reserved_ids} leaves no random token, the vocabulary has "
                    f"{vocabulary.size} ids; T5's is 3"
                )
        if self.noise == "replace_spans":
            spans = self.most_spans(length)
            if spans > vocabulary.sentinels:
                raise UserError(
                    f"data.length: {length} tokens with density {self.density} need up to {spans} sentinels, the "
                    f"vocabulary has {vocabulary.sentinels}; shorten data.length, lower objective.density or raise "
                    "data.tokenizer.extra_ids"
                )
