"""Base class of objectives. An objective is one frozen class of hyperparameters that gives:

    objective.data_spec(length)   the features of a batch and the preprocessors that make them: a `DataSpec`, no JAX
    objective.loss(model, batch)  the loss of a batch: a pure function of a bound model and the batch
    objective.baseline            the trivial predictor that a model is compared with, and where: a `Baseline`

An objective that wraps another one (distillation) replaces the loss and passes on the data and the baseline.

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
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import ModelConfig, ObjectiveConfig, SourceConfig, kinds, resolve
from jaxpt.data.calls import Vocabulary
from jaxpt.data.spec import Arrays, DataSpec
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.network import Head, Network
from jaxpt.models.output import Output
from jaxpt.objectives import checks, formats
from jaxpt.objectives.losses import token_loss

Batch = dict[str, jax.Array]
Metrics = dict[str, tuple[jax.Array, jax.Array]]
"""{metric: (Σ weighted value, Σ weight)}."""
LossOutputs = tuple[dict[str, jax.Array], Metrics]
"""({part: Σ weighted loss}, metrics)."""


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A trivial predictor that a trained model must beat."""

    name: str
    """"unigram", "bigram" or "trigram" (`jaxpt.evals.baseline`), or the name of one that `loss` computes."""
    target_name: str
    """Description of the compared target positions, for messages."""
    eval_mask: Callable[[Arrays, Vocabulary], np.ndarray]
    """(batch, vocabulary) → weights of the target positions at which model and baseline are compared, in the shape of
    the targets. Evaluation adds them to the batch as `eval_mask`; the loss then returns the metric `target_loss`."""
    loss: Callable[[Iterable[Arrays]], float] | None = None
    """Batches of the validation split, with `eval_mask` → loss per target; None for unigram, bigram and trigram."""
    report_lines: Callable[[Mapping[str, float]], list[str]] = lambda means: []
    """{metric: mean over the validation split} → report lines for loss parts that have another trivial predictor."""
    feature: str | None = None
    """The feature with the targets that a unigram counts; None: `masked_targets` of an encoder, else
    `decoder_target_tokens`."""
    unit: str = "nats"
    """Of the compared losses."""

    def __post_init__(self) -> None:
        if self.loss is None and self.name not in ("unigram", "bigram", "trigram"):
            raise UserError(
                f"Baseline({self.name!r}) needs `loss`, which computes it; only unigram, bigram and trigram do not"
            )


def batch_feature(name: str) -> Callable[[Arrays, Vocabulary], np.ndarray]:
    """An `eval_mask` that is a feature of the batch."""
    return lambda batch, vocabulary: batch[name]


