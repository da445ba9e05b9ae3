"""What an objective is: frozen hyperparameters, and three parts that are made of them and do not know each other.

    objective.batches    names the preprocessors and the features that they make     no JAX
    objective.loss       computes the loss of such a batch                           no data
    objective.judge      says what a trained model is compared with, and where

A part is a frozen dataclass with one field `h`, the hyperparameters. What two parts need is a function of these. An
objective that wraps another one (distillation) has a loss of its own, and the batches and the judge of the other.

This is the only place where data and model meet. Preprocessors are *named* here and resolved in `jaxpt.data`: nothing
of this package needs TensorFlow.

Batch features, all [batch, ...], by their SeqIO names:
  encoder_input_tokens, encoder_segment_ids, encoder_positions            int32 [batch, length]
  encoder_token_types                                                     int32 [batch, length]       (BERT)
  encoder_ranks (a token sees those whose rank is at most its own)        int32 [batch, length]       (UniLM)
  decoder_input_tokens, decoder_target_tokens, decoder_segment_ids, decoder_positions   int32 [batch, length]
  decoder_loss_weights                                                    float32 [batch, length]
  decoder_prefix (1 where all of the segment may look)                    int32 [batch, length]       (prefix LM)
  encoder_order (the rank in the order of prediction)                     int32 [batch, length]       (XLNet)
  masked_positions, masked_targets int32, masked_weights float32          [batch, max_predictions]
  masked_kinds (which attention mask the token was predicted under)       int32 [batch, max_predictions]  (UniLM)
  next_sentence_labels int32, next_sentence_weights float32               [batch]
  sentence_order_labels int32, sentence_order_weights float32             [batch]
A segment id is 0 on padding; real tokens count the records of a row, from 1, and in each positions start at 0. A row of
zeros carries no weight anywhere: evaluation fills its last batch up with such rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from jaxpt.config import ModelConfig, ObjectiveConfig, SourceConfig
from jaxpt.data.calls import Pipeline, Vocabulary
from jaxpt.errors import UserError
from jaxpt.losses import token_loss
from jaxpt.models.base import Bound
from jaxpt.models.network import Head, Network
from jaxpt.models.output import Output

Batch = dict[str, jax.Array]
Arrays = Mapping[str, np.ndarray]
Features = dict[str, tuple[tuple[int, ...], str]]
"""{feature: (shape without the batch, "int32" or "float32")}."""
Metrics = dict[str, tuple[jax.Array, jax.Array]]
"""{metric: (Σ weighted value, Σ weight)}."""


class Objective(ObjectiveConfig):
    """Hyperparameters of an objective, and its three parts: subclass it once in a module of `jaxpt.objectives`, or in
    one of your own."""

    family: ClassVar[str]
    """The models that it trains: "encoder", "decoder" or "encoder_decoder"."""

    @property
    def batches(self) -> Batches:
        """Makes the batches."""
        raise NotImplementedError

    @property
    def loss(self) -> Loss:
        """Computes the loss of a batch."""
        raise NotImplementedError

    @property
    def judge(self) -> Judge:
        """Compares a trained model with a trivial one."""
        raise NotImplementedError

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        """Raises UserError for settings that cannot work; called before anything starts."""
        raise NotImplementedError

    def check_family(self, model: ModelConfig) -> None:
        """Raises UserError for a model of another family; called before anything is read."""
        if model.family != self.family:
            raise UserError(
                f"objective.kind: {self.kind} needs a model of the family {self.family}, "
                f"model.kind: {model.kind} is of the family {model.family}"
            )

    def vocabulary_path(self) -> Path | None:
        """Path of the vocabulary that it requires if the recipe names none; None if any vocabulary works."""
        return None


@dataclasses.dataclass(frozen=True)
class Batches:
    """Makes the batches of an objective: the transforms, the features and their sizes. It computes nothing with JAX."""

    h: Objective
    """The hyperparameters."""

    def features(self, length: int) -> Features:
        """Shape (without the batch) and dtype of each feature of a batch.

        Args:
          length: `data.length`, in tokens.

        Returns:
          {name: (shape, "int32" or "float32")}.
        """
        raise NotImplementedError

    def pipeline(self, length: int, vocabulary: Vocabulary, seed: int) -> Pipeline:
        """The preprocessors that make the features; lengths and the seed are among their arguments."""
        raise NotImplementedError

    def examples(self, length: int) -> int | None:
        """The maximum number of target tokens if it takes examples of a SeqIO Task; None if it takes documents."""
        return None

    def check_source(self, source: SourceConfig) -> None:
        """Raises UserError for a source that it cannot use; called before anything is read."""
        if source.fields is not None:
            raise UserError(
                f"data.fields: objective.kind: {self.h.kind} takes one text, not two; name it with data.field"
            )

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        """An upper bound of the tokens that each record takes in a row: `data.packing` plans with it.

        Args:
          lengths: {feature of a record: its lengths, int [records]}.

        Returns:
          {feature of a batch: int [records]}: the room is that of `features`. One of each side is enough, and of each
          that may be full before its side is.
        """
        raise NotImplementedError

    def check_packing(self) -> None:
        """Raises UserError if records cannot be packed; called before anything is prepared."""
        if type(self).max_packed_lengths is Batches.max_packed_lengths:
            raise UserError(f"data.packing: objective.kind: {self.h.kind} cannot put several records into a row")

    def text_tokens(self, records: int, tokens: int) -> int:
        """Tokens of text in records, without added tokens and without tokens shared with the record before.

        Args:
          records: how many.
          tokens: ids that they hold, together.

        Returns:
          The number that equal budgets of a study count, whatever becomes of the text.
        """
        return tokens

    def static_mask_copies(self) -> int | None:
        """Number of static mask copies: epoch e uses the noise of copy e mod this; None: new noise every epoch."""
        return None

    def degenerate(self, batch: Arrays) -> dict[str, np.ndarray]:
        """Ways in which a text of a batch may teach the model nothing.

        Args:
          batch: the features that `features` names.

        Returns:
          {what is wrong, and what to do about it: of each text whether it is so, bool [texts]}: a run starts with a
          warning where it is so of most.
        """
        return {}


@dataclasses.dataclass(frozen=True)
class Loss:
    """Computes the loss of an objective, a pure function of parameters and batch. It knows nothing of where batches
    come from."""

    h: Objective
    """The hyperparameters."""

    def heads(self, model: ModelConfig) -> Mapping[str, Head | Network]:
        """What it needs beyond the backbone, by name: a call finds each in `model.heads`.

        Args:
          model: of the backbone.
        """
        return {}

    def network(self, model: ModelConfig) -> Network:
        """The backbone with the heads: what is trained, saved and exported."""
        return Network(model.build(), self.heads(model))

    def scorer(self, model: Bound) -> Bound:
        """The part of a bound network that scores the vocabulary: all of it, but in replaced-token detection."""
        return model

    def coefficients(self) -> dict[str, float]:
        """{loss part: its weight in the total}."""
        raise NotImplementedError

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Σ of the weights of each loss part: a function of the batch alone, known before any microbatch runs."""
        raise NotImplementedError

    def __call__(self, model: Bound, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        """Σ over the (micro)batch of each loss part and of each metric.

        Args:
          model: a backbone with its heads, bound to parameters and random keys (`jaxpt.models.network.Network.bind`);
            without keys there is no dropout (evaluation).
          batch: the features that `Batches.features` names, and in evaluation `eval_mask`.

        An objective with teachers is given them as well: `teachers={name: (network, parameters)}`.

        Returns:
          ({part: Σ weighted loss}, {metric: (Σ weighted value, Σ weight)}). The trainer divides each part by its
          `weights` over the whole global batch. A part that `coefficients` does not know is the model's own
          (`Output.aux`): it counts as it is and is divided by `tokens`. A loss that carries has a parameter
          `carry`, and where that is given returns the next one as well; no gradient passes through it.
        """
        output = self.output(model, batch)
        sums, metrics = self.loss_from_hidden(model, output.hidden, batch)
        return {**sums, **output.aux}, metrics

    def output(self, model: Bound, batch: Batch) -> Output:
        """The model's output for a batch; `loss_from_hidden` takes its hidden states."""
        raise NotImplementedError

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        """The loss of the hidden states that `output` gave."""
        raise NotImplementedError

    @property
    def carries(self) -> bool:
        """True if per-row state is carried from one batch to the next."""
        return False

    def carry(self, network: Network, rows: int) -> Any:
        """Shapes of the state that is carried from one batch to the next: zeros at the start, then what a call returns.

        Args:
          network: what is trained.
          rows: rows of a batch.

        Returns:
          A tree of `jax.ShapeDtypeStruct`s [rows, ...]; None if nothing is carried.
        """
        return None

    def teachers(self) -> dict[str, str]:
        """{name: path} of the teachers, models that it uses and does not train: a run_dir, one of its
        `checkpoints/STEP`, or a Hugging Face directory."""
        return {}

    def check_teachers(self, model: ModelConfig, length: int, teachers: Mapping[str, Network]) -> None:
        """Raises UserError if the teachers do not fit the model that is trained."""

    def without_teachers(self) -> Objective:
        """The objective without its teachers: evaluation uses it when they are not available."""
        return self.h


@dataclasses.dataclass(frozen=True)
class Judge:
    """Judges a trained model: at which target positions, beside which trivial predictor."""

    h: Objective
    """The hyperparameters."""

    baseline: ClassVar[str]
    """The trivial predictor that a model must beat: "unigram" or "bigram", functions of `jaxpt.evals.baseline`, or the
    name of the one that `baseline_loss` computes."""
    target_name: ClassVar[str]
    """The target positions on which model and baseline are compared, in words."""

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        """Weights, in the shape of the targets, of the positions on which model and baseline are compared.

        Evaluation adds them to the batch as `eval_mask`; the loss then gives the metric `target_loss`.
        """
        raise NotImplementedError

    def baseline_loss(self, validation: Iterable[Arrays]) -> float:
        """The loss of a trivial predictor that `jaxpt.evals.baseline` does not have; called for its name alone.

        Args:
          validation: the batches of the validation split, with `eval_mask`.

        Returns:
          Nats per target.
        """
        raise NotImplementedError

    def report_lines(self, means: Mapping[str, float]) -> list[str]:
        """Lines for the user on parts of the loss that have their own trivial predictor.

        Args:
          means: those of a validation, by name.
        """
        return []


class DecoderLoss(Loss):
    """The cross-entropy of a decoder's targets alone."""

    def coefficients(self) -> dict[str, float]:
        return {self.h.kind: 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {self.h.kind: batch["decoder_loss_weights"].sum()}

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        total, metrics = token_loss(
            model.lm_states(hidden),
            model.output_projection(),
            batch["decoder_target_tokens"],
            batch["decoder_loss_weights"],
            eval_mask=batch.get("eval_mask"),
            z_loss=self.h.z_loss,
            chunk=self.h.loss_chunk,
        )
        return {self.h.kind: total}, metrics


def carried_loss(
    objective: Objective, model: Bound, batch: Batch, carry: Any, **options: Any
) -> tuple[dict[str, jax.Array], Metrics, Any]:
    """`Objective.loss` with the carried state; None for objectives that carry nothing.

    Returns:
      (sums, metrics, the next carry).
    """
    if carry is None:
        return *objective.loss(model, batch, **options), None
    return objective.loss(model, batch, carry=carry, **options)  # type: ignore[call-arg, return-value]


def tokens(batch: Batch) -> jax.Array | int:
    """Tokens of a batch without padding, on all sides: the denominator of the model's own sums (`Output.aux`)."""
    sides = ("encoder_segment_ids", "decoder_segment_ids")
    return sum((batch[name] > 0).sum() for name in sides if name in batch)
