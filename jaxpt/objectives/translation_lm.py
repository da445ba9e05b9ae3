"""XLM's translation language modelling: masked LM of a text concatenated with its translation.

    texts      the cat sat                                die Katze saß
    inputs     [SEP] the [MASK] sat [SEP]                 [SEP] die Katze [MASK] [SEP]
    positions  0     1   2      3   4                     0     1   2     3      4
    types      0     0   0      0   0                     1     1   1     1      1

`data.fields` names the two texts of a document, such as `[en, de]` of {"en": "the cat sat", "de": "die Katze saß"}. 15
% of the tokens of both are selected, with all options of masked LM. The model's token types are XLM's language
embeddings, in the order of `objective.languages`; `language_types: false` disables them, as in XLM-R. Differences from
XLM: it uses </s> for [SEP], selects each token by itself, may select inner separators, and alternates with masked LM of
monolingual text (jaxpt: a separate run, started from the other's checkpoint). Its paper selects frequent tokens less
often (`frequency_exponent`: -0.5), the published command all alike. Paper: https://arxiv.org/abs/1901.07291
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from jaxpt.config import ModelConfig, PositiveInt, SourceConfig
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.formats import Format
from jaxpt.objectives.masked_lm import MaskedLM


class TranslationLM(MaskedLM):
    """Hyperparameters of translation language modelling."""

    kind: Literal["translation_lm"] = "translation_lm"
    languages: tuple[str, ...] = ()
    """Fields of all sources in the order of their token types; by default type 0 for the first text, 1 for the
    second."""
    max_text_length: PositiveInt | None = 100
    """Leave out pairs with a text of more tokens (XLM's `max_len`); null: those that exceed data.length."""
    language_types: bool = True
    """Token types encode the language; false: all are 0."""
    next_sentence: Literal[False] = False
    sentence_order: Literal[False] = False
    inputs: None = None
    """Not used: the inputs are always a text and its translation."""

    @property
    def num_token_types(self) -> int:
        return (len(self.languages) or 2) if self.language_types else 1

    def data_spec(self, length: int) -> DataSpec:
        return dataclasses.replace(super().data_spec(length), overhead_tokens=4)  # [SEP] before and after each text

    def check_source(self, source: SourceConfig) -> None:
        if source.fields is None:
            raise UserError(
                f"data.fields is missing: objective.kind: {self.kind} requires two fields, such as data.fields=[en, de]"
            )
        for field in source.fields:
            if self.languages and field not in self.languages:
                raise UserError(f"data.fields: {field!r} is not in objective.languages, {', '.join(self.languages)}")

    def _offline(self, length: int, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        languages = {"languages": list(self.languages), "types": self.language_types}
        lengths = {"length": length, "text_length": self.max_text_length}
        return (Call(preprocessors.translations.join, {**lengths, "sep": special["sep"], **languages}),)

    def text_format(self, model: ModelConfig, vocabulary: Vocabulary, **options: Any) -> Format:
        masked = super().text_format(model, vocabulary, **options)
        return masked if masked.permutes else dataclasses.replace(masked, before=masked.after)  # [SEP] at both ends

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        num_languages, types = self.num_token_types, getattr(model, "token_types", 0)
        if self.language_types and types < num_languages:
            raise UserError(
                f"model.token_types: {types} is less than the number of languages, {num_languages}; set "
                f"model.token_types={num_languages} or objective.language_types=false"
            )
