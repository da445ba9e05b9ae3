"""ULMFiT's classification of long texts with a recurrent model: `classification` with another head and reading.

    text      t_1 … t_70 | t_71 … t_140 | …               read in chunks of `bptt` tokens, the state carried on
    gradient  within the chunks, of the last `max_length` tokens
    head      two layers on [h_T; max h_t; mean h_t] of these tokens (`jaxpt.models.heads.concat_pool`)

A text begins with EOS, as after the document before it in the language model's data (in fastai's code `xbos` is before
each text of both). AR and TAR (`jaxpt.objectives.activation`) regularise the same states. `direction: backward` reads
each text from its last token to its first, with a backward language model; `jaxpt predict FORWARD FILE --average
BACKWARD` averages both. In fastai's code each chunk of a text has other dropout masks; here a text has one for all of
its tokens.
Paper: https://arxiv.org/abs/1801.06146

Shapes: B rows · L length · N texts of a row · D width · C chunks · K tokens of a chunk
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Vocabulary
from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.labelled.texts import TextsEncoder
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes
from jaxpt.models.heads.concat_pool import ConcatPoolHead, concat_pool
from jaxpt.models.network import Head
from jaxpt.models.output import Output
from jaxpt.objectives.activation import ActivationRegularizer
from jaxpt.objectives.base import Batch, LossOutputs, memory_shapes
from jaxpt.objectives.classification import Classification

Rate = Annotated[float, Field(ge=0, lt=1)]


class RecurrentClassification(Classification):
    """Hyperparameters of ULMFiT's head on whole texts; the defaults are fastai's."""

    kind: Literal["recurrent_classification"] = "recurrent_classification"
    direction: Literal["forward", "backward"] = "forward"
    """`backward`: each text is read from its last token to its first."""
    opening: Literal["eos", "bos"] | None = None
    """What stands before each text: `eos`, as in the language model's data, or `bos`, where that is another token. The
    run saves it, by default `eos`; without it, as in older runs, it is `bos`."""
    bptt: PositiveInt = 70
    """Tokens of a chunk: no gradient passes from one to the next."""
    max_length: PositiveInt = 1400
    """The last tokens of a text, which are pooled and have a gradient."""
    hidden_dim: PositiveInt = 50
    """Width of the head's first layer."""
    dropout: Rate = 0.4
    """Dropout on what is pooled."""
    hidden_dropout: Rate = 0.1
    """Dropout on the head's first layer."""
    regularizer: ActivationRegularizer = ActivationRegularizer()
    """AR and TAR."""

    def layout(self, vocabulary: Vocabulary) -> TextLayout:
        layout, v = super().layout(vocabulary), vocabulary
        if self.extract:
            return layout
        bos = () if v.bos in (None, v.eos) else (v.bos,)
        return dataclasses.replace(layout, before=layout.between if self.opening == "eos" else bos)

    @property
    def reads_backward(self) -> bool:
        return self.direction == "backward"

    def encoder(self, length: int, vocabulary: Vocabulary) -> TextsEncoder:
        return dataclasses.replace(super().encoder(length, vocabulary), reverse=self.reads_backward)

    def heads(self, model: ModelConfig) -> Mapping[str, Head]:
        head = ConcatPoolHead(self.task.outputs, self.hidden_dim, self.dropout, self.hidden_dropout)
        pooled = jax.ShapeDtypeStruct((1, 1, 3 * model.embed_dim), jnp.float32)
        return {classes.called("classes", self.part): Head(head, (pooled,))}

    def output(self, model: Bound, batch: Batch) -> Output:
        return Output(read_chunks(model, batch["decoder_input_tokens"], batch["decoder_segment_ids"], self.bptt))

    def text_states(
        self, model: Bound, hidden_BxLxD: jax.Array, positions_BxN: jax.Array, segments_BxL: jax.Array
    ) -> jax.Array:
        """As in the base class: [B, N, 3 · D]."""
        text_ids_BxN = jnp.take_along_axis(segments_BxL, positions_BxN, axis=1)
        pooled_BxL = self._pooled_segments(positions_BxN, segments_BxL)
        is_own_BxNxL = (pooled_BxL[:, None] == text_ids_BxN[..., None]) & (pooled_BxL[:, None] > 0)
        return concat_pool(hidden_BxLxD, positions_BxN, is_own_BxNxL)

    def coefficients(self) -> dict[str, float]:
        return super().coefficients() | self.regularizer.coefficients()

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | self.regularizer.weights(self._regularized(batch))

    def loss_from_hidden(self, model: Bound, hidden: jax.Array, batch: Batch) -> LossOutputs:
        sums, metrics = super().loss_from_hidden(model, hidden, batch)
        return {**sums, **self.regularizer.sums(model, hidden, hidden, self._regularized(batch))}, metrics

    def _regularized(self, batch: Batch) -> jax.Array:
        """Segment ids of the tokens whose states have a gradient."""
        positions = batch["label_positions"]
        return self._pooled_segments(positions.reshape(len(positions), -1), batch["decoder_segment_ids"])

    def _pooled_segments(self, last_BxN: jax.Array, segments_BxL: jax.Array) -> jax.Array:
        """Segment ids, 0 where a token is not among the last `max_length` of its text."""
        last_BxL = jnp.take_along_axis(last_BxN, jnp.maximum(segments_BxL - 1, 0), axis=1)
        is_late_BxL = jnp.arange(segments_BxL.shape[1]) > last_BxL - self.max_length
        return jnp.where(is_late_BxL, segments_BxL, 0)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        is_recurrent = self.family == "decoder" and jax.tree.leaves(
            memory_shapes(self.network(model), 1, lambda model, x: model.decode(x).memory)
        )
        if not is_recurrent:
            raise UserError(
                f"objective.kind: {self.kind} reads with a recurrent model such as model.kind: awd_lstm, not "
                f"{model.kind}; objective.kind: classification is for that one"
            )
        super().check(model, length, vocabulary)

    def check_settings(self, model: ModelConfig, length: int) -> None:
        if self.features is not None:
            raise UserError("objective.features: recurrent_classification reads the last layer alone; remove it")
        super().check_settings(model, length)


