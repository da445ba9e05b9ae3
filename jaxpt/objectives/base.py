"""Base classes of objectives. An objective holds frozen hyperparameters and builds three independent components:

    objective.batches    names the preprocessors and the features that they make     does not use JAX
    objective.loss       computes the loss of a batch                                does not read data
    objective.judge      names the trivial baseline and the positions to compare     used by evaluators

Each component is a frozen dataclass with one field `h`, the hyperparameters. Values that two components need are
methods of the hyperparameters. An objective that wraps another one (distillation) replaces the loss and reuses the
batches and the judge.

Only this package connects data and models. Preprocessors are referenced by name and imported in `jaxpt.data`, so this
package does not need TensorFlow.

Batch features, all [batch, ...], by their SeqIO names:
  encoder_input_tokens, encoder_segment_ids, encoder_positions            int32 [batch, length]
  encoder_token_types                                                     int32 [batch, length]       (BERT)
  encoder_ranks (a token attends to tokens of equal or lower rank)        int32 [batch, length]       (UniLM)
  decoder_input_tokens, decoder_target_tokens, decoder_segment_ids, decoder_positions   int32 [batch, length]
  decoder_loss_weights                                                    float32 [batch, length]
  decoder_prefix (1 at tokens visible to their whole segment)             int32 [batch, length]       (prefix LM)
  decoder_answers (1 where the target is an answer's token)               int32 [batch, length]       (dialogue)
  encoder_order (rank in the factorization order)                         int32 [batch, length]       (XLNet)
  masked_positions, masked_targets int32, masked_weights float32          [batch, max_predictions]
  masked_kinds (index of the attention mask of the example)               int32 [batch, max_predictions]  (UniLM)
  next_sentence_labels int32, next_sentence_weights float32               [batch]
  sentence_order_labels int32, sentence_order_weights float32             [batch]
Segment ids are 0 on padding and number the packed examples of a row from 1; positions restart at 0 in each example. A
row of zeros has zero weight in every loss and metric: evaluation pads its last batch with such rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from jaxpt.config import ModelConfig, ObjectiveConfig, SourceConfig, kinds, resolve
from jaxpt.data.calls import Transforms, Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.network import Head, Network
from jaxpt.models.output import Output
from jaxpt.objectives import checks
from jaxpt.objectives.losses import token_loss

Batch = dict[str, jax.Array]
Arrays = Mapping[str, np.ndarray]
Features = dict[str, tuple[tuple[int, ...], str]]
"""{feature: (shape without the batch, "int32" or "float32")}."""
Metrics = dict[str, tuple[jax.Array, jax.Array]]
"""{metric: (Σ weighted value, Σ weight)}."""


def undefined(part: Any, name: str) -> UserError:
    """What is said where someone's own subclass lacks something."""
    base = next(cls.__name__ for cls in type(part).__mro__ if cls.__module__ == __name__)
    return UserError(
        f"class {type(part).__name__} of {type(part).__module__} must define `{name}`; the docstring of "
        f"{base}{'' if name == 'family' else f'.{name}'} in jaxpt/objectives/base.py says what it is"
    )


class Objective(ObjectiveConfig):
    """Base of all objectives: the hyperparameters and the three components. A module defines exactly one subclass."""

    family: ClassVar[str]
    """Model family: "encoder", "decoder" or "encoder_decoder"."""

    @property
    def batches(self) -> Batches:
        """Preprocessors and features."""
        raise undefined(self, "batches")

    @property
    def loss(self) -> Loss:
        """Loss and metrics of a batch."""
        raise undefined(self, "loss")

    @property
    def judge(self) -> Judge:
        """Baseline and evaluated positions."""
        raise undefined(self, "judge")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        """Raises UserError for invalid settings; called before training starts."""
        raise undefined(self, "check")

    def check_family(self, model: ModelConfig) -> None:
        """Raises UserError if the model belongs to another family, or a component is none; called before any data is
        read."""
        if not hasattr(self, "family"):
            raise undefined(self, "family")
        for name, base in (("batches", Batches), ("loss", Loss), ("judge", Judge)):
            checks.check_part(self.kind, name, getattr(self, name), base)
        if model.family != self.family:
            raise UserError(
                f"objective.kind: {self.kind} requires a model of family {self.family}, "
                f"but model.kind: {model.kind} is of family {model.family}; "
                f"for it: objective.kind: {', '.join(_kinds_of(model.family))}"
            )

    def vocabulary_path(self) -> Path | None:
        """Default vocabulary path if the recipe names none; None if the objective has no default."""
        return None


