"""BERT's objective: predict the masked tokens, and whether the second text follows the first.

    text     [CLS] the cat sat [SEP] it purred [SEP]
    inputs   [CLS] the [MASK] sat [SEP] it purred [SEP]      masked_positions 2, masked_targets cat, label 0

15 % of the tokens are selected; of these 80 % become [MASK], 10 % a random token, and 10 % stay unchanged. All selected
positions have loss. The total is the masked-LM cross-entropy plus the next-sentence cross-entropy. Options give the
objectives of RoBERTa (no pairs, other rounding), ALBERT (n-grams, sentence order) and SpanBERT (spans).
Papers: https://arxiv.org/abs/1810.04805 https://arxiv.org/abs/1907.11692 https://arxiv.org/abs/1909.11942
https://arxiv.org/abs/1907.10529
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jaxpt.config import Fraction, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec, masked_features
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import masked_lm, sentence_pair
from jaxpt.models.network import Head, Network
from jaxpt.models.output import Output
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, Metrics, Objective, encode_batch
from jaxpt.objectives.losses import cross_entropy

Unit = Literal["piece", "draw", "window", "word", "ngram", "span"]


class MaskedLM(Objective):
    """Hyperparameters of masked LM; the defaults are BERT's."""

    family: ClassVar[str] = "encoder"

    kind: Literal["masked_lm"] = "masked_lm"
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of the tokens that are selected; the length includes special tokens."""
    max_predictions: PositiveInt | None = None
    """Maximum number of selected tokens of an example; default ceil(mask_rate · length) (BERT: 20 at 128, 77 at
    512)."""
    rounding: Literal["nearest", "random", "up"] = "nearest"
    """Rounding of mask_rate · length: `nearest`, at least 1 (BERT, ALBERT); `random`, up with the probability of the
    fractional part (RoBERTa); `up`, with a length without special tokens (SpanBERT)."""
    unit: Unit = "piece"
    """Unit of selection: a `piece`; a `draw` of a piece with replacement (ELECTRA: a piece drawn twice counts twice);
    one piece of each `window` of int(1/mask_rate), none after the number (DeBERTa); a `word` (whole-word masking; one
    over the number is skipped); an `ngram` of words, n with probability ∝ 1/n (ALBERT); or a `span` of words of
    geometric length (SpanBERT: selects exactly the number; a span is masked or replaced as a whole)."""
    word_starts: Literal["spaces", "albert"] = "spaces"
    """Pieces that start a word: those after a space (all vocabularies), or with SentencePiece also as in ALBERT's code:
    a punctuation mark alone, and pieces with other characters than English letters and punctuation, such as digits."""
    frequency_exponent: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """With `unit: piece`: a piece is selected with a weight of max(count, 1)^this, of its count in the data; 0: all
    equally. -0.7 in DistilBERT's released code, where rare pieces are selected more often; there among the tokens of 5
    examples together, here of each."""
    max_words: PositiveInt | None = None
    """Maximum number of words of an n-gram (default 3, ALBERT) or span (default 10, SpanBERT)."""
    span_end: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """p of the geometric distribution of span lengths, which is truncated at `max_words`."""
    mask_probability: Fraction = 0.8
    """Fraction of the selected tokens that become [MASK]."""
    random_probability: Fraction = 0.1
    """Fraction of the selected tokens that become a random token; the rest stay unchanged."""
    random_specials: bool = True
    """Random tokens include special tokens (BERT); false: they do not (RoBERTa)."""
    random_tokens: Literal["uniform", "corpus"] = "uniform"
    """Random tokens are uniform over the vocabulary (BERT), or over the tokens of the training set: frequent ones are
    frequent (SpanBERT)."""
    inputs: Literal["segment_pairs", "sentence_pairs", "sentences", "windows"] | None = None
    """`segment_pairs`: [CLS] a [SEP] b [SEP] with several sentences each (BERT); `sentence_pairs`: with one each;
    `sentences`: [CLS] … [SEP] with as many full sentences as fit, [SEP] between documents (RoBERTa's FULL-SENTENCES);
    `windows`: text cut at any token. Default: segment_pairs if there is a pair loss, else windows."""
    line_ends: bool = False
    """With `inputs: sentences`: every sentence ends with [SEP], and every document with one more, as in fairseq's data
    for RoBERTa, where a sentence is a line (`data.sentences: lines`)."""
    mask_specials: bool = False
    """[CLS] and [SEP] may be selected like any other token (fairseq's masking for RoBERTa)."""
    next_sentence: bool = True
    """Next-sentence loss: label 1 if b was drawn from another document, 0 if b follows a."""
    sentence_order: bool = False
    """Sentence-order loss instead of next_sentence (ALBERT): label 1 if a and b were swapped."""
    short_probability: Fraction = 0.1
    """Probability, per document and pass, that its pairs are shorter than `data.length`."""
    dupe_factor: PositiveInt = 10
    """Number of passes over the documents, each with different pairs."""
    static_masking: bool = False
    """Static masking (BERT): one mask per pass over pairs; for text without pairs, epochs cycle through `dupe_factor`
    masked copies. False: new masks in every epoch (RoBERTa's dynamic masking)."""
    join_documents: bool = True
    """Windows and `sentences` may cross document boundaries; false: they do not (RoBERTa's DOC-SENTENCES)."""

    @property
    def pair_loss(self) -> str | None:
        """Name of the loss part of pairs, or None."""
        return "next_sentence" if self.next_sentence else "sentence_order" if self.sentence_order else None

    @property
    def num_token_types(self) -> int:
        return 2 if self.pair_loss else 1

    def predictions(self, length: int) -> int:
        """Length of the masked features."""
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
        max_words = self.max_words or {"ngram": 3, "span": 10}.get(self.unit, 1)
        weights = [(1 - self.span_end) ** n if self.unit == "span" else 1 / (n + 1) for n in range(max_words)]
        return [weight / sum(weights) for weight in weights]

    def data_spec(self, length: int) -> DataSpec:
        n = self.predictions(length)
        sequences = ("input_tokens", "token_types", "segment_ids", "positions")
        pairs = {f"{self.pair_loss}_labels": "int32", f"{self.pair_loss}_weights": "float32"} if self.pair_loss else {}

        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            version = vocabulary.word_version if self.unit in ("word", "ngram", "span") else 1
            return Transforms(
                offline=self._offline(length, {"cls": vocabulary.cls, "sep": vocabulary.sep}, seed),
                online=(
                    Call(preprocessors.masked_lm.mask, self._mask(length, vocabulary), version=version),
                    Call(preprocessors.features.encoder, {"length": length, "max_predictions": n}),
                ),
            )

        label = (self.pair_loss or "").replace("_", "-")
        static_copies = 1 if self.pair_loss else self.dupe_factor  # each pass has different pairs
        return DataSpec(
            features=masked_features(sequences, length, n) | {name: ((), dtype) for name, dtype in pairs.items()},
            transforms=transforms,
            max_packed_lengths=None if self.pair_loss else functools.partial(self._max_packed_lengths, length),
            no_packing=f"would need several {label} labels in a packed row; set objective.{self.pair_loss}: false",
            overhead_tokens=3 if self.pair_loss else 1 if self.line_ends else 2,  # [CLS] and [SEP]
            num_passes=self.dupe_factor if self.pair_loss else 1,
            static_mask_copies=static_copies if self.static_masking else None,
            untrainable_examples=self._unmasked,
        )

    def _unmasked(self, batch: Arrays) -> dict[str, np.ndarray]:
        """Examples in which all targets are visible."""
        input_tokens = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)
        is_hidden = (batch["masked_weights"] > 0) & (input_tokens != batch["masked_targets"])
        by_piece = ", or set objective.unit=piece if words are not found" if self.unit in ("word", "ngram") else ""
        return {f"no target is masked or replaced; raise objective.mask_rate{by_piece}": ~is_hidden.any(axis=1)}

    def _max_packed_lengths(self, length: int, lengths: Arrays) -> dict[str, np.ndarray]:
        tokens = lengths["tokens"]
        selectable = tokens if self.mask_specials else np.maximum(tokens - 2, 0)
        max_masked = {
            "nearest": lambda: np.maximum(np.round(self.mask_rate * tokens), 1),
            # Where the product is whole this is one more than `random` selects: the plans of older runs are made of it.
            "random": lambda: np.floor(self.mask_rate * tokens) + 1,
            "up": lambda: np.ceil(self.mask_rate * selectable),
        }[self.rounding]()
        masked = np.minimum(np.minimum(max_masked, selectable), self.predictions(length))
        return {"encoder_input_tokens": tokens, "masked_positions": masked.astype(np.int64)}

    def _offline(self, length: int, special: dict[str, Any], seed: int) -> tuple[Call, ...]:
        """From documents to records."""
        sentences = Call(preprocessors.documents.tokenize_sentences)
        if self.pair_loss:
            pairs = {
                "length": length,
                "short_probability": self.short_probability,
                "dupe_factor": self.dupe_factor,
                "seed": seed,
                "single": self.inputs == "sentence_pairs",
                "swap": self.sentence_order,
            }
            return sentences, Call(preprocessors.sentence_pairs.make, {**pairs, **special})
        cut = {"length": length - 2, "join": self.join_documents}
        enclose = Call(preprocessors.windows.enclose, special)
        if self.line_ends:
            end = Call(preprocessors.windows.end_lines, {"sep": special["sep"], "end_documents": self.join_documents})
            fill = Call(preprocessors.windows.fill, cut | {"length": length - 1})
            return sentences, end, fill, Call(preprocessors.windows.enclose, special | {"sep": None})
        if self.inputs == "sentences":
            return sentences, Call(preprocessors.windows.fill, {**cut, "separator": special["sep"]}), enclose
        return Call(preprocessors.documents.tokenize), Call(preprocessors.windows.cut, cut), enclose

    def _mask(self, length: int, vocabulary: Vocabulary) -> dict[str, Any]:
        """Arguments of the masking preprocessor."""
        v = vocabulary
        special = {i for i in (v.pad, v.unk, v.bos, v.eos, v.cls, v.sep, v.mask) if i is not None}
        skip = sorted(special - {v.cls, v.sep}) if self.frequency_exponent or self.unit == "window" else []
        more = {  # those that are set: a run from before they were there resumes
            "word_rule": self.word_starts if self.word_starts != "spaces" else None,
            "random_ids": self.random_tokens if self.random_tokens != "uniform" else None,
            "frequency_exponent": self.frequency_exponent,
            "mask_specials": self.mask_specials,
            "skip": skip,
        }
        return {
            "rate": self.mask_rate,
            "max_predictions": self.predictions(length),
            "mask": v.mask,
            "mask_probability": self.mask_probability,
            "random_probability": self.random_probability,
            "vocab_size": v.size,
            "unit": self.unit,
            "shares": self.word_shares(),
            "rounding": self.rounding,
            "never": [] if self.random_specials else sorted(special),
            "cls": v.cls,
            "sep": v.sep,
            **{name: setting for name, setting in more.items() if setting},
        }

    def heads(self, model: ModelConfig) -> dict[str, Head | Network]:
        return masked_lm.declare(model) | (sentence_pair.declare(model) if self.pair_loss else {})

    def coefficients(self) -> dict[str, float]:
        return {"masked_lm": 1.0, **({self.pair_loss: 1.0} if self.pair_loss else {})}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        sums = {"masked_lm": batch["masked_weights"].sum()}
        return sums | ({self.pair_loss: batch[f"{self.pair_loss}_weights"].sum()} if self.pair_loss else {})

    def output(self, model: Bound, batch: Batch) -> Output:
        return encode_batch(model, batch)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        total, metrics = self.masked_loss(model, hidden, batch)
        if self.pair_loss is None:
            return {"masked_lm": total}, metrics
        logits = sentence_pair.logits(model, hidden)
        labels, weights = batch[f"{self.pair_loss}_labels"], batch[f"{self.pair_loss}_weights"]
        correct = (logits.argmax(-1) == labels) * weights
        metrics[f"{self.pair_loss}_accuracy"] = (correct.sum(), weights.sum())
        return {"masked_lm": total, self.pair_loss: (cross_entropy(logits, labels) * weights).sum()}, metrics

    def metric_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """{metric: weights [batch, max_predictions]}: additional weighted cross-entropies of the masked targets."""
        return {}

    def masked_loss(self, model: Bound, hidden: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Σ of the cross-entropy of the masked targets; only these positions are projected to the vocabulary.

        Args:
          model: a bound model that predicts vocabulary tokens.
          hidden: hidden states [batch, length, width].
          batch: the features.

        Returns:
          As `jaxpt.objectives.losses.token_loss`.
        """
        states = model.lm_states(jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1))
        metric_weights = self.metric_weights(batch)
        return self.vocab_loss(model, states, batch, "masked_targets", "masked_weights", metric_weights=metric_weights)

    @property
    def baseline(self) -> Baseline:
        """Of the targets that became [MASK]."""

        def eval_mask(batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
            at_masked = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)
            return batch["masked_weights"] * (at_masked == vocabulary.mask)

        return Baseline("unigram", "positions replaced by [MASK]", eval_mask)

    def missing_rows(self, model: ModelConfig, length: int) -> tuple[str, ...]:
        types, wanted = getattr(model, "token_types", 0), self.num_token_types
        if not 0 < types < wanted:
            return super().missing_rows(model, length)
        return (f"model.token_types: {types} is below the {wanted} of the inputs; set model.token_types={wanted}",)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        self.check_tokens(vocabulary, "cls", "sep", "mask")
        if model.masked_lm_options is None and not hasattr(model.build(), "streams"):
            raise UserError(
                f"model.kind: {model.kind} has no masked-LM head, which objective.kind: {self.kind} needs; model.kind: "
                "bert, roberta and albert have one"
            )
        self._check_inputs()
        self.check_length(length, 8)
        if self.predictions(length) > length - 3:
            n = self.predictions(length)
            raise UserError(f"objective.max_predictions: {n} is too large for data.length {length}")
        if self.mask_probability + self.random_probability > 1:
            raise UserError("objective.mask_probability + objective.random_probability is more than 1")
        if not self.mask_probability and not self.random_probability:
            raise UserError(
                "objective.mask_probability + objective.random_probability is 0: the inputs would contain every target"
            )
        if self.max_words and self.unit in ("piece", "draw", "window", "word"):
            raise UserError(f"objective.max_words requires objective.unit: ngram or span, not {self.unit}")
        if self.frequency_exponent and self.unit != "piece":
            raise UserError(f"objective.frequency_exponent requires objective.unit: piece, not {self.unit}")

    def _check_inputs(self) -> None:
        """Raises UserError if `inputs` and the pair loss are inconsistent."""
        if self.next_sentence and self.sentence_order:
            raise UserError("objective.sentence_order replaces next_sentence; set objective.next_sentence=false")
        if self.inputs and self.inputs.endswith("pairs") != (self.pair_loss is not None):
            requirement = (
                "requires objective.next_sentence or objective.sentence_order"
                if self.pair_loss is None
                else f"requires objective.{self.pair_loss}=false"
            )
            raise UserError(f"objective.inputs: {self.inputs} {requirement}")
        if self.line_ends and self.inputs != "sentences":
            raise UserError("objective.line_ends requires objective.inputs: sentences")
