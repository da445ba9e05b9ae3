"""XLM's translation language modelling: masked LM of a text and its translation, which help to guess each other.

    texts      the cat sat                                die Katze saß
    inputs     [SEP] the [MASK] sat [SEP]                 [SEP] die Katze [MASK] [SEP]
    positions  0     1   2      3   4                     0     1   2     3      4
    types      0     0   0      0   0                     1     1   1     1      1

Each document has two texts, `data.fields` names them: those of {"en": "the cat sat", "de": "die Katze saß"} are
`[en, de]`. 15 % of the tokens of both are chosen as in masked LM, all of whose options hold. XLM's language embeddings
are the model's token types, `objective.languages` gives them their order; `language_types: false` does without, as
XLM-R does. XLM writes </s> where [SEP] stands here, may choose the inner ones too, and draws frequent tokens less often
(ours are drawn uniformly); it takes turns between this and masked LM of running text, which here is a run that goes on
from the other's weights. Paper: https://arxiv.org/abs/1901.07291
"""

from __future__ import annotations

from typing import Any, Literal

from jaxpt.config import ModelConfig, SourceConfig
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.objectives.masked_lm import MaskedLM, MaskedLMBatches


class TranslationLM(MaskedLM):
    """Hyperparameters of translation language modelling."""

    kind: Literal["translation_lm"] = "translation_lm"
    languages: tuple[str, ...] = ()
    """Fields of all sources in the order of their token types; by default the first text's is 0, the second's 1."""
    language_types: bool = True
    """Token types say which language a text is in; false: all are 0."""
    next_sentence: Literal[False] = False
    sentence_order: Literal[False] = False
    inputs: None = None
    """A text and its translation, always."""

    @property
    def batches(self) -> TranslationLMBatches:
        return TranslationLMBatches(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        wanted, types = len(self.languages) or 2, getattr(model, "token_types", 0)
        if self.language_types and types < wanted:
            raise UserError(
                f"model.token_types: {types} is fewer than there are languages, {wanted}; set "
                f"model.token_types={wanted}, or objective.language_types=false to do without"
            )


class TranslationLMBatches(MaskedLMBatches):
    """A text and its translation, masked."""

    h: TranslationLM

    def check_source(self, source: SourceConfig) -> None:
        if source.fields is None:
            raise UserError(
                f"data.fields is missing: objective.kind: {self.h.kind} wants two, such as data.fields=[en, de]"
            )
        for field in source.fields:
            if self.h.languages and field not in self.h.languages:
                raise UserError(f"data.fields: {field!r} is none of objective.languages, {', '.join(self.h.languages)}")

    def _offline(self, length: int, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        languages = {"languages": list(self.h.languages), "types": self.h.language_types}
        return (Call(preprocessors.translations.join, {"length": length, "sep": special["sep"], **languages}),)

    def text_tokens(self, records: int, tokens: int) -> int:
        return tokens - 4 * records  # [SEP] about each text
