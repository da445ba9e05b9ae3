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

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpt.config import HeadName, ModelConfig
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.data.labelled import rows
from jaxpt.data.labelled.choices import ChoicesEncoder, rows_of_choices
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes
from jaxpt.models.output import Output
from jaxpt.objectives.base import Arrays, Batch, Features, Judge, Metrics
from jaxpt.objectives.labelled import LabelledBatches
from jaxpt.objectives.text_head import TextHead, TextHeadLoss

_OUT = -1e9  # the logit of a choice that a row does not have


class MultipleChoice(TextHead):
    """Hyperparameters of a head that compares choices."""

    kind: Literal["multiple_choice"] = "multiple_choice"

    @property
    def batches(self) -> MultipleChoiceBatches:
        return MultipleChoiceBatches(self)

    @property
    def loss(self) -> MultipleChoiceLoss:
        return MultipleChoiceLoss(self)

    @property
    def judge(self) -> MultipleChoiceJudge:
        return MultipleChoiceJudge(self)

    def answer(self, outputs: Sequence[Any], row: Any, where: str) -> dict[str, Any]:
        return self.task.answer(outputs, row, where)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if self.task.kind != self.kind:
            raise UserError(f"objective.kind: {self.kind} does not fit task.kind: {self.task.kind}")
        if self.layout(vocabulary).room(length, 2) < 2:
            raise UserError(f"data.length: {length} leaves no room for two texts beside the special tokens")


class MultipleChoiceBatches(LabelledBatches):
    """Lines of choices, and the index of the right one."""

    h: MultipleChoice

    def features(self, length: int) -> Features:
        return super().features(self.longest(length))

    def label_features(self, length: int) -> Features:
        n, c = self.h.most_examples(length // self.h.task.most_choices), self.h.task.most_choices
        return {
            "choice_positions": ((n, c), "int32"), "choice_weights": ((n, c), "float32"),
            "labels": ((n,), "int32"), "label_weights": ((n,), "float32"),
        }  # fmt: skip

    def encoder(self, length: int, vocabulary: Vocabulary) -> ChoicesEncoder:
        return ChoicesEncoder(self.h.task, self.h.layout(vocabulary), length, self.h.truncate)

    def rows(self, length: int, vocabulary: Vocabulary) -> Call:
        examples = self.h.most_examples(length)
        return Call(preprocessors.features.choices, self._sizes(self.longest(length), examples, vocabulary))

    def rows_of(self, vocabulary: Vocabulary) -> Callable[[Sequence[Any], int], dict[str, np.ndarray]]:
        return lambda records, length: rows_of_choices(rows.together(records), **self._sizes(length, 1, vocabulary))

    def _sizes(self, length: int, examples: int, vocabulary: Vocabulary) -> dict[str, Any]:
        return {
            "length": length, "examples": examples, "choices": self.h.task.most_choices, "side": self.h.side,
            "pooled": self.h.layout(vocabulary).pooled, "start": self.start(vocabulary),
        }  # fmt: skip

    def longest(self, length: int) -> int:
        return length * self.h.task.most_choices

    def split(self, outputs: np.ndarray, records: Sequence[Any]) -> list[np.ndarray]:
        return [row[:1, : np.count_nonzero(record["sizes"])] for row, record in zip(outputs, records)]

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {f"{self.h.side}_input_tokens": lengths["tokens"], "label_weights": np.ones_like(lengths["tokens"])}


class MultipleChoiceLoss(TextHeadLoss):
    """Cross-entropy over the choices of each example."""

    h: MultipleChoice
    head: ClassVar[HeadName] = "choice"

    def output(self, model: Bound, batch: Batch) -> Output:
        texts = ("encoder_", "decoder_")
        return super().output(model, {name: self.lines(x) for name, x in batch.items() if name.startswith(texts)})

    def outputs(self, model: Bound, hidden: jax.Array, batch: Batch) -> jax.Array:
        positions_BxNxC = batch["choice_positions"]
        b, n, c = positions_BxNxC.shape
        positions_BCxN = positions_BxNxC.transpose(0, 2, 1).reshape(b * c, n)
        segments_BCxL = self.lines(batch[f"{self.h.side}_segment_ids"])
        states_BCxNxD = self.text_states(model, hidden, positions_BCxN, segments_BCxL)
        logits_BxNxC = classes.apply(model, "choice", states_BCxNxD).reshape(b, c, n).transpose(0, 2, 1)
        return jnp.where(batch["choice_weights"] > 0, logits_BxNxC, _OUT)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        weights, labels = batch["label_weights"], batch["labels"]
        logits_BxNxC = self.outputs(model, hidden, batch)
        loss_BxN = optax.softmax_cross_entropy_with_integer_labels(logits_BxNxC, labels)
        correct_BxN = (logits_BxNxC.argmax(-1) == labels) * weights
        metrics: Metrics = {"accuracy": (correct_BxN.sum(), weights.sum())}
        if "eval_mask" in batch:
            metrics["target_loss"] = ((loss_BxN * batch["eval_mask"]).sum(), batch["eval_mask"].sum())
        sums = {self.h.kind: (loss_BxN * weights).sum(), **self.lm_part(model, hidden, batch)}
        return sums, jax.lax.stop_gradient(metrics)

    def lines(self, x: jax.Array) -> jax.Array:
        """[B, C·L] → [B·C, L]"""
        b, length = x.shape
        return x.reshape(b * self.h.task.most_choices, length // self.h.task.most_choices)


class MultipleChoiceJudge(Judge):
    """Compares the loss with that of a guess: ln of the number of choices."""

    baseline: ClassVar[str] = "uniform"
    target_name: ClassVar[str] = "labels"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        return batch["label_weights"]

    def baseline_loss(self, validation: Iterable[Arrays]) -> float:
        choice_counts = [batch["choice_weights"].sum(-1)[batch["eval_mask"] > 0] for batch in validation]
        return float(np.log(np.concatenate(choice_counts)).mean())
