"""A head on the state that stands for a text or a pair of texts: one label, several, or a number.

    text      [CLS] a gem of a film [SEP]           label 1 of task.labels
    logits    dropout(pooler(x)) · W + b,           x: the state of [CLS] (or the last token, or their mean)

    loss      classification   −log softmax(logits)[label], with label smoothing and class weights
              regression       (logit − value)²
              multi_label      Σ_k of the binary cross-entropy / K
Papers: https://arxiv.org/abs/1810.04805 (encoders), GPT-1 (decoders), https://arxiv.org/abs/1910.13461 (BART)

Shapes: B rows · L length · D width · N examples of a row · K outputs of the head
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from jaxpt.config import HeadName, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.data.labelled import rows
from jaxpt.data.labelled.texts import TextsEncoder
from jaxpt.data.spec import Arrays, Features
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes
from jaxpt.objectives import class_losses
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, batch_feature
from jaxpt.objectives.labelled import Collate, TextHead, label_entropy


class Classification(TextHead):
    """Hyperparameters of a head on whole texts."""

    kind: Literal["classification"] = "classification"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """ε: the target distribution is (1 − ε) · label + ε / K."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """Weight of each label's examples; `balanced`: rows / (K · rows of the label) of the training set. Of multi_label
    the weight of each label where a row has it (PyTorch's `pos_weight`); `balanced`: rows without it / rows with it."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """α of R-Drop: each text is read twice with other dropout; the loss is the mean of both, plus α · the symmetric KL
    divergence of the two predictions. The released loss is the sum of both, plus α · the same: half of a published α is
    right here. Paper: https://arxiv.org/abs/2106.14448"""
    stride: PositiveInt | None = None
    """With `task.windows`, tokens from one window of a long text to the next; half of a window by default."""
    head: ClassVar[HeadName] = "classes"
    task_kinds: ClassVar[tuple[str, ...]] = ("classification", "regression", "multi_label")

    @property
    def sequences(self) -> int:
        return 2 if self.extract and self.task.pair is not None and self.task.is_symmetric else 1

    def row_length(self, length: int) -> int:
        return length * self.sequences

    def label_features(self, length: int) -> Features:
        n, task = self.most_examples(length), self.task
        shape, dtype = {"classification": ((n,), "int32"), "regression": ((n,), "float32")}.get(
            task.kind, ((n, task.outputs), "float32")
        )
        positions = (n,) if self.sequences == 1 else (n, self.sequences)
        return {"label_positions": (positions, "int32"), "labels": (shape, dtype), "label_weights": ((n,), "float32")}

    def encoder(self, length: int, vocabulary: Vocabulary) -> TextsEncoder:
        layout, stride = self.layout(vocabulary), None
        if self.task.windows is not None:
            stride = self.stride or max(layout.room(length, 1) // 2, 1)
        return TextsEncoder(self.task, layout, length, self.truncate, self.sequences > 1, stride)

    def to_features(self, length: int, vocabulary: Vocabulary) -> Call:
        options = self.row_options(self.row_length(length), self.most_examples(length), vocabulary)
        return Call(preprocessors.features.labelled, options)

    def collate_fn(self, vocabulary: Vocabulary) -> Collate:
        return lambda records, length: rows.texts(rows.together(records), **self.row_options(length, 1, vocabulary))

    def row_options(self, length: int, examples: int, vocabulary: Vocabulary) -> dict[str, Any]:
        return {**super().row_options(length, examples, vocabulary), "orders": self.sequences}

    def outputs(self, model: Bound, hidden: jax.Array, batch: Batch) -> jax.Array:
        segments = batch[f"{self.side}_segment_ids"]
        positions = batch["label_positions"]
        states = self.text_states(model, hidden, positions.reshape(len(positions), -1), segments)
        if self.sequences > 1:  # the orders of a pair
            states = states.reshape(*positions.shape, -1).sum(2)
        return classes.apply(model, "classes", states, self.part)

    def coefficients(self) -> dict[str, float]:
        return super().coefficients() | ({"r_drop": self.r_drop} if self.r_drop else {})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        weights = batch["label_weights"]
        loss_weights = self.example_loss(None, batch["labels"])[1] * weights
        r_drop = {"r_drop": weights.sum()} if self.r_drop else {}
        return super().weights(batch) | {self.kind: loss_weights.sum()} | r_drop

    def loss(self, model: Bound, batch: Batch) -> LossOutputs:
        if not self.r_drop or "dropout" not in model.rngs:
            return super().loss(model, batch)
        # Two copies of each row have different dropout.
        twice = {name: jnp.concatenate([x, x]) for name, x in batch.items()}
        output = self.output(model, twice)
        sums, metrics = self.loss_from_hidden(model, output.hidden, twice)
        first, second = jnp.split(self.outputs(model, output.hidden, twice), 2)
        divergence = (class_losses.r_drop(first, second) * batch["label_weights"]).sum()
        halved = {name: total / 2 for name, total in {**sums, **output.aux}.items()}
        return {**halved, "r_drop": divergence}, {**metrics, **output.metrics}

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        outputs, labels = self.outputs(model, hidden, batch), batch["labels"]
        losses, _ = self.example_loss(outputs, labels)
        target_losses, _ = self.example_loss(outputs, labels, is_plain=True)
        is_correct = outputs.argmax(-1) == labels if self.task.kind == "classification" else None
        lm = self.lm_part(model, hidden, batch)
        return self.sums_and_metrics(losses, is_correct, batch, target_losses, **lm)

    def example_loss(
        self, outputs: jax.Array | None, labels: jax.Array, is_plain: bool = False
    ) -> tuple[Any, jax.Array]:
        """Loss and weight of each example.

        Args:
          outputs: the head's, [..., K]; None: the weight alone is wanted.
          labels: [...] or [..., K].
          is_plain: without class weights and label smoothing.
        """
        kind, class_weights = self.task.kind, None if is_plain else self.class_weights
        label_smoothing = 0.0 if is_plain else self.label_smoothing
        ones = jnp.ones(labels.shape[: 2 if outputs is None else outputs.ndim - 1])
        if kind == "classification":
            if outputs is None:
                outputs = jnp.zeros((*labels.shape, self.task.outputs))
            return class_losses.class_cross_entropy(
                outputs, labels, label_smoothing=label_smoothing, class_weights=class_weights
            )
        if outputs is None:
            return None, ones
        if kind == "regression":
            return jnp.square(outputs[..., 0] - labels), ones
        losses = optax.sigmoid_binary_cross_entropy(outputs, labels)
        if class_weights is not None:
            losses *= jnp.where(labels > 0, jnp.array(class_weights, jnp.float32), 1.0)
        return losses.mean(-1), ones

    @property
    def baseline(self) -> Baseline:
        """The best constant prediction."""
        unit = "squared error" if self.task.kind == "regression" else "nats"
        return Baseline("constant", "labels", batch_feature("label_weights"), self._constant_loss, unit=unit)

    def _constant_loss(self, validation: Iterable[Arrays]) -> float:
        labels = np.concatenate([batch["labels"][batch["eval_mask"] > 0] for batch in validation]).astype(np.float64)
        if self.task.kind == "regression":
            return float(labels.var())
        if self.task.kind == "multi_label":
            p = labels.mean(0).clip(1e-12, 1 - 1e-12)
            return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).mean())
        return label_entropy(labels, np.ones(len(labels)))

    def check_settings(self, model: ModelConfig, length: int) -> None:
        super().check_settings(model, length)
        keys = ("label_smoothing", "r_drop", *["class_weights"] * (self.task.kind == "regression"))
        if self.task.kind != "classification" and (key := next((key for key in keys if getattr(self, key)), None)):
            raise UserError(f"objective.{key} is for task.kind: classification, not {self.task.kind}")
        if self.stride is not None and self.task.windows is None:
            raise UserError("objective.stride: is of the windows of long texts; set task.windows to mean or max")
        self.check_class_weights(self.class_weights, "labels")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if self.layout(vocabulary).room(length, 1 if self.task.pair is None else 2) < 1:
            raise UserError(f"data.length: {length} leaves no room for text beside the special tokens")
