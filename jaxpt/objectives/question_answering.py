"""A head that points to the first and the last token of an answer in its context.

    text      [CLS] Whom did Ada meet ? [SEP] Ada met Charles Bab ##bage . [SEP]       start Charles, end ##bage
    logits    x · W + b, one for start and one for end,                                x: the state of each token
    loss      ½ (−log softmax(start)[first] − log softmax(end)[last]), softmax over the tokens of the example

A context beyond `data.length` is read in overlapping windows. A window that has not all of the answer points to the
null token, as does a question without an answer: [CLS] or <s>, the last token of a decoder, </s> of T5.

Papers: https://arxiv.org/abs/1810.04805, https://arxiv.org/abs/1806.03822 (SQuAD 2.0)
Shapes: B rows · L length · D width · N examples of a row
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import HeadName, ModelConfig, PositiveInt
from jaxpt.data.calls import Call, Vocabulary, preprocessors
from jaxpt.data.labelled import rows
from jaxpt.data.labelled.question_answering import QuestionAnsweringEncoder, best_spans
from jaxpt.data.spec import Arrays, Features
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, batch_feature
from jaxpt.objectives.labelled import Collate, HeadObjective, own_tokens

_WINDOW = 16  # tokens of a question and a window, at least, in a packed row whose `examples` are not given


class QuestionAnswering(HeadObjective):
    """Hyperparameters of a head that finds a span."""

    kind: Literal["question_answering"] = "question_answering"
    stride: PositiveInt = 128
    """Tokens from one window of a long context to the next (BERT's `doc_stride`)."""
    max_query: PositiveInt = 64
    """Maximum number of tokens of a question; the rest is cut off."""
    n_best: PositiveInt = 20
    """Number of the likeliest starts and of the likeliest ends of a window that are combined."""
    max_answer: PositiveInt = 30
    """Maximum number of tokens of an answer."""
    examples: PositiveInt | None = None
    """Maximum number of windows in a packed row; data.length / 16 by default."""
    head: ClassVar[HeadName] = "span"
    task_kinds: ClassVar[tuple[str, ...]] = ("question_answering",)

    @property
    def answer_side(self) -> str:
        """The part of the model whose states the head reads."""
        return "encoder" if self.family == "encoder" else "decoder"

    def cut_to(self, length: int) -> str:
        return f"objective.max_query {self.max_query}"

    def decide(self, outputs: Sequence[Any], row: Any, where: str) -> Any:
        return self.task.decide(outputs, self.task.texts(row, where)[1])

    def answer(self, outputs: Sequence[Any], row: Any, where: str) -> dict[str, Any]:
        return self.task.answer(outputs, self.task.texts(row, where)[1])

    def examples_of(self, length: int) -> int:
        """Maximum number of windows in a row."""
        return self.examples or max(length // _WINDOW, 1)

    def label_features(self, length: int) -> Features:
        n = self.examples_of(length)
        return {"label_positions": ((n, 2), "int32"), "label_weights": ((n,), "float32")}

    def encoder(self, length: int, vocabulary: Vocabulary) -> QuestionAnsweringEncoder:
        layout = self.layout(vocabulary)
        return QuestionAnsweringEncoder(
            self.task,
            layout,
            length,
            self.stride,
            self.max_query,
            context_first=self.text_layout == "xlnet",
            null_first=bool(layout.before) and self.family != "decoder",
        )

    def to_features(self, length: int, vocabulary: Vocabulary) -> Call:
        options = self.row_options(length, self.examples_of(length), vocabulary)
        return Call(preprocessors.features.labelled_spans, options)

    def collate_fn(self, vocabulary: Vocabulary) -> Collate:
        names = ("tokens", "token_types", "positions")
        return lambda records, length: rows.spans(
            rows.together([{name: record[name] for name in names} for record in records]),
            **self.row_options(length, 1, vocabulary),
        )

    def split_outputs(self, outputs: np.ndarray, records: Sequence[Any]) -> list[np.ndarray]:
        """The best spans of each record, and its null score: [1 + spans, 3] (`best_spans`)."""
        return [best_spans(row, record, self.n_best, self.max_answer) for row, record in zip(outputs, records)]

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {f"{self.side}_input_tokens": lengths["tokens"], "label_weights": lengths["positions"] // 2}

    def outputs(self, model: Bound, hidden: jax.Array, batch: Batch) -> jax.Array:
        """Logits of start and end: [B, L, 2]."""
        return classes.apply(model, "span", hidden, self.part)

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        logits_BxLx2 = self.outputs(model, hidden, batch)
        positions_BxNx2 = batch["label_positions"]
        is_own_BxNxL = own_tokens(batch[f"{self.answer_side}_segment_ids"], positions_BxNx2[..., 0])
        logits_BxNxLx2 = jnp.where(is_own_BxNxL[..., None], logits_BxLx2[:, None], -jnp.inf)
        at_target_BxNx2 = jnp.take_along_axis(logits_BxLx2, positions_BxNx2, axis=1)
        loss_BxN = (jax.nn.logsumexp(logits_BxNxLx2, axis=2) - at_target_BxNx2).mean(-1)
        is_right_BxN = (logits_BxNxLx2.argmax(2) == positions_BxNx2).all(-1)
        return self.sums_and_metrics(loss_BxN, is_right_BxN, batch)

    @property
    def baseline(self) -> Baseline:
        """Equally likely tokens."""
        return Baseline("uniform", "spans", batch_feature("label_weights"), self._uniform_loss)

    def _uniform_loss(self, validation: Iterable[Arrays]) -> float:
        total, count = 0.0, 0.0
        for batch in validation:
            segments_BxL, weights_BxN = batch[f"{self.answer_side}_segment_ids"], batch["eval_mask"]
            lengths_BxN = np.asarray(own_tokens(segments_BxL, batch["label_positions"][..., 0])).sum(-1)
            total += float((np.log(lengths_BxN) * weights_BxN).sum())
            count += float(weights_BxN.sum())
        return total / count

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if (room := self.layout(vocabulary).room(length, 2)) <= self.max_query:
            raise UserError(
                f"data.length: {length} leaves room for {room} tokens of question and context, objective.max_query is "
                f"{self.max_query}; raise data.length or lower objective.max_query"
            )