def read_chunks(model: Bound, tokens_BxL: jax.Array, segments_BxL: jax.Array, size: int) -> jax.Array:
    """Hidden states of texts that are read in chunks, without a gradient from one chunk to the one before it.

    Args:
      model: a recurrent model: its `decode` takes and gives `memory`.
      tokens_BxL: token ids.
      segments_BxL: segment ids, 0 on padding, which is at the end of rows.
      size: tokens of a chunk.

    Returns:
      [B, L, D].
    """
    length = tokens_BxL.shape[1]
    if length <= size:
        return model.decode(tokens_BxL, segment_ids=segments_BxL).hidden
    chunks = -(-length // size)

    def split(x_BxL: jax.Array) -> jax.Array:
        """[B, L] → [C, B, K], padded with zeros."""
        padded = jnp.pad(x_BxL, ((0, 0), (0, chunks * size - length)))
        return padded.reshape(len(padded), chunks, size).swapaxes(0, 1)

    tokens_CxBxK, ids_CxBxK = split(tokens_BxL), split(segments_BxL)
    before_CxB = jnp.pad(ids_CxBxK[:-1, :, -1], ((1, 0), (0, 0)))
    continues_CxB = ids_CxBxK[:, :, 0] == before_CxB

    def read(memory: Any, chunk: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        tokens_BxK, ids_BxK, continues_B = chunk
        memory = jax.tree.map(lambda x: jnp.where(continues_B[:, None], jax.lax.stop_gradient(x), 0), memory)
        output = model.decode(tokens_BxK, segment_ids=ids_BxK, memory=memory)
        return output.memory, output.hidden

    shapes = jax.eval_shape(lambda x: model.decode(x).memory, tokens_CxBxK[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    _, hidden_CxBxKxD = jax.lax.scan(read, zeros, (tokens_CxBxK, ids_CxBxK, continues_CxB))
    hidden_BxCxKxD = hidden_CxBxKxD.swapaxes(0, 1)
    return hidden_BxCxKxD.reshape(len(hidden_BxCxKxD), chunks * size, -1)[:, :length]
