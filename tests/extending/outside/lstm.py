"""An LSTM language model, with dropout between its layers. Paper: https://arxiv.org/abs/1409.2329

    i, f, g, o = x_t · W + h · U + b,   c ← σ(f + 1) · c + σ(i) · tanh(g),   h ← σ(o) · tanh(c)

Shapes: B batch · L length · D width
"""

import functools
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxpt.config import Fraction, ModelConfig, PositiveInt
from jaxpt.models.base import LanguageModel, compute_dtype
from jaxpt.models.layers import Dense, Dropout, Embed, constrain, param
from jaxpt.models.output import Output, Past
from jaxpt.models.stack import Segment, Shared, Stack

INIT = nn.initializers.lecun_normal()


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
    """One layer. Its memory is (h, c), float32 [B, D] each: the state after the last real token."""

    config: LSTMConfig

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        size, dtype = self.config.embed_dim, compute_dtype(self.config)
        dense = Dense(4 * size, ("embed", "mlp"), INIT, dtype, name="input")
        recurrent_Dx4D = param(self, "recurrent", INIT, (size, 4 * size), ("embed", "mlp")).astype(dtype)
        # Whole before the loop: cut over fsdp and tensor in it, XLA gives it a wrong gradient.
        recurrent_Dx4D = nn.with_logical_constraint(recurrent_Dx4D, (None, None))

        def step(state, now):
            gates_Bx4D, starts_Bx1, is_real_Bx1 = now
            h, c = (jnp.where(starts_Bx1, 0.0, x) for x in state)
            i, f, g, o = jnp.split(gates_Bx4D + h.astype(dtype) @ recurrent_Dx4D, 4, axis=-1)
            c = nn.sigmoid(f + 1) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return tuple(jnp.where(is_real_Bx1, new, old) for new, old in zip((h, c), state)), h.astype(dtype)

        zeros = jnp.zeros((x_BxLxD.shape[0], size), jnp.float32)
        state = (zeros, zeros) if past.memory is None else past.memory
        steps = dense(Dropout(self.config.dropout)(x_BxLxD)), *shared.positional
        state, h_LxBxD = jax.lax.scan(step, state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps))
        return Output(constrain(jnp.swapaxes(h_LxBxD, 0, 1), "act_embed"), memory=state)


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
        ids_BxLx1 = jnp.ones_like(tokens_BxL)[..., None] if segment_ids is None else segment_ids[..., None]
        starts_BxLx1 = jnp.pad(ids_BxLx1[:, 1:] > ids_BxLx1[:, :-1], ((0, 0), (1, 0), (0, 0)))
        shared = Shared(positional=(starts_BxLx1, ids_BxLx1 > 0))
        output = self.decoder(self.token_embed(tokens_BxL), shared, Past(memory=memory), layers=layers)
        return output.with_hidden(self.dropout(output.hidden))

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        return self.logits(self.decode(tokens_BxL).hidden)