def _kinds_of(family: str) -> list[str]:
    """The objectives that train models of a family, for messages."""
    package = "jaxpt.objectives"
    classes = {kind: resolve(kind, package, Objective) for kind in kinds(package, Objective)}
    return [kind for kind, cls in classes.items() if getattr(cls, "family", None) == family]


@dataclasses.dataclass(frozen=True)
class Batches:
    """Defines the batches of an objective: preprocessors, features and their shapes. Does not use JAX."""

    h: Objective
    """The hyperparameters."""

    def features(self, length: int) -> Features:
        """Shape (without the batch) and dtype of each feature of a batch.

        Args:
          length: `data.length`, in tokens.

        Returns:
          {name: (shape, "int32" or "float32")}.
        """
        raise undefined(self, "features")

    def transforms(self, length: int, vocabulary: Vocabulary, seed: int) -> Transforms:
        """The preprocessors that make the features, with all their arguments."""
        raise undefined(self, "transforms")

    uses_chat_template: ClassVar[bool] = False
    """True if records depend on the tokenizer's chat template."""

    def chat_template(self) -> str | None:
        """Jinja of the chat template that the run's tokenizer is given; None: it keeps its own."""
        return None

    def examples(self, length: int) -> int | None:
        """Maximum number of target tokens if the input is examples of a SeqIO Task; None if it is documents."""
        return None

    def check_source(self, source: SourceConfig) -> None:
        """Raises UserError if the objective cannot use the source; called before any data is read."""
        if source.fields is not None:
            raise UserError(
                f"data.fields: objective.kind: {self.h.kind} reads one text field, not two; set data.field instead"
            )

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        """Upper bound of the tokens that each record occupies in a packed row; `data.packing` uses it.

        Args:
          lengths: {feature of a record: its lengths, int [records]}.

        Returns:
          {feature of a batch: int [records]}; the capacity is the length in `features`. Include one feature of the
          encoder, one of the decoder, and every feature that can fill up before them (masked positions).
        """
        raise NotImplementedError

    def check_packing(self) -> None:
        """Raises UserError if packing is not supported; called before data is prepared."""
        if type(self).max_packed_lengths is Batches.max_packed_lengths:
            raise UserError(
                f"data.packing: objective.kind: {self.h.kind} does not support packing; remove data.packing"
            )

    def placed(self, name: str, online: Callable[..., Any], length: int) -> Callable[..., Any]:
        """What makes rows of the batch, from what makes those of one task's own batch.

        Args:
          name: of the task, one of several.
          online: (records, keys, packs) → {feature: array [rows, ...]}, of `features` of the task's objective.
          length: `data.length`, in tokens.

        Returns:
          The same of `features` here; by default they are equal.
        """
        return online

    def text_tokens(self, records: int, tokens: int) -> int:
        """Number of text tokens in records, without special tokens and without tokens that overlap between records.

        Args:
          records: number of records.
          tokens: total number of token ids in them.

        Returns:
          The count that a study's token budget uses; it does not depend on masking or noise.
        """
        return tokens

    def passes(self) -> int:
        """How often the records hold each document."""
        return 1

    def static_mask_copies(self) -> int | None:
        """Number n of static mask copies: epoch e uses the noise of copy e mod n. None: new noise in every epoch."""
        return None

    def degenerate(self, batch: Arrays) -> dict[str, np.ndarray]:
        """Finds examples that give the model no training signal.

        Args:
          batch: the features that `features` names.

        Returns:
          {problem and remedy: True for each affected example, bool [examples]}. A run warns at the start if most
          examples are affected.
        """
        return {}


