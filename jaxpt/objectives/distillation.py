"""Distillation: a student learns another objective's task, and to answer as a teacher does, which stays as it is.

    total = 5 · τ² · KL(teacher ‖ student) + 2 · task + 1 · (1 − cos(hidden_teacher, hidden_student))

with both distributions softened by τ = 2. `of` is the objective that makes the examples and gives the task's loss: any
one that reads its predictions from one pass (masked LM for DistilBERT, causal LM for DistilGPT2). As in the released
code the divergence is a mean over all positions that are not padding (`positions: targets`, its `restrict_ce_to_mask`:
over the target positions alone), and so is the cosine. Paper: https://arxiv.org/abs/1910.01108
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from jaxpt.config import AnyObjective, ModelConfig, PositiveFloat, execution
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.losses import cosine_distance, distillation_kl
from jaxpt.models.base import Bound
from jaxpt.models.network import Head, Network
from jaxpt.objectives.base import Batch, Batches, Judge, Loss, Metrics, Objective
from jaxpt.objectives.masked_lm import MaskedLM

Coefficient = Annotated[float, Field(ge=0)]


class Distillation(Objective):
    """Hyperparameters of distillation; the defaults are DistilBERT's."""

    kind: Literal["distillation"] = "distillation"
    teacher: str = execution(...)
    """A run_dir (its newest checkpoint), one of its `checkpoints/STEP`, or a directory in Hugging Face's form. It may
    move: a resume is refused where its weights are others. Its vocabulary is the student's, and the default one."""
    of: AnyObjective = MaskedLM(next_sentence=False)
    """The objective whose examples and loss these are, with all its own keys."""
    temperature: PositiveFloat = 2.0
    """τ, by which both sides' logits are divided."""
    kl_weight: Coefficient = 5.0
    """Of the divergence (times τ²) in the total."""
    task_weight: Coefficient = 2.0
    """Of the loss of `of`."""
    cosine_weight: Coefficient = 1.0
    """Of the cosine distance of the last hidden states, whose widths have to be equal; 0: none."""
    positions: Literal["all", "targets"] = "all"
    """Where the divergence is taken: at all tokens but padding, or at the targets of `of` alone."""

    @property
    def family(self) -> str:  # type: ignore[override]
        return self.of.family

    @property
    def batches(self) -> Batches:
        return self.of.batches

    @property
    def loss(self) -> DistillationLoss:
        return DistillationLoss(self)

    @property
    def judge(self) -> Judge:
        return self.of.judge

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if type(self.of.loss).__call__ is not Loss.__call__:
            raise UserError(f"objective.of.kind: {self.of.kind} cannot be distilled: it needs more than one pass")
        if self.z_loss:
            raise UserError("objective.z_loss: belongs to the task here; set objective.of.z_loss")
        self.of.check(model, length, vocabulary)

    def vocabulary_path(self) -> Path:
        """The teacher's."""
        path = Path(self.teacher)
        run_dir = path.parent.parent if path.parent.name == "checkpoints" else path
        return run_dir / "tokenizer" if (run_dir / "tokenizer").is_dir() else path


class DistillationLoss(Loss):
    """The loss of `of`, and how far the student's answers and states are from the teacher's."""

    h: Distillation

    def heads(self, model: ModelConfig) -> Mapping[str, Head | Network]:
        return self.h.of.loss.heads(model)

    @property
    def side(self) -> str:
        """The side that predicts, "encoder" or "decoder": the prefix of its features' names."""
        return "encoder" if self.h.family == "encoder" else "decoder"

    def coefficients(self) -> dict[str, float]:
        task = {part: self.h.task_weight * c for part, c in self.h.of.loss.coefficients().items()}
        return {"kl": self.h.kl_weight, **task} | ({"cosine": self.h.cosine_weight} if self.h.cosine_weight else {})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        sums = {"kl": self._divergence_weights(batch).sum(), **self.h.of.loss.weights(batch)}
        return sums | ({"cosine": self._real(batch).sum()} if self.h.cosine_weight else {})

    def __call__(
        self, model: Bound, batch: Batch, *, teachers: Mapping[str, tuple[Network, Any]]
    ) -> tuple[dict[str, jax.Array], Metrics]:
        network, params = teachers["teacher"]
        of, teacher = self.h.of.loss, network.bind(params)
        output = of.output(model, batch)
        mine, theirs = output.hidden, jax.lax.stop_gradient(of.output(teacher, batch).hidden)
        sums, metrics = of.loss_from_hidden(model, mine, batch)
        sums["kl"], agreement = distillation_kl(
            model.lm_states(self._compared(mine, batch)),
            model.output_projection(),
            teacher.lm_states(self._compared(theirs, batch)),
            teacher.output_projection(),
            self._divergence_weights(batch),
            temperature=self.h.temperature,
            chunk=self.h.loss_chunk,
        )
        if self.h.cosine_weight:
            sums["cosine"] = (cosine_distance(mine, theirs) * self._real(batch)).sum()
        return {**sums, **output.aux}, metrics | agreement

    def _real(self, batch: Batch) -> jax.Array:
        """1.0 on what is not padding, on the side that predicts."""
        return (batch[f"{self.side}_segment_ids"] > 0).astype("float32")

    def _divergence_weights(self, batch: Batch) -> jax.Array:
        if self.h.positions == "all":
            return self._real(batch)
        return (batch["masked_weights" if self.side == "encoder" else "decoder_loss_weights"] > 0).astype("float32")

    def _compared(self, hidden: jax.Array, batch: Batch) -> jax.Array:
        """The hidden states at which the divergence is taken: [batch, positions, width]."""
        if self.h.positions == "all" or self.side == "decoder":
            return hidden
        return jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)

    def teachers(self) -> dict[str, str]:
        return {"teacher": self.h.teacher}

    def without_teachers(self) -> Objective:
        return self.h.of

    def check_teachers(self, model: ModelConfig, length: int, teachers: Mapping[str, Network]) -> None:
        network, name = teachers["teacher"], f"objective.teacher: {self.h.teacher}"
        teacher = network.config
        if teacher.family != model.family:
            raise UserError(f"{name}: is of the family {teacher.family}, model.kind: {model.kind} is {model.family}")
        if teacher.family == "encoder" and teacher.masked_lm_options and "masked_lm" not in network.heads:
            raise UserError(f"{name}: has no masked-LM head, so no scores of the vocabulary to teach")
        if teacher.vocab_size != model.vocab_size:
            raise UserError(f"{name}: has {teacher.vocab_size} token ids, model.vocab_size is {model.vocab_size}")
        if teacher.position_limit is not None and length > teacher.position_limit:
            raise UserError(f"{name}: has {teacher.position_limit} positions, data.length is {length}")
        if self.h.cosine_weight and teacher.embed_dim != model.embed_dim:
            raise UserError(
                f"{name}: is {teacher.embed_dim} wide, model.embed_dim is {model.embed_dim}: no cosine between them; "
                "set objective.cosine_weight=0"
            )
