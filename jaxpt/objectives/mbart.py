"""mBART: BART's noise on texts in many languages; inputs and targets end with the language's token.

    text     The cat sat on a mat. It slept.        (of the task with language: en_XX)
    inputs   It slept. The <M> mat. </s> en_XX      sentences permuted, 35 % of the words infilled
    decoder  en_XX The cat sat on a mat. It slept. </s>
    targets  The cat sat on a mat. It slept. </s> en_XX

Each task of `data.mixture` sets its `language`, spelled as the vocabulary's token. A SentencePiece vocabulary that
jaxpt trains gets these tokens; a loaded one must contain them. The mixture's rates set the fractions of the languages.
<M> is the vocabulary's mask token, or its first sentinel if it has no mask token. Unlike in the paper, there is no </s>
between sentences. In scripts without spaces each piece is a word, as with fairseq's `no_whole_word_mask_langs`. Paper:
https://arxiv.org/abs/2001.08210
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import ModelConfig, SourceConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays
from jaxpt.errors import UserError
from jaxpt.objectives.bart import Bart, Share
from jaxpt.objectives.base import Baseline
from jaxpt.objectives.formats import Format, Languages


class MBart(Bart):
    """Hyperparameters of mBART's noise; the defaults are the paper's."""

    kind: Literal["mbart"] = "mbart"
    mask_rate: Share = 0.35
    """Fraction of the words that are masked; words in overlapping spans count twice. 0 disables masking."""
    poisson_lambda: Annotated[float, Field(ge=1, le=32)] = 3.5
    """Mean span length in words; a span of length 0 inserts a mask."""
    eos: bool = True
    """Texts end with EOS and the language's token (paper, and the released models); false: they begin with BOS and end
    with the language's token alone (fairseq's multilingual_denoising.py)."""

    def check_source(self, source: SourceConfig) -> None:
        super().check_source(source)
        if source.language is None:
            raise UserError(
                f"data.language is missing: objective.kind: {self.kind} requires it, such as language: de_DE"
            )

    def _transforms(self, length: int, vocabulary: Vocabulary) -> Transforms:
        bart = super()._transforms(length, dataclasses.replace(vocabulary, bos=None) if self.eos else vocabulary)
        return Transforms(
            offline=(*bart.offline, Call(preprocessors.documents.mark_language)),
            online=(*bart.online, Call(preprocessors.mbart.add_language, {"keep_eos": self.eos})),
        )

    @property
    def baseline(self) -> Baseline:
        return dataclasses.replace(super().baseline, target_name="target tokens without EOS and language")

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        is_language = np.isin(batch["decoder_target_tokens"], vocabulary.languages)
        return super().eval_mask(batch, vocabulary) * ~is_language

    def text_format(
        self, model: ModelConfig, vocabulary: Vocabulary, *, languages: Languages | None = None, **options: Any
    ) -> Format:
        if languages is None or not {languages.source, languages.target} <= {*vocabulary.languages}:
            raise UserError(
                f"target_language: the vocabulary has {len(vocabulary.languages)} languages; name the one that the "
                "model writes, such as de_DE"
            )
        bart = super().text_format(model, vocabulary, **options)
        source, target = languages.source, languages.target
        if languages.source_first:
            return dataclasses.replace(bart, before=(source,), decoder_start=(vocabulary.eos, target))
        after = (*(bart.after if self.eos else ()), source)
        return dataclasses.replace(bart, after=after, decoder_start=(target, *bart.before))

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if not self.eos and vocabulary.bos is None:
            raise UserError("objective.eos: false requires a vocabulary with BOS; set objective.eos=true")