@dataclasses.dataclass(frozen=True)
class Loss:
    """Computes the loss of an objective: a pure function of parameters and batch."""

    h: Objective
    """The hyperparameters."""

    def heads(self, model: ModelConfig) -> Mapping[str, Head | Network]:
        """The heads that the loss adds to the backbone, by name; a call finds them in `model.heads`.

        Args:
          model: configuration of the backbone.
        """
        return {}

    def network(self, model: ModelConfig) -> Network:
        """The backbone with its heads, which is trained, saved and exported."""
        heads = self.heads(model)
        checks.check_heads(self.h.kind, heads)
        return Network(model.build(), heads)

    def scorer(self, model: Bound) -> Bound:
        """The bound network that predicts vocabulary tokens: the whole network, or its generator (ELECTRA)."""
        return model

    def coefficients(self) -> dict[str, float]:
        """{loss part: its coefficient in the total loss}."""
        raise undefined(self, "coefficients")

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Σ of the weights of each loss part; depends only on the batch, so it is known before any microbatch runs."""
        raise undefined(self, "weights")

    def __call__(self, model: Bound, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        """Σ over the (micro)batch of each loss part and of each metric.

        Args:
          model: a backbone with its heads, bound to parameters and random keys (`jaxpt.models.network.Network.bind`).
            Dropout is off without keys (evaluation).
          batch: the features that `Batches.features` names; in evaluation also `eval_mask`.
          teachers: {name: (network, parameters)}, only if `teachers()` is not empty.
          carry: the state from the previous batch, only if `carries` is true.

        Returns:
          ({part: Σ weighted loss}, {metric: (Σ weighted value, Σ weight)}), and the next carry if `carry` was passed;
          no gradient flows through it. The trainer divides each part by its `weights` over the whole global batch.
          Parts that are not in `coefficients` are auxiliary losses of the model (`Output.aux`): they have coefficient 1
          and are divided by `tokens`.
        """
        output = self.output(model, batch)
        checks.check_output(self.h.kind, output)
        loss_outputs = self.loss_from_hidden(model, output.hidden, batch)
        checks.check_sums(self.h.kind, "loss_from_hidden", loss_outputs)
        return {**loss_outputs[0], **output.aux}, loss_outputs[1]

    def output(self, model: Bound, batch: Batch) -> Output:
        """The model's output for a batch; its hidden states are the input of `loss_from_hidden`."""
        raise undefined(self, "output")

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        """Loss parts and metrics from the hidden states that `output` returned."""
        raise undefined(self, "loss_from_hidden")

    @property
    def carries(self) -> bool:
        """True if per-row state is carried from one batch to the next."""
        return False

    def carry(self, network: Network, rows: int) -> Any:
        """Shapes of the state that is carried from one batch to the next. The first carry is all zeros.

        Args:
          network: the network that is trained.
          rows: batch size.

        Returns:
          A tree of `jax.ShapeDtypeStruct`s [rows, ...]; None if nothing is carried.
        """
        return None

    def teachers(self) -> dict[str, str]:
        """{name: path} of the teachers, which are not trained. A path is a run_dir, RUN_DIR/checkpoints/STEP or a
        Hugging Face directory."""
        return {}

    def check_teachers(self, model: ModelConfig, length: int, teachers: Mapping[str, Network]) -> None:
        """Raises UserError if a teacher is incompatible with the model that is trained."""

    def without_teachers(self) -> Objective:
        """The objective without its teachers: evaluation uses it when they are not available."""
        return self.h


@dataclasses.dataclass(frozen=True)
class Judge:
    """Defines how a trained model is compared with a trivial predictor."""

    h: Objective
    """The hyperparameters."""

    baseline: ClassVar[str]
    """Name of the trivial predictor that a model must beat: "unigram" or "bigram" (`jaxpt.evals.baseline`), or one that
    `baseline_loss` computes."""
    target_name: ClassVar[str]
    """Description of the compared target positions, for messages."""

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        """Weights of the target positions at which model and baseline are compared, in the shape of the targets.

        Evaluation adds them to the batch as `eval_mask`; the loss then returns the metric `target_loss`.
        """
        raise undefined(self, "eval_mask")

    def baseline_loss(self, validation: Iterable[Arrays]) -> float:
        """The loss of a trivial predictor that `jaxpt.evals.baseline` does not have.

        Args:
          validation: the batches of the validation split, with `eval_mask`.

        Returns:
          Nats per target.
        """
        raise undefined(self, "baseline_loss")

    def report_lines(self, means: Mapping[str, float]) -> list[str]:
        """Report lines for loss parts that have another trivial predictor.

        Args:
          means: {metric: mean over the validation split}.
        """
        return []


class DecoderLoss(Loss):
    """Cross-entropy of the decoder's targets."""

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
            label_smoothing=getattr(self.h, "label_smoothing", 0.0),  # of objectives on given targets
            chunk=self.h.loss_chunk,
        )
        return {self.h.kind: total}, metrics


def carried_loss(
    objective: Objective, model: Bound, batch: Batch, carry: Any, **options: Any
) -> tuple[dict[str, jax.Array], Metrics, Any]:
    """Calls `objective.loss` with the carried state; `carry` is None if the objective carries none.

    Returns:
      (sums, metrics, the next carry).

    Raises:
      UserError: the loss returns something else.
    """
    if carry is not None:
        options["carry"] = carry
    loss_outputs = objective.loss(model, batch, **options)
    checks.check_sums(objective.kind, "__call__", loss_outputs, 2 if carry is None else 3)
    return (*loss_outputs, None)[:3]  # type: ignore[return-value]


def tokens(batch: Batch) -> jax.Array | int:
    """Non-padding tokens of a batch, encoder and decoder together: the denominator of auxiliary losses."""
    sides = ("encoder_segment_ids", "decoder_segment_ids")
    return sum((batch[name] > 0).sum() for name in sides if name in batch)
