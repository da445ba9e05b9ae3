"""A head on each word's first token: a tag for every word.

    text      [CLS] Zur ##ich is far [SEP]          tags  B-LOC – O O
    logits    dropout(x) · W + b,                   x: the state of a word's first token
    loss      −log softmax(logits)[tag], over words

A sentence beyond `data.length` is read in overlapping windows; each word is learned and tagged in one of them alone,
where it has the most context on its poorer side.

Paper: https://arxiv.org/abs/1810.04805
Shapes: B rows · L length · D width · N words of a row · K tags
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jaxpt.config import HeadName, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.data.labelled import rows
from jaxpt.data.labelled.tagging import TaggingEncoder
from jaxpt.data.spec import Arrays, Features
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes
from jaxpt.objectives import class_losses
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, batch_feature
from jaxpt.objectives.labelled import Collate, HeadObjective, label_entropy


class Tagging(HeadObjective):
    """Hyperparameters of a head on words."""

    kind: Literal["tagging"] = "tagging"
    stride: PositiveInt | None = None
    """Tokens from one window of a long sentence to the next; half of a window by default."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """ε: the target distribution is (1 − ε) · tag + ε / K."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """Weight of each tag's words; `balanced`: words / (K · words with the tag) of the training set."""
    head: ClassVar[HeadName] = "tags"
    task_kinds: ClassVar[tuple[str, ...]] = ("tagging",)

    def answer(self, outputs: Sequence[Any], row: Any, where: str) -> dict[str, Any]:
        return self.task.answer(outputs, self.task.words(row, where))

    def label_features(self, length: int) -> Features:
        n = (length,)
        return {"label_positions": (n, "int32"), "labels": (n, "int32"), "label_weights": (n, "float32")}

    def encoder(self, length: int, vocabulary: Vocabulary) -> TaggingEncoder:
        layout = self.layout(vocabulary)
        stride = self.stride or max(layout.room(length, 1) // 2, 1)
        return TaggingEncoder(self.task, layout, length, stride)

    def to_features(self, length: int, vocabulary: Vocabulary) -> Call:
        return Call(preprocessors.features.labelled, self.row_options(length, length, vocabulary))

    def collate_fn(self, vocabulary: Vocabulary) -> Collate:
        return lambda records, length: rows.texts(
            rows.together(records), **self.row_options(length, length, vocabulary)
        )

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {f"{self.side}_input_tokens": lengths["tokens"], "label_positions": lengths["positions"]}

    def outputs(self, model: Bound, hidden: jax.Array, batch: Batch) -> jax.Array:
        states_BxNxD = jnp.take_along_axis(hidden, batch["label_positions"][..., None], axis=1)
        return classes.apply(model, "tags", states_BxNxD, self.part)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        class_weights = self.class_weights
        token_weights = 1.0 if class_weights is None else jnp.array(class_weights, jnp.float32)[batch["labels"]]
        return {self.kind: (token_weights * batch["label_weights"]).sum()}

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        logits, tags = self.outputs(model, hidden, batch), batch["labels"]
        losses, _ = class_losses.class_cross_entropy(
            logits, tags, label_smoothing=self.label_smoothing, class_weights=self.class_weights
        )
        target_losses, _ = class_losses.class_cross_entropy(logits, tags)
        return self.sums_and_metrics(losses, logits.argmax(-1) == tags, batch, target_losses)

    @property
    def baseline(self) -> Baseline:
        """The tags' frequencies."""

        def constant_loss(validation: Iterable[Arrays]) -> float:
            pairs = [(batch["labels"].ravel(), batch["eval_mask"].ravel()) for batch in validation]
            return label_entropy(*map(np.concatenate, zip(*pairs)))

        return Baseline("constant", "tags", batch_feature("label_weights"), constant_loss)

    def check_settings(self, model: ModelConfig, length: int) -> None:
        super().check_settings(model, length)
        self.check_class_weights(self.class_weights, "tags")

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if self.layout(vocabulary).room(length, 1) < 1:
            raise UserError(f"data.length: {length} leaves no room for words beside the special tokens")
