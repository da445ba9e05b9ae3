"""T5's span corruption: spans of text are replaced by sentinels; the decoder predicts the spans.

    text     a b c d e f g h
    inputs   a b <X> e f <Y> </s>
    targets  <X> c d <Y> g h </s>

Sentinel ids count down from the vocabulary's last id, in inputs and targets. Of a document of more than 65,536 tokens
the published code takes one piece in each epoch, jaxpt all of it. Paper: https://arxiv.org/abs/1910.10683
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.seq2seq import TextDenoising


@functools.cache
def noise_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """Number of noise tokens and noise spans of a sequence.

        noise = clip(round(L · density), 1, L − 1),   spans = min(max(round(noise / mean_span), 1), noise, L − noise)

    Both are rounded half to even in float64; a sequence of one token has no noise.

    Args:
      length: tokens in the sequence.
      density: fraction of noise tokens.
      mean_span: mean tokens in a span.

    Returns:
      (noise tokens, spans).

    Example:
      >>> noise_counts(568, 0.15, 3.0)
      (85, 28)
    """
    if length < 2:
        return 0, 0
    noise = min(max(round(np.float64(length) * density), 1), length - 1)
    spans = min(max(round(np.float64(noise) / mean_span), 1), noise, length - noise)
    return int(noise), int(spans)


def lengths(inputs_length: int, density: float, mean_span: float) -> tuple[int, int]:
    """The longest text whose corrupted form fits into the encoder, and the decoder length that it needs.

    Args:
      inputs_length: number of encoder input tokens, including EOS.
      density: fraction of noise tokens.
      mean_span: mean tokens in a span.

    Returns:
      (text tokens, target tokens including EOS).

    Example:
      >>> lengths(512, 0.15, 3.0), lengths(256, 0.15, 3.0), lengths(128, 0.15, 3.0), lengths(512, 0.5, 3.0)
      ((568, 114), (284, 58), (141, 29), (766, 512))
    """

    def both(length: int) -> tuple[int, int]:
        noise, spans = noise_counts(length, density, mean_span)
        return length - noise + spans + 1, noise + spans + 1

    length = 1
    while both(length + 1)[0] <= inputs_length:
        length += 1
    targets = max(both(n)[1] for n in range(1, length + 1))
    if density == 0.5 and targets > inputs_length and length > 1:  # T5 drops one token: inputs and targets are as long
        return length - 1, max(both(n)[1] for n in range(1, length))
    return length, targets


class SpanCorruption(TextDenoising):
    """Hyperparameters of span corruption; the defaults are T5's."""

    kind: Literal["span_corruption"] = "span_corruption"
    density: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens that are corrupted."""
    mean_span: Annotated[float, Field(ge=1)] = 3.0
    """Mean length of a corrupted span, in tokens."""
    documents_per_group: PositiveInt | None = 128
    """With join_documents, concatenate so many documents at a time, so that the last window of each group is short;
    null: all documents."""

    def data_spec(self, length: int) -> DataSpec:
        text, targets = lengths(length, self.density, self.mean_span)

        def transforms(vocabulary: Vocabulary) -> Transforms:
            noise = {"density": self.density, "mean_span": self.mean_span}
            ids = {"first_sentinel": vocabulary.first_sentinel, "eos": vocabulary.eos}
            corrupt = Call(preprocessors.span_corruption.corrupt, {**noise, **ids})
            return Transforms(self.windows(text, vocabulary), (corrupt,))

        def max_packed_lengths(lengths: Arrays) -> dict[str, np.ndarray]:
            texts, record = np.unique(lengths["tokens"], return_inverse=True)
            noise, spans = np.array([noise_counts(int(n), self.density, self.mean_span) for n in texts])[record].T
            inputs, targets = lengths["tokens"] - noise + spans + 1, noise + spans + 1
            return {"encoder_input_tokens": inputs, "decoder_input_tokens": targets}

        return self.pair_spec(length, targets, transforms, max_packed_lengths)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if vocabulary.eos is None or vocabulary.sentinels == 0:
            requirement = "span_corruption needs a vocabulary with EOS and sentinels"
            raise UserError(f"{requirement}; data.tokenizer.kind: sentencepiece has them")
        self.check_length(length, 4)
        text, _ = lengths(length, self.density, self.mean_span)
        spans = max(noise_counts(n, self.density, self.mean_span)[1] for n in range(1, text + 1))
        if spans > vocabulary.sentinels:
            raise UserError(
                f"data.length: {length} tokens with density {self.density} need {spans} sentinels, the vocabulary has "
                f"{vocabulary.sentinels}; shorten data.length, raise objective.mean_span or data.tokenizer.extra_ids"
            )
