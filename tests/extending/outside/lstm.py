"""An LSTM language model, with dropout between its layers. Paper: https://arxiv.org/abs/1409.2329

Shapes: B batch · L length · D width
"""

import functools
from typing import ClassVar, Literal

import flax.linen as nn
import jax

from jaxpt.config import Fraction, ModelConfig, PositiveInt
from jaxpt.models import recurrent
from jaxpt.models.base import LanguageModel, compute_dtype
from jaxpt.models.layers import Dropout, Embed, constrain
from jaxpt.models.output import Output, Past
from jaxpt.models.stack import Segment, Shared, Stack


class LSTMConfig(ModelConfig):
    """Sizes of an LSTM language model."""

    family: ClassVar[str] = "decoder"

    kind: Literal["tests.extending.outside.lstm"] = "tests.extending.outside.lstm"
    layers: PositiveInt
    embed_dim: PositiveInt
    """Width of the embeddings and of each layer."""
    dropout: Fraction = 0.0
    """Rate on what goes into each layer, and on what comes out of the last."""

    def build(self):
        return LSTM(self)


class Layer(nn.Module):
    """One layer. Its memory is the LSTM's state after the last real token."""

    config: LSTMConfig

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        size, dtype = self.config.embed_dim, compute_dtype(self.config)
        layer = recurrent.LSTM(size, dtype, forget_bias=1.0, name="lstm")
        h_BxLxD, state = layer(Dropout(self.config.dropout)(x_BxLxD), shared.positional, past.memory)
        return Output(constrain(h_BxLxD, "act_embed"), memory=state)


class LSTM(LanguageModel):
    """LSTM layers, their output projection tied to the token embeddings."""

    config: LSTMConfig

    def setup(self) -> None:
        c = self.config
        self.token_embed = Embed(c.vocab_size, c.embed_dim, nn.initializers.normal(0.1), compute_dtype(c))
        self.decoder = Stack((Segment((functools.partial(Layer, c),), c.layers),), c.remat, c.unroll)
        self.dropout = Dropout(c.dropout)

    def decode(self, tokens_BxL, *, segment_ids=None, positions=None, memory=None, layers=False) -> Output:
        """Hidden states [B, L, D], and as `memory` the state for the text that follows.

        Args:
          tokens_BxL: token ids.
          segment_ids: [B, L], 0 on padding, packed sequences numbered from 1; one segment by default.
          positions: not looked at.
          memory: `memory` of the output for the previous text; zeros by default.
          layers: also return the hidden states of all layers.
        """
        shared = Shared(positional=segment_ids)
        output = self.decoder(self.token_embed(tokens_BxL), shared, Past(memory=memory), layers=layers)
        return output.with_hidden(self.dropout(output.hidden))

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        return self.logits(self.decode(tokens_BxL).hidden)
