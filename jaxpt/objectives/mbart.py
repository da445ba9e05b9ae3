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
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from jaxpt.config import SourceConfig
from jaxpt.errors import UserError
from jaxpt.objectives.bart import Bart, Share
from jaxpt.objectives.base import Call, Pipeline, Vocabulary

if TYPE_CHECKING:
    import numpy as np


class MBart(Bart):
    """Hyperparameters of mBART's noise; the defaults are the paper's."""

    target_name: ClassVar[str] = "target tokens without EOS and language"

    kind: Literal["mbart"] = "mbart"
    mask_rate: Share = 0.35
    """Share of the words that are masked, those that overlapping spans share counted twice; 0: none."""
    poisson_lambda: Annotated[float, Field(ge=1, le=32)] = 3.5
    """Mean words of a span; one of no words is a mask inserted between two tokens."""

    def check_source(self, source: SourceConfig) -> None:
        super().check_source(source)
        if source.language is None:
            raise UserError(f"data.language is missing: objective.kind: {self.kind} wants it, such as language: de_DE")

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        # The language's token takes the place of BOS: there is none.
        bart = super().pipeline(length, dataclasses.replace(vocabulary, bos=None), seed)
        noise, features = bart.present
        return Pipeline(
            prepare=(*bart.prepare, Call("documents.mark_language")),
            present=(noise, Call("mbart.add_language"), features),
        )

    def eval_mask(self, batch: dict[str, np.ndarray], vocabulary: Vocabulary) -> np.ndarray:
        import numpy as np

        is_language = np.isin(batch["decoder_target_tokens"], vocabulary.languages)
        return super().eval_mask(batch, vocabulary) * ~is_language