class Objective(ObjectiveConfig):
    """Base of all objectives: hyperparameters, data, loss and baseline. A module defines exactly one subclass."""

    family: ClassVar[str]
    """Model family: "encoder", "decoder" or "encoder_decoder"."""
    predicts_tokens: ClassVar[bool] = True
    """True if the network is trained to predict tokens; False: it answers by a task head."""

    # ---- data -------------------------------------------------------------------------------------------------------

    def data_spec(self, length: int) -> DataSpec:
        """What the batches are made of.

        Args:
          length: `data.length`, in tokens.
        """
        raise self._undefined("data_spec")

    def check_source(self, source: SourceConfig) -> None:
        """Raises UserError if the objective cannot use the source; called before any data is read."""
        if source.fields is not None:
            raise UserError(
                f"data.fields: objective.kind: {self.kind} reads one text field, not two; set data.field instead"
            )

    def vocabulary_path(self) -> Path | None:
        """Default vocabulary path if the recipe names none; None if the objective has no default."""
        return None

    # ---- loss -------------------------------------------------------------------------------------------------------

    def heads(self, model: ModelConfig) -> Mapping[str, Head | Network]:
        """The heads that the loss adds to the backbone, by name; a loss finds them in `model.heads`.

        Args:
          model: configuration of the backbone.
        """
        return {}

    def network(self, model: ModelConfig) -> Network:
        """The backbone with its heads, which is trained, saved and exported."""
        heads = self.heads(model)
        checks.check_heads(self.kind, heads)
        return Network(model.build(), heads)

    def coefficients(self) -> dict[str, float]:
        """{loss part: its coefficient in the total loss}."""
        raise self._undefined("coefficients")

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Σ of the weights of each loss part; depends only on the batch, so it is known before any microbatch runs."""
        raise self._undefined("weights")

    def loss(self, model: Bound, batch: Batch) -> LossOutputs:
        """Σ over the (micro)batch of each loss part and of each metric.

        Args:
          model: a backbone with its heads, bound to parameters and random keys (`jaxpt.models.network.Network.bind`).
            Dropout is off without keys (evaluation).
          batch: the features of the `DataSpec`; in evaluation also `eval_mask`.

        An objective whose `teachers()` is not empty adds the parameter `*, teachers`: {name: (network, parameters)}.
        One that `carries` adds `carry=None`: the state from the previous batch.

        Returns:
          ({part: Σ weighted loss}, {metric: (Σ weighted value, Σ weight)}), and the next carry if `carry` was passed;
          no gradient flows through it. The trainer divides each part by its `weights` over the whole global batch.
          Parts that are not in `coefficients` are auxiliary losses of the model (`Output.aux`): they have coefficient 1
          and are divided by the number of tokens; those named "encoder_…" and "decoder_…" by the tokens of that side.
        """
        output = self.output(model, batch)
        checks.check_type(self.kind, "output", output, Output)
        loss_outputs = self.loss_from_hidden(model, output.hidden, batch)
        checks.check_sums(self.kind, "loss_from_hidden", loss_outputs)
        return {**loss_outputs[0], **output.aux}, {**loss_outputs[1], **output.metrics}

    def output(self, model: Bound, batch: Batch) -> Output:
        """The model's output for a batch; its hidden states are the input of `loss_from_hidden`."""
        raise self._undefined("output")

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        """Loss parts and metrics from the hidden states that `output` returned."""
        raise self._undefined("loss_from_hidden")

    def vocab_loss(
        self, model: Bound, states: jax.Array, batch: Batch, targets: str, weights: str, **options: Any
    ) -> tuple[jax.Array, Metrics]:
        """`jaxpt.objectives.losses.token_loss` with the settings of the objective.

        Args:
          model: a bound model that predicts vocabulary tokens.
          states: from `model.lm_states`, at the positions of the targets.
          batch: the features.
          targets, weights: names of features.
          **options: more arguments of `token_loss`.
        """
        options |= {"eval_mask": batch.get("eval_mask"), "z_loss": self.z_loss, "chunk": self.loss_chunk}
        return token_loss(states, model.output_projection(), batch[targets], batch[weights], **options)

    @property
    def carries(self) -> bool:
        """True if per-row state is carried from one batch to the next."""
        return False

    def carry_shapes(self, network: Network, rows: int) -> Any:
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

    def missing_teacher_rows(self, teachers: Mapping[str, Network]) -> tuple[str, ...]:
        """As `missing_rows`, of the teachers' tables of token types."""
        return ()

    def without_teachers(self) -> Objective:
        """The objective without its teachers: evaluation uses it when they are not available."""
        return self

    # ---- baseline ---------------------------------------------------------------------------------------------------

    @property
    def baseline(self) -> Baseline:
        """What a trained model is compared with."""
        raise self._undefined("baseline")

    # ---- texts of a trained model -----------------------------------------------------------------------------------

    @property
    def reads_backward(self) -> bool:
        """True if texts are read from their last token to their first."""
        return False

    def text_format(
        self,
        model: ModelConfig,
        vocabulary: Vocabulary,
        *,
        mode: formats.Mode | None = None,
        languages: formats.Languages | None = None,
    ) -> formats.Format:
        """The special tokens around the texts of a network that was trained with this objective.

        Args:
          model: configuration of the backbone.
          vocabulary: vocabulary of the run.
          mode: UL2's mode, whose token begins the encoder's input; other objectives have none.
          languages: those that are read and written (mBART).

        Raises:
          UserError: the vocabulary has no such special token, or mBART's languages are missing.
        """
        if model.family == "encoder":
            return formats.encoder_format(model, vocabulary)
        spec = self.data_spec(formats.LENGTH)
        if model.family == "decoder":
            return formats.Format(prefix_lm="decoder_prefix" in spec.features)
        return formats.encoder_decoder_format(spec, vocabulary)

    def lm_network(self, model: Bound) -> Bound:
        """The bound network that predicts tokens: the whole network, or its generator (ELECTRA).

        Raises:
          UserError: an encoder without a masked-LM head or a query stream.
        """
        if model.config.family == "encoder" and "masked_lm" not in model.heads and not hasattr(model, "streams"):
            raise UserError(
                f"model.kind: {model.config.kind} has no masked-LM head here, so it predicts no tokens; use a "
                "pretrained model that has one, before it was fine-tuned"
            )
        return model

    def check_writes(self, path: object) -> None:
        """Raises UserError where a head was trained, not the prediction of tokens; `path` is the model's."""
        if not self.predicts_tokens:
            raise UserError(
                f"{path}: was fine-tuned with objective.kind: {self.kind}, so it answers by its head and writes no "
                f"text; use jaxpt predict {shlex.quote(str(path))} FILE --out P.jsonl"
            )

    # ---- checks -----------------------------------------------------------------------------------------------------

    def check_settings(self, model: ModelConfig, length: int) -> None:
        """Raises UserError for settings that are wrong with any vocabulary; called before a text is read."""

    def idle_settings(self) -> tuple[str, ...]:
        """A line for each setting that changes nothing; a new run is refused, one that has a checkpoint goes on."""
        if self.predicts_tokens or not self.z_loss:
            return ()
        return (f"objective.z_loss: not used by {self.kind}; remove it",)

    @property
    def num_token_types(self) -> int:
        """Token types of the encoder's features."""
        return 1

    def missing_rows(self, model: ModelConfig, length: int) -> tuple[str, ...]:
        """A line for each table of positions that is too short for what `data.length` does not limit, such as targets
        (their last positions would be one), or of token types (those beyond it would be zeros). A new run is refused,
        one that has a checkpoint goes on."""
        features, limit = self.data_spec(length).features, model.position_limit
        targets = features["decoder_target_tokens"][0][0] if "decoder_target_tokens" in features else 0
        if limit is None or targets <= limit:
            return ()
        key = "objective.targets_length" if "targets_length" in type(self).model_fields else "data.length"
        return (
            f"{key}: targets of {targets} tokens are beyond the position table of model.kind: {model.kind}, which has "
            f"{limit} rows; lower {key} or raise model.max_positions",
        )

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        """Raises UserError for invalid settings; called before training starts."""
        raise self._undefined("check")

    def check_family(self, model: ModelConfig) -> None:
        """Raises UserError if the model belongs to another family, or the baseline is none; called before any data is
        read."""
        if not hasattr(self, "family"):
            raise self._undefined("family")
        checks.check_type(self.kind, "baseline", self.baseline, Baseline)
        if model.family != self.family:
            classes = {kind: resolve(kind, __package__, Objective) for kind in kinds(__package__, Objective)}
            fitting = [kind for kind, cls in classes.items() if getattr(cls, "family", None) == model.family]
            raise UserError(
                f"objective.kind: {self.kind} requires a model of family {self.family}, "
                f"but model.kind: {model.kind} is of family {model.family}; "
                f"for it: objective.kind: {', '.join(fitting)}"
            )

    def check_length(self, length: int, minimum: int) -> None:
        """Raises UserError if `data.length` is less than the objective needs."""
        if length < minimum:
            raise UserError(f"data.length: {length} is too short for {self.kind}, at least {minimum} is needed")

    def check_tokens(self, vocabulary: Vocabulary, *names: str) -> None:
        """Raises UserError if a vocabulary has no such special token: cls, sep, mask or eos."""
        for name in names:
            if getattr(vocabulary, name) is None:
                token, kind = ("EOS", "sentencepiece") if name == "eos" else (f"[{name.upper()}]", "wordpiece")
                raise UserError(f"{self.kind} needs a vocabulary with {token}; data.tokenizer.kind: {kind} has it")

    def _undefined(self, name: str) -> UserError:
        """What is raised where someone's own subclass lacks something."""
        return UserError(
            f"class {type(self).__name__} of {type(self).__module__} must define `{name}`; the docstring of "
            f"Objective.{name} in jaxpt/objectives/base.py says what it is"
        )


