"""A head that gives each choice of a row one logit; the softmax is over the choices.

    row       She opens the box. / It rains. | It is empty.
    lines     [CLS] She opens the box. [SEP] It rains. [SEP]         logit s₁ = pooler(x) · w + b
              [CLS] She opens the box. [SEP] It is empty. [SEP]      logit s₂, x: the state of [CLS] (or the last token)
    loss      −log softmax(s₁ … s_C)[right choice]

A row of a batch is C lines of `data.length` tokens end to end; the model reads [B·C, L]. With `data.packing` a line
has the k-th choice of several examples. A choice that a row does not have is left out of its softmax.
Papers: https://arxiv.org/abs/1808.05326 (SWAG), GPT-1 (decoders: the last token's state)

Shapes: B rows · C most choices of a row · L length of a line · D width · N examples of a row
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpt.config import HeadName, ModelConfig
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.data.labelled import rows
from jaxpt.data.labelled.choices import ChoicesEncoder, rows_of_choices
from jaxpt.data.spec import Arrays, Features
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes
from jaxpt.models.output import Output
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, batch_feature
from jaxpt.objectives.labelled import Collate, TextHead

_OUT = -1e9  # the logit of a choice that a row does not have


class MultipleChoice(TextHead):
    """Hyperparameters of a head that compares choices."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    head: ClassVar[HeadName] = "choice"
    task_kinds: ClassVar[tuple[str, ...]] = ("multiple_choice",)

    def answer(self, outputs: Sequence[Any], row: Any, where: str) -> dict[str, Any]:
        return self.task.answer(outputs, row, where)

    def row_length(self, length: int) -> int:
        return length * self.task.most_choices

    def label_features(self, length: int) -> Features:
        n, c = self.most_examples(length), self.task.most_choices
        return {
            "choice_positions": ((n, c), "int32"), "choice_weights": ((n, c), "float32"),
            "labels": ((n,), "int32"), "label_weights": ((n,), "float32"),
        }  # fmt: skip

    def encoder(self, length: int, vocabulary: Vocabulary) -> ChoicesEncoder:
        return ChoicesEncoder(self.task, self.layout(vocabulary), length, self.truncate)

    def to_features(self, length: int, vocabulary: Vocabulary) -> Call:
        options = self.row_options(self.row_length(length), self.most_examples(length), vocabulary)
        return Call(preprocessors.features.choices, options)

    def collate_fn(self, vocabulary: Vocabulary) -> Collate:
        return lambda records, length: rows_of_choices(
            rows.together(records), **self.row_options(length, 1, vocabulary)
        )

    def row_options(self, length: int, examples: int, vocabulary: Vocabulary) -> dict[str, Any]:
        choices = {"choices": self.task.most_choices, "pooled": self.layout(vocabulary).pooled}
        return super().row_options(length, examples, vocabulary) | choices

    def split_outputs(self, outputs: np.ndarray, records: Sequence[Any]) -> list[np.ndarray]:
        return [row[:1, : np.count_nonzero(record["sizes"])] for row, record in zip(outputs, records)]

    def output(self, model: Bound, batch: Batch) -> Output:
        texts = ("encoder_", "decoder_")
        return super().output(model, {name: self.lines(x) for name, x in batch.items() if name.startswith(texts)})

    def outputs(self, model: Bound, hidden: jax.Array, batch: Batch) -> jax.Array:
        positions_BxNxC = batch["choice_positions"]
        b, n, c = positions_BxNxC.shape
        positions_BCxN = positions_BxNxC.transpose(0, 2, 1).reshape(b * c, n)
        segments_BCxL = self.lines(batch[f"{self.side}_segment_ids"])
        states_BCxNxD = self.text_states(model, hidden, positions_BCxN, segments_BCxL)
        logits_BxNxC = classes.apply(model, "choice", states_BCxNxD).reshape(b, c, n).transpose(0, 2, 1)
        return jnp.where(batch["choice_weights"] > 0, logits_BxNxC, _OUT)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        logits_BxNxC, labels = self.outputs(model, hidden, batch), batch["labels"]
        loss_BxN = optax.softmax_cross_entropy_with_integer_labels(logits_BxNxC, labels)
        return self.sums_and_metrics(
            loss_BxN, logits_BxNxC.argmax(-1) == labels, batch, **self.lm_part(model, hidden, batch)
        )

    def lines(self, x: jax.Array) -> jax.Array:
        """[B, C·L] → [B·C, L]"""
        b, length = x.shape
        return x.reshape(b * self.task.most_choices, length // self.task.most_choices)

    @property
    def baseline(self) -> Baseline:
        """A guess: ln of the number of choices."""

        def uniform_loss(validation: Iterable[Arrays]) -> float:
            choice_counts = [batch["choice_weights"].sum(-1)[batch["eval_mask"] > 0] for batch in validation]
            return float(np.log(np.concatenate(choice_counts)).mean())

        return Baseline("uniform", "labels", batch_feature("label_weights"), uniform_loss)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if self.layout(vocabulary).room(length, 2) < 2:
            raise UserError(f"data.length: {length} leaves no room for two texts beside the special tokens")
