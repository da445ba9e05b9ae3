"""BART: the decoder restores a text from any combination of five noises.

    text                  a b c. d e.
    sentence permutation  d e. a b c.                permute_sentences: 1.0
    text infilling        d e. a <M>.                mask_rate: 0.3, mask_length: span, replace: span
    token masking         a <M> c. d e.              mask_length: subword, replace: span
    token deletion        a c. d e.                  mask_length: subword, replace: nothing
    document rotation     c. d e. a b                rotate: 1.0

Inputs and targets begin with BOS, if the vocabulary has it, and end with EOS; the decoder starts from EOS. <M> is the
vocabulary's mask token, or its first sentinel if it has no mask token.

The defaults are those of the paper's large model: infilling of 30 % of the words, spans of 3 words on average, all
sentences permuted. The released scripts have poisson_lambda: 3.5 and random_probability: 0.1.
Paper: https://arxiv.org/abs/1910.13461
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.formats import Format
from jaxpt.objectives.seq2seq import TextDenoising, mask_id

Share = Annotated[float, Field(ge=0, lt=1)]


class Bart(TextDenoising):
    """Hyperparameters of BART; the noises are applied in the order of the fields."""

    kind: Literal["bart"] = "bart"
    permute_sentences: Fraction = 1.0
    """Fraction of a text's sentences that are permuted."""
    mask_rate: Share = 0.3
    """Fraction of the words that are masked; words in overlapping spans count twice. 0 disables masking."""
    mask_length: Literal["span", "word", "subword"] = "span"
    """Mask spans whose length in words is Poisson distributed, single words, or single tokens."""
    poisson_lambda: Annotated[float, Field(ge=1, le=32)] = 3.0
    """Mean span length in words; a span of length 0 inserts a mask."""
    replace: Literal["span", "token", "nothing"] = "span"
    """Replace a span by one mask, by a mask per token, or by nothing (deletion; spans of length 0 insert masks there
    too, as in the released code)."""
    random_probability: Fraction = 0.0
    """Fraction of the masks that become a random token."""
    insert_rate: Share = 0.0
    """Number of inserted masks, as a fraction of the length."""
    rotate: Fraction = 0.0
    """Fraction of the texts that are rotated to begin at a random token."""

    def data_spec(self, length: int) -> DataSpec:
        def max_packed_lengths(lengths: Arrays) -> dict[str, np.ndarray]:
            tokens = lengths["tokens"]
            inserted = np.ceil((tokens + 2) * self.insert_rate).astype(np.int64)
            return {"encoder_input_tokens": tokens + 2 + inserted, "decoder_input_tokens": tokens + 2}

        advice = "raise objective.mask_rate, or set objective.mask_length=subword if words are not found"
        return self.pair_spec(length, length, functools.partial(self._transforms, length), max_packed_lengths, advice)

    def start_id(self, vocabulary: Vocabulary) -> int:
        return vocabulary.eos

    def text_format(self, model: ModelConfig, vocabulary: Vocabulary, **options: Any) -> Format:
        return dataclasses.replace(super().text_format(model, vocabulary, **options), blank="mask")

    @property
    def _masks(self) -> bool:
        """Inputs have masks."""
        inserts = self.mask_length == "span"  # for spans of length 0
        return self.insert_rate > 0 or (self.mask_rate > 0 and (self.replace != "nothing" or inserts))

    def _transforms(self, length: int, vocabulary: Vocabulary) -> Transforms:
        """From documents to windows, and their noise."""
        # If BOS and EOS are the same id (GPT-2), texts begin without BOS.
        bos = vocabulary.bos if vocabulary.bos != vocabulary.eos else None
        text = length - 2
        while text + math.ceil((text + 2) * self.insert_rate) > length - 2:
            text -= 1
        names = ("permute_sentences", "mask_rate", "mask_length", "poisson_lambda", "replace", "random_probability",
                 "insert_rate", "rotate")  # fmt: skip
        ids = {
            "mask": mask_id(vocabulary, self.kind) if self._masks else vocabulary.pad,
            "vocab_size": vocabulary.size,
            "bos": bos,
            "eos": vocabulary.eos,
        }
        noise = {name: getattr(self, name) for name in names} | ids
        version = vocabulary.word_version if self.mask_rate > 0 and self.mask_length != "subword" else 1
        return Transforms(self.windows(text, vocabulary), (Call(preprocessors.bart.noise, noise, version=version),))

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_tokens(vocabulary, "eos")
        self.check_length(length, 8)
        if not any((self.permute_sentences, self.mask_rate, self.insert_rate, self.rotate)):
            raise UserError(
                f"objective: {self.kind} has no noise, so the inputs equal the targets; set objective.mask_rate: 0.3"
            )
        if self._masks:
            mask_id(vocabulary, self.kind)