class NextToken(Objective):
    """Base of objectives whose loss is the cross-entropy of the decoder's targets, of decoders and encoder-decoders."""

    def coefficients(self) -> dict[str, float]:
        return {self.kind: 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {self.kind: batch["decoder_loss_weights"].sum()}

    def output(self, model: Bound, batch: Batch) -> Output:
        return decode_batch(model, batch)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        targets = "decoder_target_tokens", "decoder_loss_weights"
        smoothing = getattr(self, "label_smoothing", 0.0)  # of objectives on given targets
        total, metrics = self.vocab_loss(model, model.lm_states(hidden), batch, *targets, label_smoothing=smoothing)
        return {self.kind: total}, metrics


def encode_batch(model: Bound, batch: Batch, **options: Any) -> Output:
    """Encodes a batch.

    Args:
      model: a bound model with an encoder.
      batch: features with the prefix `encoder_`.
      **options: more arguments of `encode`.
    """
    names = ("token_types", "segment_ids", "positions", "ranks")
    features = {name: batch[f"encoder_{name}"] for name in names if f"encoder_{name}" in batch}
    return model.encode(batch["encoder_input_tokens"], **features, **options)


def decode_batch(model: Bound, batch: Batch, **options: Any) -> Output:
    """Decodes a batch; the decoder of an encoder-decoder attends to the encoded inputs.

    Args:
      model: a bound model with a decoder.
      batch: features with the prefixes `decoder_` and, of an encoder-decoder, `encoder_`.
      **options: more arguments of `decode`.
    """
    options |= {"segment_ids": batch["decoder_segment_ids"], "positions": batch["decoder_positions"]}
    if "decoder_prefix" in batch:
        options["prefix"] = batch["decoder_prefix"] > 0
    if "encoder_input_tokens" not in batch:
        return model.decode(batch["decoder_input_tokens"], **options)
    encoded, segment_ids = encode_batch(model, batch), batch["encoder_segment_ids"]
    decoded = model.decode(batch["decoder_input_tokens"], encoded.hidden, encoder_segment_ids=segment_ids, **options)
    return decoded.add_aux(encoded.aux, encoded.metrics)


def transpose_carry(memory: Any) -> Any:
    """A carry, rows first, ⇄ a model's memory, layers first."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), memory)


def memory_shapes(network: Network, rows: int, memory_of: Callable[[Bound, jax.Array], Any]) -> Any:
    """Shapes of a carry that is a model's memory: `memory_of(model, tokens [rows, 1])`."""
    tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32)
    return jax.eval_shape(lambda p, x: transpose_carry(memory_of(network.bind(p), x)), network.shapes(), tokens)


def keep_rows(is_kept_B: jax.Array, carry: Any) -> Any:
    """A carry, zero in the other rows."""
    return jax.tree.map(lambda x: jnp.where(is_kept_B.reshape(-1, *[1] * (x.ndim - 1)), x, 0), carry)


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
    checks.check_sums(objective.kind, "loss", loss_outputs, 2 if carry is None else 3)
    return (*loss_outputs, None)[:3]  # type: ignore[return-value]
