"""BERT's objective: guess the tokens that were masked, and whether the second text follows the first.

    text     [CLS] the cat sat [SEP] it purred [SEP]
    inputs   [CLS] the [MASK] sat [SEP] it purred [SEP]      masked_positions 2, masked_targets cat, label 0

15 % of the tokens are chosen; of these 80 % become [MASK], 10 % a random token, 10 % stay. All chosen positions carry
loss. The total is the masked-LM cross-entropy plus the next-sentence cross-entropy. The options make it RoBERTa's
(no pairs, other counts), ALBERT's (n-grams, sentence order) and SpanBERT's (spans).
Papers: https://arxiv.org/abs/1810.04805 https://arxiv.org/abs/1907.11692 https://arxiv.org/abs/1909.11942
https://arxiv.org/abs/1907.10529
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Pipeline, Vocabulary, preprocessors
from jaxpt.errors import UserError
from jaxpt.heads import masked_lm, sentence_pair
from jaxpt.losses import cross_entropy, token_loss
from jaxpt.models.base import Bound
from jaxpt.models.network import Head, Network
from jaxpt.models.output import Output
from jaxpt.objectives.base import Arrays, Batch, Batches, Features, Judge, Loss, Metrics, Objective

Unit = Literal["piece", "word", "ngram", "span"]


class MaskedLM(Objective):
    """Hyperparameters of masked LM; the defaults are BERT's."""

    family: ClassVar[str] = "encoder"

    kind: Literal["masked_lm"] = "masked_lm"
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens chosen, special ones counted in the length."""
    max_predictions: PositiveInt | None = None
    """Most tokens chosen in an example; ceil(mask_rate · length) by default (20 at 128, 77 at 512, as BERT)."""
    rounding: Literal["nearest", "random", "up"] = "nearest"
    """Of mask_rate · length: `nearest`, at least 1 (BERT, ALBERT); `random`, up with the probability of its fraction
    (RoBERTa); `up`, the special tokens not counted (SpanBERT)."""
    unit: Unit = "piece"
    """What is chosen as a whole: a `piece`, a `word` (whole-word masking; one that would exceed the number is passed
    over), an `ngram` of words, n with probability ∝ 1/n (ALBERT), or a `span` of words, whose length is geometric
    (SpanBERT: chosen to exactly the number, masked or replaced as one)."""
    max_words: PositiveInt | None = None
    """Most words of an n-gram (3 by default, ALBERT's) or span (10, SpanBERT's)."""
    span_end: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Chance that a span ends after each of its words: p of the geometric distribution, truncated at `max_words`."""
    mask_probability: Fraction = 0.8
    """Share of the chosen tokens that become [MASK]."""
    random_probability: Fraction = 0.1
    """Share of the chosen tokens that become a random token; the rest stay."""
    random_specials: bool = True
    """A random token may be a special one, as in BERT's code; false: never (RoBERTa's)."""
    inputs: Literal["segment_pairs", "sentence_pairs", "sentences", "windows"] | None = None
    """`segment_pairs`: [CLS] a [SEP] b [SEP] of several sentences each (BERT), `sentence_pairs`: of one each;
    `sentences`: [CLS] … [SEP], as many whole sentences as fit, [SEP] between documents (RoBERTa's FULL-SENTENCES);
    `windows`: running text cut anywhere. By default pairs where they have a loss, else windows."""
    next_sentence: bool = True
    """Loss of whether b follows a, or was drawn from another document (1)."""
    sentence_order: bool = False
    """Loss of whether a and b stand in their order, or were swapped (1), instead of next_sentence (ALBERT)."""
    short_probability: Fraction = 0.1
    """Chance, once for each document and pass, that its pairs are shorter than `data.length`."""
    dupe_factor: PositiveInt = 10
    """Passes over the documents, each with other pairs."""
    static_masking: bool = False
    """Draw masks once (BERT's data): those of each pass, or of `dupe_factor` copies of running text that epochs take in
    turn; false: new ones in every epoch (RoBERTa's dynamic masking)."""
    join_documents: bool = True
    """Windows and sentences go on from one document to the next; false: none crosses a document's end (RoBERTa's
    DOC-SENTENCES)."""

    @property
    def pair_loss(self) -> str | None:
        """The loss part of a pair of texts."""
        return "next_sentence" if self.next_sentence else "sentence_order" if self.sentence_order else None

    def predictions(self, length: int) -> int:
        """Size of the masked features."""
        return self.max_predictions or math.ceil(self.mask_rate * length)

    def word_shares(self) -> list[float]:
        """Probability of 1, 2, … words in a unit.

        Example:
          >>> [round(11 * p) for p in MaskedLM(unit="ngram").word_shares()]
          [6, 3, 2]
          >>> shares = MaskedLM(unit="span").word_shares()
          >>> len(shares), round(sum(n * p for n, p in enumerate(shares, 1)), 3)
          (10, 3.797)
        """
        most = self.max_words or {"ngram": 3, "span": 10}.get(self.unit, 1)
        weights = [(1 - self.span_end) ** n if self.unit == "span" else 1 / (n + 1) for n in range(most)]
        return [weight / sum(weights) for weight in weights]

    @property
    def batches(self) -> MaskedLMBatches:
        return MaskedLMBatches(self)

    @property
    def loss(self) -> MaskedLMLoss:
        return MaskedLMLoss(self)

    @property
    def judge(self) -> MaskedLMJudge:
        return MaskedLMJudge(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        for name in ("cls", "sep", "mask"):
            if getattr(vocabulary, name) is None:
                wanted = f"{self.kind} needs a vocabulary with [{name.upper()}]"
                raise UserError(f"{wanted}; data.tokenizer.kind: wordpiece has it")
        self._check_inputs()
        if length < 8:
            raise UserError(f"data.length: {length} is too short for {self.kind}, at least 8 is needed")
        if self.predictions(length) > length - 3:
            n = self.predictions(length)
            raise UserError(f"objective.max_predictions: {n} is more than fit into data.length {length}")
        if self.mask_probability + self.random_probability > 1:
            raise UserError("objective.mask_probability + objective.random_probability is more than 1")
        if not self.mask_probability and not self.random_probability:
            raise UserError(
                "objective.mask_probability + objective.random_probability is 0: every target would stand in the inputs"
            )
        if self.max_words and self.unit in ("piece", "word"):
            raise UserError(f"objective.max_words is of n-grams and spans; objective.unit is {self.unit}")

    def _check_inputs(self) -> None:
        """Raises UserError where pairs and their loss do not go together."""
        if self.next_sentence and self.sentence_order:
            raise UserError(
                "objective.sentence_order takes the place of next_sentence; set objective.next_sentence=false"
            )
        if self.inputs and self.inputs.endswith("pairs") != (self.pair_loss is not None):
            said = "next_sentence and sentence_order are" if self.pair_loss is None else f"{self.pair_loss} is"
            wanted = "false" if self.pair_loss is None else "a loss of pairs"
            raise UserError(f"objective.inputs: {self.inputs} does not fit: objective.{said} {wanted}")


class MaskedLMBatches(Batches):
    """Pairs of texts or running text, masked."""

    h: MaskedLM

    def features(self, length: int) -> Features:
        n = self.h.predictions(length)
        sequence = ("encoder_input_tokens", "encoder_token_types", "encoder_segment_ids", "encoder_positions")
        masked = {"masked_positions": "int32", "masked_targets": "int32", "masked_weights": "float32"}
        pairs = {f"{self.h.pair_loss}_labels": "int32", f"{self.h.pair_loss}_weights": "float32"}
        return {
            **dict.fromkeys(sequence, ((length,), "int32")),
            **{name: ((n,), dtype) for name, dtype in masked.items()},
            **{name: ((), dtype) for name, dtype in pairs.items() if self.h.pair_loss},
        }

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        return Pipeline(
            offline=self._offline(length, {"cls": vocabulary.cls, "sep": vocabulary.sep}, seed),
            online=(
                Call(preprocessors.masked_lm.mask, self._mask(length, vocabulary)),
                Call(preprocessors.features.encoder, {"length": length, "max_predictions": self.h.predictions(length)}),
            ),
        )

    def _offline(self, length: int, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        """From documents to records."""
        sentences = Call(preprocessors.documents.tokenize_sentences)
        if self.h.pair_loss:
            pairs = {
                "length": length,
                "short_probability": self.h.short_probability,
                "dupe_factor": self.h.dupe_factor,
                "seed": seed,
                "single": self.h.inputs == "sentence_pairs",
                "swap": self.h.sentence_order,
            }
            return sentences, Call(preprocessors.sentence_pairs.make, {**pairs, **special})
        cut = {"length": length - 2, "join": self.h.join_documents}
        enclose = Call(preprocessors.windows.enclose, special)
        if self.h.inputs == "sentences":
            return sentences, Call(preprocessors.windows.fill, {**cut, "separator": special["sep"]}), enclose
        return Call(preprocessors.documents.tokenize), Call(preprocessors.windows.cut, cut), enclose

    def _mask(self, length: int, vocabulary: Vocabulary) -> dict[str, Any]:
        """The arguments of the masking."""
        v = vocabulary
        special = {i for i in (v.pad, v.unk, v.bos, v.eos, v.cls, v.sep, v.mask) if i is not None}
        return {
            "rate": self.h.mask_rate,
            "max_predictions": self.h.predictions(length),
            "mask": v.mask,
            "mask_probability": self.h.mask_probability,
            "random_probability": self.h.random_probability,
            "vocab_size": v.size,
            "unit": self.h.unit,
            "shares": self.h.word_shares(),
            "rounding": self.h.rounding,
            "never": [] if self.h.random_specials else sorted(special),
            "cls": v.cls,
            "sep": v.sep,
        }

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        tokens = lengths["tokens"]
        most = {
            "nearest": lambda: np.maximum(np.round(self.h.mask_rate * tokens), 1),
            "random": lambda: np.floor(self.h.mask_rate * tokens) + 1,
            "up": lambda: np.ceil(self.h.mask_rate * (tokens - 2)),
        }[self.h.rounding]()
        masked = np.minimum(most, np.maximum(tokens - 2, 0))
        return {"encoder_input_tokens": tokens, "masked_positions": masked.astype(np.int64)}

    def text_tokens(self, records: int, tokens: int) -> int:
        return tokens - records * (3 if self.h.pair_loss else 2)  # [CLS] and [SEP]

    def check_packing(self) -> None:
        if self.h.pair_loss:
            label = self.h.pair_loss.replace("_", "-")
            raise UserError(f"data.packing: a row has one {label} label; set objective.{self.h.pair_loss}: false")

    def static_mask_copies(self) -> int | None:
        if not self.h.static_masking:
            return None
        return 1 if self.h.pair_loss else self.h.dupe_factor  # each pass has pairs of its own

    def degenerate(self, batch: Arrays) -> dict[str, np.ndarray]:
        shown = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)
        is_hidden = (batch["masked_weights"] > 0) & (shown != batch["masked_targets"])
        by_piece = ", or set objective.unit=piece if words are not found" if self.h.unit in ("word", "ngram") else ""
        return {f"none of their tokens is hidden; raise objective.mask_rate{by_piece}": ~is_hidden.any(axis=1)}


class MaskedLMLoss(Loss):
    """The cross-entropy of the masked targets, and of the label of a pair."""

    h: MaskedLM

    def heads(self, model: ModelConfig) -> dict[str, Head | Network]:
        return masked_lm.declare(model) | (sentence_pair.declare(model) if self.h.pair_loss else {})

    def coefficients(self) -> dict[str, float]:
        return {"masked_lm": 1.0, **({self.h.pair_loss: 1.0} if self.h.pair_loss else {})}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        sums = {"masked_lm": batch["masked_weights"].sum()}
        return sums | ({self.h.pair_loss: batch[f"{self.h.pair_loss}_weights"].sum()} if self.h.pair_loss else {})

    def output(self, model: Bound, batch: Batch) -> Output:
        return encoded(model, batch)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        total, metrics = self.masked_loss(model, hidden, batch)
        if self.h.pair_loss is None:
            return {"masked_lm": total}, metrics
        logits = sentence_pair.scores(model, hidden)
        labels, weights = batch[f"{self.h.pair_loss}_labels"], batch[f"{self.h.pair_loss}_weights"]
        correct = (logits.argmax(-1) == labels) * weights
        metrics[f"{self.h.pair_loss}_accuracy"] = (correct.sum(), weights.sum())
        return {"masked_lm": total, self.h.pair_loss: (cross_entropy(logits, labels) * weights).sum()}, metrics

    def metric_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """{metric: weights [batch, max_predictions]} of masked targets whose cross-entropy is a metric by itself."""
        return {}

    def masked_loss(self, model: Bound, hidden: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Σ of the cross-entropy of the masked targets, which alone go through the vocabulary projection.

        Args:
          model: a bound model that scores the vocabulary.
          hidden: hidden states [batch, length, width].
          batch: the features.

        Returns:
          As `jaxpt.losses.token_loss`.
        """
        return token_loss(
            model.lm_states(jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)),
            model.output_projection(),
            batch["masked_targets"],
            batch["masked_weights"],
            eval_mask=batch.get("eval_mask"),
            metric_weights=self.metric_weights(batch),
            z_loss=self.h.z_loss,
            chunk=self.h.loss_chunk,
        )


class MaskedLMJudge(Judge):
    """Targets that became [MASK] count, beside their unigram entropy."""

    baseline: ClassVar[str] = "unigram"
    target_name: ClassVar[str] = "positions replaced by [MASK]"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        at_masked = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)
        return batch["masked_weights"] * (at_masked == vocabulary.mask)


def encoded(model: Bound, batch: Batch) -> Output:
    """What an encoder gives for a batch.

    Args:
      model: a bound model of the family "encoder".
      batch: the encoder's features.
    """
    names = ("token_types", "segment_ids", "positions", "ranks")
    features = {name: batch[f"encoder_{name}"] for name in names if f"encoder_{name}" in batch}
    return model.encode(batch["encoder_input_tokens"], **features)
