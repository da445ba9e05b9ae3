"""mBART: BART's noise on texts of many languages, each side of which ends with the token of its language.

    text     The cat sat on a mat. It slept.        (of the task with language: en_XX)
    inputs   It slept. The <M> mat. </s> en_XX      sentences permuted, 35 % of the words infilled
    decoder  en_XX The cat sat on a mat. It slept. </s>
    targets  The cat sat on a mat. It slept. </s> en_XX

Each task of `data.mixture` says its `language`, as the vocabulary's token is written: a SentencePiece vocabulary that
is trained here gets these tokens, one that is loaded has to hold them. Shares of the languages are the mixture's.
<M> is the vocabulary's mask, or its first sentinel where it has none. The paper also puts </s> between sentences, which
is not done here. In scripts without spaces each piece counts as a word, as under fairseq's `no_whole_word_mask_langs`,
whatever the language is said to be. Paper: https://arxiv.org/abs/2001.08210
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import SourceConfig
from jaxpt.data.calls import Call, Pipeline, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.objectives.bart import Bart, BartBatches, Share
from jaxpt.objectives.base import Arrays
from jaxpt.objectives.seq2seq import TextDenoisingJudge


class MBart(Bart):
    """Hyperparameters of mBART's noise; the defaults are the paper's."""

    kind: Literal["mbart"] = "mbart"
    mask_rate: Share = 0.35
    """Share of the words that are masked, those that overlapping spans share counted twice; 0: none."""
    poisson_lambda: Annotated[float, Field(ge=1, le=32)] = 3.5
    """Mean words of a span; one of no words is a mask inserted between two tokens."""

    @property
    def batches(self) -> MBartBatches:
        return MBartBatches(self)

    @property
    def judge(self) -> MBartJudge:
        return MBartJudge(self)


class MBartBatches(BartBatches):
    """BART's, with the token of the language at the end of each side."""

    def check_source(self, source: SourceConfig) -> None:
        super().check_source(source)
        if source.language is None:
            raise UserError(
                f"data.language is missing: objective.kind: {self.h.kind} wants it, such as language: de_DE"
            )

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        # The language's token takes the place of BOS: there is none.
        bart = super().pipeline(length, dataclasses.replace(vocabulary, bos=None), seed)
        noise, features = bart.online
        return Pipeline(
            offline=(*bart.offline, Call(preprocessors.documents.mark_language)),
            online=(noise, Call(preprocessors.mbart.add_language), features),
        )


class MBartJudge(TextDenoisingJudge):
    """BART's, without the tokens of the languages."""

    target_name: ClassVar[str] = "target tokens without EOS and language"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        is_language = np.isin(batch["decoder_target_tokens"], vocabulary.languages)
        return super().eval_mask(batch, vocabulary) * ~is_language
