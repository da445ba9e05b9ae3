"""Distillation: a student learns the task of another objective and the predictions of a teacher, which is not trained.

    total = 5 · τ² · KL(teacher ‖ student) + 2 · task + 1 · (1 − cos(hidden_teacher, hidden_student))

with both distributions softened by the temperature τ = 2. `of` is the objective that makes the examples and computes
the task loss, with one forward pass (masked LM for DistilBERT, causal LM for DistilGPT2). As in the released code, the
KL divergence and the cosine distance are means over all non-padding positions (`positions: targets`, the released
`restrict_ce_to_mask`: KL only at target positions). Paper: https://arxiv.org/abs/1910.01108
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from jaxpt.config import AnyObjective, ModelConfig, PositiveFloat, SourceConfig, execution, run_dir_of
from jaxpt.data.calls import Vocabulary
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.network import Head, Network
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, Objective
from jaxpt.objectives.formats import Format
from jaxpt.objectives.losses import cosine_distance, distillation_kl
from jaxpt.objectives.masked_lm import MaskedLM

Coefficient = Annotated[float, Field(ge=0)]


class Distillation(Objective):
    """Hyperparameters of distillation; the defaults are DistilBERT's."""

    kind: Literal["distillation"] = "distillation"
    teacher: str = execution(...)
    """A run_dir (its newest checkpoint; of a finished run with a task the best), RUN_DIR/checkpoints/STEP, a Hugging
    Face directory, or OWNER/NAME on the hub. The path may change; a resume with other teacher weights is refused. The
    student must use the teacher's vocabulary (the default)."""
    of: AnyObjective = MaskedLM(next_sentence=False)
    """The task: an objective, with all its keys."""
    temperature: PositiveFloat = 2.0
    """τ: the logits of teacher and student are divided by it."""
    kl_weight: Coefficient = 5.0
    """Coefficient of τ² · KL in the total."""
    task_weight: Coefficient = 2.0
    """Coefficient of the task loss."""
    cosine_weight: Coefficient = 1.0
    """Coefficient of the cosine distance of the last hidden states, which must have equal widths; 0 disables it."""
    positions: Literal["all", "targets"] = "all"
    """Positions of the KL divergence: all non-padding tokens, or only the targets of the task."""

    @property
    def family(self) -> str:  # type: ignore[override]
        return self.of.family

    def data_spec(self, length: int) -> DataSpec:
        return self.of.data_spec(length)

    def check_source(self, source: SourceConfig) -> None:
        self.of.check_source(source)

    def text_format(self, model: ModelConfig, vocabulary: Vocabulary, **options: Any) -> Format:
        return self.of.text_format(model, vocabulary, **options)

    def heads(self, model: ModelConfig) -> Mapping[str, Head | Network]:
        return self.of.heads(model)

    @property
    def side(self) -> str:
        """Prefix of the features of the predicting stack: "encoder" or "decoder"."""
        return "encoder" if self.family == "encoder" else "decoder"

    def coefficients(self) -> dict[str, float]:
        task = {part: self.task_weight * c for part, c in self.of.coefficients().items()}
        return {"kl": self.kl_weight, **task} | ({"cosine": self.cosine_weight} if self.cosine_weight else {})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        sums = {"kl": self._kl_weights(batch).sum(), **self.of.weights(batch)}
        return sums | ({"cosine": self._token_mask(batch).sum()} if self.cosine_weight else {})

    def loss(self, model: Bound, batch: Batch, *, teachers: Mapping[str, tuple[Network, Any]]) -> LossOutputs:
        network, params = teachers["teacher"]
        teacher = network.bind(params)
        output = self.of.output(model, batch)
        mine, theirs = output.hidden, jax.lax.stop_gradient(self.of.output(teacher, batch).hidden)
        sums, metrics = self.of.loss_from_hidden(model, mine, batch)
        sums["kl"], agreement = distillation_kl(
            model.lm_states(self._at_kl_positions(mine, batch)),
            model.output_projection(),
            teacher.lm_states(self._at_kl_positions(theirs, batch)),
            teacher.output_projection(),
            self._kl_weights(batch),
            temperature=self.temperature,
            chunk=self.loss_chunk,
        )
        if self.cosine_weight:
            sums["cosine"] = (cosine_distance(mine, theirs) * self._token_mask(batch)).sum()
        return {**sums, **output.aux}, {**metrics, **agreement, **output.metrics}

    def _token_mask(self, batch: Batch) -> jax.Array:
        """1.0 on non-padding tokens of the predicting stack."""
        return (batch[f"{self.side}_segment_ids"] > 0).astype("float32")

    def _kl_weights(self, batch: Batch) -> jax.Array:
        if self.positions == "all":
            return self._token_mask(batch)
        return (batch["masked_weights" if self.side == "encoder" else "decoder_loss_weights"] > 0).astype("float32")

    def _at_kl_positions(self, hidden: jax.Array, batch: Batch) -> jax.Array:
        """The hidden states at the positions of the KL divergence: [batch, positions, width]."""
        if self.positions == "all" or self.side == "decoder":
            return hidden
        return jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)

    def teachers(self) -> dict[str, str]:
        return {"teacher": self.teacher}

    def missing_teacher_rows(self, teachers: Mapping[str, Network]) -> tuple[str, ...]:
        types, wanted = getattr(teachers["teacher"].config, "token_types", 0), self.of.num_token_types
        if not 0 < types < wanted:
            return ()
        return (
            f"objective.teacher: {self.teacher}: has {types} token types, but the inputs of objective.of.kind: "
            f"{self.of.kind} have {wanted}; take another teacher or task",
        )

    def without_teachers(self) -> Objective:
        return self.of

    def check_teachers(self, model: ModelConfig, length: int, teachers: Mapping[str, Network]) -> None:
        network, name = teachers["teacher"], f"objective.teacher: {self.teacher}"
        teacher = network.config
        if teacher.family != model.family:
            raise UserError(
                f"{name}: is of family {teacher.family}, but model.kind: {model.kind} is of family {model.family}"
            )
        if teacher.family == "encoder" and teacher.masked_lm_options and "masked_lm" not in network.heads:
            raise UserError(f"{name}: has no masked-LM head, so it has no vocabulary logits to distil")
        self._check_arguments(name, length, network)
        if teacher.vocab_size != model.vocab_size:
            raise UserError(f"{name}: has {teacher.vocab_size} token ids, but model.vocab_size is {model.vocab_size}")
        if teacher.position_limit is not None and length > teacher.position_limit:
            raise UserError(f"{name}: has {teacher.position_limit} positions, but data.length is {length}")
        if self.cosine_weight and teacher.embed_dim != model.embed_dim:
            raise UserError(
                f"{name}: has width {teacher.embed_dim}, but model.embed_dim is {model.embed_dim}; for the cosine loss "
                "they must agree; "
                "set objective.cosine_weight=0"
            )

    def _check_arguments(self, name: str, length: int, network: Network) -> None:
        """Raises UserError if the task's batches have a feature that the teacher's stack does not take."""
        features, model = self.of.data_spec(length).features, type(network.model)
        for feature, method, argument in (("encoder_ranks", "encode", "ranks"), ("decoder_prefix", "decode", "prefix")):
            if feature in features and argument not in inspect.signature(getattr(model, method)).parameters:
                raise UserError(
                    f"{name}: its kind, {network.config.kind}, does not support objective.of.kind: {self.of.kind}: its "
                    f"{method} has no argument {argument}; take another teacher or task"
                )

    @property
    def baseline(self) -> Baseline:
        return self.of.baseline

    def idle_settings(self) -> tuple[str, ...]:
        mine = "objective.z_loss: not used by distillation; set objective.of.z_loss instead"
        of_task = (line.replace("objective.", "objective.of.", 1) for line in self.of.idle_settings())
        return (*of_task, *([mine] if self.z_loss else ()))

    def missing_rows(self, model: ModelConfig, length: int) -> tuple[str, ...]:
        of_task = self.of.missing_rows(model, length)
        return tuple(line.replace("objective.", "objective.of.") for line in of_task)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if type(self.of).loss is not Objective.loss:
            raise UserError(
                f"objective.of.kind: {self.of.kind} cannot be distilled: it needs more than one forward pass"
            )
        self.of.check(model, length, vocabulary)

    def vocabulary_path(self) -> Path:
        """The teacher's vocabulary."""
        run_dir = run_dir_of(self.teacher)
        return run_dir / "tokenizer" if (run_dir / "tokenizer").is_dir() else Path(self.teacher)
