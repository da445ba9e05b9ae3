"""AWD-LSTM: a language model of LSTM layers under five kinds of dropout. ULMFiT fine-tunes it.

    x = variational(words(E[token]))          words: whole words are dropped, wherever they stand in the batch
    x = variational(LSTM_l(x))                of all layers but the last; U of each LSTM is dropped (DropConnect)
    logits = variational(x) · Eᵀ + b          the last layer is as wide as the embeddings, which are tied

`variational` draws one mask for all tokens of a row. One draw of U and of the words holds for a whole microbatch.
Papers: https://arxiv.org/abs/1708.02182, ULMFiT https://arxiv.org/abs/1801.06146

An LSTM has one bias here: torch's two, of inputs and outputs, add up to it.

Shapes: B batch · L length · D embedding width · H cells · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, ClassVar, Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from pydantic import Field, model_validator

from jaxpt.config import Fraction, Layers, ModelConfig, Size
from jaxpt.errors import UserError
from jaxpt.models.base import LanguageModel, compute_dtype
from jaxpt.models.layers import Dropout, Embed, constrain, param, stored_rows, uniform
from jaxpt.models.output import Output, Past, Projection
from jaxpt.models.recurrent import LSTM
from jaxpt.models.stack import Segment, Shared, Stack

_TOKENS = (1,)  # the axis along which a mask is the same
_DROPOUTS = ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_dropout")


class AWDLSTMConfig(ModelConfig):
    """Sizes and dropout rates of an AWD-LSTM; the defaults are those of fastai's language model."""

    family: ClassVar[str] = "decoder"
    text_layout: ClassVar[str] = "decoder"
    equal_widths: ClassVar[bool] = False

    kind: Literal["awd_lstm"] = "awd_lstm"
    adapter: None = None
    """Null: adapters are for Transformers."""
    layers: Layers = 3
    embed_dim: Size = 400
    """Width of the embeddings and of the last layer."""
    hidden_dim: Size = 1150
    """Cells of the other layers. (fastai's newer weights have 1,152.)"""
    embedding_dropout: Fraction = 0.02
    """Share of the words that are dropped."""
    input_dropout: Fraction = 0.25
    """Dropout on the embeddings, one mask for all tokens of a row."""
    hidden_dropout: Fraction = 0.15
    """Dropout between layers, likewise."""
    output_dropout: Fraction = 0.1
    """Dropout before the logits, likewise."""
    weight_dropout: Fraction = 0.2
    """Dropout on the recurrent matrices."""
    dropout_scale: Annotated[float, Field(ge=0)] = 1.0
    """Factor of all five rates (fastai's `drop_mult`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in _DROPOUTS:
            if self.rate(name) > 1:
                raise ValueError(f"dropout_scale: {self.dropout_scale} · {name} {getattr(self, name)} is above 1")
        return self

    def rate(self, name: str) -> float:
        """A dropout rate, scaled: `rate("input_dropout")`."""
        return self.dropout_scale * getattr(self, name)

    def segments(self) -> tuple[Segment, ...]:
        """The layers: the first and the last change the width."""
        if self.layers == 1:
            return (Segment((functools.partial(Layer, self, self.embed_dim, True),), 1),)
        inner = functools.partial(Layer, self, self.hidden_dim, False)
        last = functools.partial(Layer, self, self.embed_dim, True)
        between = (Segment((inner,), self.layers - 2),) if self.layers > 2 else ()
        return Segment((inner,), 1, resizes=True), *between, Segment((last,), 1, resizes=True)

    def build(self) -> AWDLSTM:
        return AWDLSTM(self)


class Layer(nn.Module):
    """One LSTM. Its memory is the `State` after the last real token."""

    config: AWDLSTMConfig
    size: int
    is_last: bool

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        """Reads a batch: `shared.positional` has the segment ids, [B, L]."""
        c, init = self.config, uniform(1 / math.sqrt(self.size))  # as torch initialises LSTMs
        lstm = LSTM(
            self.size, compute_dtype(c), init, init, weight_dropout=c.rate("weight_dropout"), name="lstm"
        )  # fmt: skip
        x_BxLxH, state = lstm(x_BxLxD, shared.positional, past.memory)
        if not self.is_last:
            x_BxLxH = Dropout(c.rate("hidden_dropout"), _TOKENS)(x_BxLxH)
        return Output(constrain(x_BxLxH, "act_embed"), memory=state)


class AWDLSTM(LanguageModel):
    """The model. `lm_states` is the output dropout: heads of fine-tuning and regularisers read the states before it."""

    config: AWDLSTMConfig

    def setup(self) -> None:
        c = self.config
        self.token_embed = Embed(c.vocab_size, c.embed_dim, uniform(0.1), compute_dtype(c))
        self.word_dropout = WordDropout(c.vocab_size, c.rate("embedding_dropout"))
        self.input_dropout = Dropout(c.rate("input_dropout"), _TOKENS)
        self.output_dropout = Dropout(c.rate("output_dropout"), _TOKENS)
        self.decoder = Stack(c.segments(), c.remat, c.unroll)
        self.output_bias = param(self, "output_bias", nn.initializers.zeros, (stored_rows(c.vocab_size),), ("vocab",))

    def decode(
        self,
        tokens_BxL: jax.Array,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        memory: Any = None,
        layers: bool = False,
    ) -> Output:
        """Hidden states of the last layer [B, L, D], and as `memory` the state for the text that follows.

        Args:
          tokens_BxL: token ids.
          segment_ids: [B, L], 0 on padding, packed texts numbered from 1; one text by default. The state is zero where
            a text starts that is not the row's first.
          positions: not used.
          memory: `memory` of the output for the previous text; zeros by default.
          layers: refused.

        Raises:
          UserError: `layers` are wanted: their widths differ.
        """
        if layers:
            raise UserError("layer: of an awd_lstm only the last one, -1, is given: the widths of the others differ")
        x_BxLxD = self.input_dropout(self.word_dropout(tokens_BxL, self.token_embed(tokens_BxL)))
        ids_BxL = jnp.ones_like(tokens_BxL) if segment_ids is None else segment_ids
        return self.decoder(x_BxLxD, Shared(positional=ids_BxL), Past(memory=memory))

    def lm_states(self, x: jax.Array) -> jax.Array:
        return self.output_dropout(x)

    def output_projection(self) -> Projection:
        return super().output_projection().replace(bias=self.output_bias)


class WordDropout(nn.Module):
    """Zeroes the embeddings of some words wherever they stand, and scales up the others; off without a random key."""

    vocab_size: int
    rate: float

    @nn.compact
    def __call__(self, tokens_BxL: jax.Array, x_BxLxD: jax.Array) -> jax.Array:
        """Token ids and their embeddings → the embeddings [B, L, D]."""
        factor_V = Dropout(self.rate)(jnp.ones(self.vocab_size, x_BxLxD.dtype))
        return x_BxLxD * jnp.take(factor_V, tokens_BxL, mode="clip")[..., None]
