"""ELMo: a forward and a backward language model of LSTMs over words that are read by their characters.

    x_0 = v(word)                                           `jaxpt.models.characters`
    x_1 = LSTM(x_0),   x_k = LSTM(x_{k−1}) + x_{k−1}        in each direction, with weights of its own

The hidden states of a layer are those of both directions, concatenated; layer 0 has the word's vector twice. A word
that is spelled in several tokens has its states at all of them. A head on whole texts reads the first token's state,
<S>, of which the backward half alone has read the text; with `objective.features.bilstm` it reads all words. Sizes,
clipping and initialisation are those of the published code. Paper: https://arxiv.org/abs/1802.05365

Shapes: B batch · L length · P width of a direction · D = 2·P width of the hidden states
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import model_validator

from jaxpt.config import Fraction, Layers, ModelConfig, NonNegativeInt, PositiveFloat, Size
from jaxpt.models import characters
from jaxpt.models.base import Encoder, compute_dtype
from jaxpt.models.layers import Dropout, constrain, uniform
from jaxpt.models.output import Output, Past
from jaxpt.models.recurrent import LSTM
from jaxpt.models.stack import Segment, Shared, Stack


class ELMoConfig(ModelConfig):
    """Configuration of ELMo."""

    family: ClassVar[str] = "encoder"
    text_layout: ClassVar[str] = "bert"
    fixed_params: ClassVar[tuple[str, ...]] = ("model/words/spelling",)

    kind: Literal["elmo"] = "elmo"
    adapter: None = None
    """Null: adapters are for Transformers."""
    layers: Layers = 2
    """Layers of LSTMs, the words' vectors aside."""
    embed_dim: Size
    """Width of the hidden states of both directions together."""
    cells: Size
    """Cells of an LSTM; its output is projected to half of `embed_dim`, unless they are as many."""
    char_dim: Size = 16
    """Width of a character's embedding."""
    filters: tuple[tuple[Size, Size], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    """The convolutions over a word's characters: (characters, number of filters) of each."""
    highways: NonNegativeInt = 2
    """Highway layers over them."""
    longest_word: Size = 50
    """Characters of a word that are read, the marks of its begin and end included."""
    skip: bool = True
    """Each layer but the first adds its input to its output."""
    cell_clip: PositiveFloat | None = 3.0
    """Largest absolute value of a cell."""
    projection_clip: PositiveFloat | None = 3.0
    """Largest absolute value of a projected output."""
    dropout: Fraction = 0.0
    """Dropout rate on what goes into each layer, and on what comes out of the last."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.embed_dim % 2:
            raise ValueError(f"embed_dim: {self.embed_dim} is odd; each direction has half of it")
        if self.cells < self.width:
            raise ValueError(f"cells: {self.cells} are fewer than a direction's outputs, embed_dim / 2 = {self.width}")
        if too_wide := [width for width, _ in self.filters if width > self.longest_word]:
            raise ValueError(f"filters: one of {too_wide[0]} characters; longest_word is {self.longest_word}")
        return self

    @property
    def width(self) -> int:
        """P."""
        return self.embed_dim // 2

    @property
    def masked_lm_options(self) -> None:
        """None: ELMo has no masked-LM head."""
        return None

    def constants(self, tokenizer: Any) -> dict[str, np.ndarray]:
        """The characters of the vocabulary's words."""
        vocabulary = tokenizer.vocabulary
        words = tokenizer.tokens(range(vocabulary.size if vocabulary.spelled_from is None else vocabulary.spelled_from))
        table = characters.spelling(words, vocabulary, self.longest_word, self.vocab_size)
        return {self.fixed_params[0]: table}

    def build(self) -> ELMo:
        """Builds the model."""
        return ELMo(self)


class Directions(NamedTuple):
    """What both language models have."""

    forward: Any
    backward: Any


class Layer(nn.Module):
    """An LSTM in each direction; its memory are their states."""

    config: ELMoConfig
    skip: bool

    @nn.compact
    def __call__(self, x: Directions, past: Past, shared: Shared) -> Output:
        outputs, states = [], []
        before = past.memory or (None, None)
        for name, x_BxLxP, ids_BxL, state in zip(Directions._fields, x, shared.positional, before):
            x_BxLxP = Dropout(self.config.dropout)(x_BxLxP)
            y_BxLxP, state = self._lstm(name)(x_BxLxP, ids_BxL, state)
            outputs.append(constrain(y_BxLxP + x_BxLxP if self.skip else y_BxLxP, "act_embed"))
            states.append(state)
        return Output(Directions(*outputs), memory=jax.lax.stop_gradient(Directions(*states)))

    def _lstm(self, name: str) -> LSTM:
        c = self.config
        init = uniform((6 / (2 * c.width + 4 * c.cells)) ** 0.5)  # Glorot's, of one matrix over inputs and outputs
        projection = c.width if c.width < c.cells else None
        return LSTM(
            c.cells, compute_dtype(c), init, init, nn.initializers.glorot_uniform(), name == "backward", projection,
            forget_bias=1.0, cell_clip=c.cell_clip, projection_clip=c.projection_clip, name=name,
        )  # fmt: skip


class ELMo(Encoder):
    """Both language models, without the softmax."""

    config: ELMoConfig

    def setup(self) -> None:
        c = self.config
        self.words = characters.CharacterEmbed(
            c.vocab_size, c.width, c.longest_word, c.char_dim, c.filters, c.highways, compute_dtype(c)
        )
        first, others = (functools.partial(Layer, c, skip) for skip in (False, c.skip))
        segments = (Segment((first,), 1), *((Segment((others,), c.layers - 1),) if c.layers > 1 else ()))
        self.encoder = Stack(segments, c.remat, c.unroll)
        self.drop = Dropout(c.dropout)

    def bidirectional(
        self, forward_BxL: jax.Array, backward_BxL: jax.Array, forward_ids_BxL: jax.Array, backward_ids_BxL: jax.Array,
        memory: Any = None, layers: bool = False,
    ) -> Output:  # fmt: skip
        """The hidden states of each language model on a text of its own.

        Args:
          forward_BxL: tokens that are read from the first to the last.
          backward_BxL: tokens that are read from the last to the first.
          forward_ids_BxL: segment ids of the former, 0 on padding. A row's first text continues `memory`.
          backward_ids_BxL: segment ids of the latter.
          memory: `memory` of the output for the texts before; zeros by default.
          layers: also return the hidden states of all layers.

        Returns:
          Hidden states and word starts as `Directions`, [B, L, P] and [B, L], and memory.
        """
        forward = self.words(forward_BxL)
        backward = forward if backward_BxL is forward_BxL else self.words(backward_BxL)
        x, is_word = (Directions(*both) for both in zip(forward, backward))
        ids = (jnp.where(begins, ids_BxL, 0) for begins, ids_BxL in zip(is_word, (forward_ids_BxL, backward_ids_BxL)))
        shared = Shared(positional=Directions(*ids))
        output = self.encoder(x, shared, Past(memory=memory), layers=layers)
        output = output.with_hidden(Directions(*map(self.drop, output.hidden)))

        def of_all_tokens(states: Directions) -> Directions:
            return Directions(*(characters.at_first(x, is_word_BxL) for x, is_word_BxL in zip(states, is_word)))

        every = None if output.layers is None else of_all_tokens(output.layers)
        return output.replace(hidden=of_all_tokens(output.hidden), layers=every, word_starts=is_word)

    def encode(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        layers: bool = False,
    ) -> Output:
        """As `Encoder.encode`, of a text read in both directions; `token_types` and `positions` are ignored."""
        ids_BxL = jnp.ones_like(tokens_BxL) if segment_ids is None else segment_ids
        output = self.bidirectional(tokens_BxL, tokens_BxL, ids_BxL, ids_BxL, layers=layers)
        every = None if output.layers is None else jnp.concatenate(output.layers, -1)
        hidden = jnp.concatenate(output.hidden, -1)
        return output.replace(hidden=hidden, layers=every, word_starts=output.word_starts.forward, memory=None)
