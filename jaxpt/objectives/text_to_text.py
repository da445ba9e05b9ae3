"""Every task as text to text: the model writes the answer. Encoder-decoders (T5, BART) and decoders.

    inputs    cola sentence: He run.          targets   unacceptable

    encoder-decoder   inputs </s>                  →  targets </s>                   (BART: <s> before both)
    decoder           inputs <separator> targets <eos>, with loss on the targets alone

The answer to a row is generated, or (labels: `decide_by: likelihood`) it is the most likely one of the label words.
Paper: https://arxiv.org/abs/1910.10683
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from jaxpt.config import Frozen, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.data.labelled.layout import Truncate
from jaxpt.data.labelled.text_pairs import TextPairsEncoder
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.models.network import Head
from jaxpt.objectives.base import Baseline, NextToken, batch_feature
from jaxpt.objectives.causal_lm import decoder_features, lengths_of_texts
from jaxpt.objectives.formats import Format
from jaxpt.objectives.labelled import Labelled
from jaxpt.objectives.seq2seq import encoder_decoder_features, lengths_of_pairs


class Decoding(Frozen):
    """How answers are generated, as the options of the same names of `jaxpt generate`."""

    max_new_tokens: PositiveInt | None = None
    """Maximum number of tokens of an answer; `objective.targets_length` by default."""
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    beams: PositiveInt = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0


class TextToText(NextToken, Labelled):
    """Hyperparameters of text-to-text training on labelled rows."""

    kind: Literal["text_to_text"] = "text_to_text"
    dropout: SkipJsonSchema[None] = Field(None, exclude=True)
    """Null: it has no head."""
    features: SkipJsonSchema[None] = Field(None, exclude=True)
    """Null: it has no head."""
    examples: SkipJsonSchema[None] = Field(None, exclude=True)
    """Null: a packed row has as many examples as there is room for."""
    truncate: Truncate = "longest_first"
    """What is too long is cut at its end: inputs to `data.length`, of decoders less `targets_length`, and targets to
    `targets_length`. `error`: nothing is cut; inputs are one text, so the other values are refused. The number of
    texts that were cut is printed."""
    targets_length: PositiveInt = 64
    """Maximum number of tokens of a target."""
    separator: str = "\n"
    """Of a decoder: text between inputs and targets."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """ε: the distribution of a target is (1 − ε) · one-hot + ε / vocabulary (BART's summaries: 0.1)."""
    decide_by: Literal["generation", "likelihood"] = "generation"
    """How a label is predicted: by generating text, or as the most likely one of all label words: the highest
    Σ log p(token) over the tokens of a word and its end, the first of a tie. Probabilities are the softmax of these."""
    normalize: bool = False
    """With `decide_by: likelihood`: divide the sum by the number of tokens (T5's `normalize_by_target_length`)."""
    decoding: Decoding = Decoding()
    """How answers are generated."""
    predicts_tokens: ClassVar[bool] = True

    def cut_to(self, length: int) -> str:
        return f"data.length {length} and objective.targets_length {self.targets_length}"

    def ends(self, vocabulary: Vocabulary) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids before and after a text."""
        layout = self.layout(vocabulary)
        return layout.before, (vocabulary.eos,)

    def decoder_start(self, vocabulary: Vocabulary) -> tuple[int, ...]:
        """What the decoder of an encoder-decoder reads before the first token of a target."""
        return self.start_id(vocabulary), *self.ends(vocabulary)[0]

    def decide(self, outputs: Sequence[Any], row: Any, where: str) -> Any:
        """The prediction of a row, from the text that was generated for it, or the log-likelihood of each label."""
        if self.decide_by == "likelihood":
            return self.task.decide_one(outputs[0])
        return self.task.parse(outputs[0], row, where)

    def answer(self, outputs: Sequence[Any], row: Any, where: str) -> dict[str, Any]:
        """The prediction of a row for people: text (and label), or label and probabilities."""
        if self.decide_by == "likelihood":
            return self.task.answer_one(outputs[0])
        return self.task.answer_text(outputs[0], row, where)

    def data_spec(self, length: int) -> DataSpec:
        if self.family == "decoder":
            features, max_packed_lengths = decoder_features(length), lengths_of_texts
        else:
            features, max_packed_lengths = encoder_decoder_features(length, self.targets_length), lengths_of_pairs
        return dataclasses.replace(super().data_spec(length), features=features, max_packed_lengths=max_packed_lengths)

    def text_format(self, model: ModelConfig, vocabulary: Vocabulary, **options: Any) -> Format:
        if model.family != "encoder_decoder":
            return super().text_format(model, vocabulary, **options)
        return Format(*self.ends(vocabulary), self.decoder_start(vocabulary))

    def heads(self, model: ModelConfig) -> dict[str, Head]:
        return {}  # answers are written

    def encoder(self, length: int, vocabulary: Vocabulary) -> TextPairsEncoder:
        before, after = self.ends(vocabulary)
        is_decoder = self.family == "decoder"
        return TextPairsEncoder(
            self.task, length + is_decoder, self.targets_length, before, after, is_decoder,
            self.separator if is_decoder else "", self.truncate,
        )  # fmt: skip

    def to_features(self, length: int, vocabulary: Vocabulary) -> Call:
        if self.family == "decoder":
            return Call(preprocessors.features.decoder, {"length": length})
        sizes = {"inputs_length": length, "targets_length": self.targets_length, "start": self.start_id(vocabulary)}
        return Call(preprocessors.features.encoder_decoder, sizes)

    @property
    def baseline(self) -> Baseline:
        return Baseline("unigram", "target tokens", batch_feature("decoder_loss_weights"))

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.task.kind == "mixture":
            self.check_tasks(model, length, vocabulary)
            return
        self.check_tokens(vocabulary, "eos")
        super().check(model, length, vocabulary)

    def idle_settings(self) -> tuple[str, ...]:
        if self.truncate in ("longest_first", "error"):
            return super().idle_settings()
        what = f"objective.truncate: {self.truncate} is for heads on texts; inputs of text_to_text are one text"
        return (f"{what}, whose end is cut: remove it, or set error", *super().idle_settings())

    def check_settings(self, model: ModelConfig, length: int) -> None:
        if self.family == "encoder":
            raise UserError(f"objective.kind: text_to_text: model.kind: {model.kind} has no decoder; drop objective")
        if self.task.kind == "mixture":
            self.check_settings_of_tasks(model, length)
            return
        super().check_settings(model, length)
        if getattr(self.task, "windows", None) is not None:
            raise UserError("task.windows: is for objective.kind: classification, whose outputs can be pooled")
        has_candidates = self.task.candidates() or getattr(self.task, "labels", ()) is None  # None: not known yet
        if self.decide_by == "likelihood" and not has_candidates:
            raise UserError(f"objective.decide_by: likelihood needs labels, which task.kind: {self.task.kind} has not")
        if self.normalize and self.decide_by != "likelihood":
            raise UserError("objective.normalize: true is for objective.decide_by: likelihood; set that, or remove it")
        if self.family == "decoder" and self.targets_length >= length:
            raise UserError(f"objective.targets_length: {self.targets_length} must be below data.length, {length}")
