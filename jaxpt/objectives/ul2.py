"""UL2's mixture of denoisers: span corruption with short, long and many spans, and prefix LM.

    R  regular     [NLU] a b <X> e f g h i </s>   → <X> c d </s>                 spans of 3 or 8, 15 % of the text
    S  sequential  [S2S] a b c d e f <X> </s>     → <X> g h i </s>               the last 25 %
    X  extreme     [NLG] a <X> e f <Y> </s>       → <X> b c d <Y> g h i </s>     half of the text, or spans of 64

Each text is corrupted by one random denoiser. All windows have the same length, chosen so that the inputs of every
denoiser with its mode token fit into `data.length`. The seven denoisers have equal rates, as in the paper. S is one
span of a quarter of the text, as in its table (the code in its appendix uses T5's prefix LM: denoising with noise:
prefix_lm). The mode tokens are the last three sentinels: of a hundred, [NLU] is <extra_id_97>, [NLG] 98 and [S2S] 99;
the published models spell them as text. Paper: https://arxiv.org/abs/2205.05131
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import Frozen, ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.formats import Format, Mode
from jaxpt.objectives.seq2seq import TextDenoising
from jaxpt.objectives.span_corruption import lengths, noise_counts

_MODES = ("NLU", "NLG", "S2S")


def mode_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The ids of the mode tokens.

    Example:
      >>> mode_ids(Vocabulary(size=200, sentinels=100))
      {'NLU': 102, 'NLG': 101, 'S2S': 100}
    """
    first = vocabulary.sentinel_ids.start + len(_MODES) - 1
    return {mode: first - n for n, mode in enumerate(_MODES)}


class Denoiser(Frozen):
    """One denoiser of the mixture."""

    mode: Mode
    """Mode token at the start of the inputs."""
    density: Annotated[float, Field(gt=0, lt=1)]
    """Fraction of tokens that are noise."""
    mean_span: Annotated[float, Field(ge=1)] | None = None
    """Mean span length in tokens; None: one span at the end of the text."""
    share: Annotated[float, Field(gt=0)] = 1.0
    """Mixing rate, relative to the other denoisers."""

    @property
    def mean(self) -> float:
        """Mean span length; infinity means one span."""
        return math.inf if self.mean_span is None else self.mean_span


class UL2(TextDenoising):
    """Hyperparameters of the mixture; the defaults are the paper's seven denoisers."""

    kind: Literal["ul2"] = "ul2"
    denoisers: Annotated[tuple[Denoiser, ...], Field(min_length=1)] = (
        Denoiser(mode="NLU", density=0.15, mean_span=3.0),
        Denoiser(mode="NLU", density=0.15, mean_span=8.0),
        Denoiser(mode="S2S", density=0.25),
        Denoiser(mode="NLG", density=0.5, mean_span=3.0),
        Denoiser(mode="NLG", density=0.5, mean_span=8.0),
        Denoiser(mode="NLG", density=0.15, mean_span=64.0),
        Denoiser(mode="NLG", density=0.5, mean_span=64.0),
    )
    """The mixture."""

    def text_length(self, length: int) -> int:
        """Maximum text length that fits with every denoiser and its mode token."""
        return min(lengths(length - 1, d.density, d.mean)[0] for d in self.denoisers)

    def targets_length(self, length: int) -> int:
        """Maximum number of target tokens of any denoiser."""
        texts = range(1, self.text_length(length) + 1)
        return max(_sizes(n, d)[1] for d in self.denoisers for n in texts)

    def data_spec(self, length: int) -> DataSpec:
        def transforms(vocabulary: Vocabulary) -> Transforms:
            modes = mode_ids(vocabulary)
            denoisers = [[d.density, d.mean_span, modes[d.mode], d.share] for d in self.denoisers]
            mix = {"denoisers": denoisers, "first_sentinel": vocabulary.first_sentinel, "eos": vocabulary.eos}
            return Transforms(self.windows(self.text_length(length), vocabulary), (Call(preprocessors.ul2.mix, mix),))

        def max_packed_lengths(lengths: Arrays) -> dict[str, np.ndarray]:
            texts, record = np.unique(lengths["tokens"], return_inverse=True)
            sizes = np.array([[_sizes(int(n), d) for d in self.denoisers] for n in texts]).max(axis=1)[record]
            return {"encoder_input_tokens": sizes[:, 0], "decoder_input_tokens": sizes[:, 1]}

        return self.pair_spec(length, self.targets_length(length), transforms, max_packed_lengths)

    def text_format(
        self, model: ModelConfig, vocabulary: Vocabulary, *, mode: Mode | None = None, **options: Any
    ) -> Format:
        modes = mode_ids(vocabulary)
        before = () if mode is None else (modes[mode],)
        without_mode = super().text_format(model, vocabulary, **options)
        return dataclasses.replace(without_mode, before=before, modes=tuple(modes.values()))

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if vocabulary.eos is None or vocabulary.sentinels <= len(_MODES):
            requirement = "ul2 needs a vocabulary with EOS and sentinels, three of them for the modes"
            raise UserError(f"{requirement}; data.tokenizer.kind: sentencepiece has them")
        self.check_length(length, 8)
        texts = range(1, self.text_length(length) + 1)
        for denoiser in self.denoisers:
            spans = max(noise_counts(n, denoiser.density, denoiser.mean)[1] for n in texts)
            if spans > vocabulary.sentinels - len(_MODES):
                raise UserError(
                    f"data.length: {length} tokens with density {denoiser.density} and mean_span {denoiser.mean_span} "
                    f"need {spans} sentinels besides the 3 mode tokens, but the vocabulary has {vocabulary.sentinels}; "
                    "shorten data.length, raise mean_span in objective.denoisers or data.tokenizer.extra_ids"
                )


def _sizes(text: int, denoiser: Denoiser) -> tuple[int, int]:
    """Number of input tokens (with mode token and EOS) and target tokens (with EOS)."""
    noise, spans = noise_counts(text, denoiser.density, denoiser.mean)
    return text - noise + spans + 2, noise + spans + 1
