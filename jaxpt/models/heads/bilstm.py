"""A bidirectional LSTM over the states of each text, between a model and a head.

    c_t = σ(f) · c_{t−1} + σ(i) · tanh(g),   h_t = σ(o) · tanh(c_t),   [i f g o] = x_t · W + h_{t−1} · U + b

in both directions; the outputs are concatenated, and read by the next layer. Cell and output start at zero at each end
of a text, so that neither padding nor a neighbour in a packed row is seen. `nn.RNN` has no such resets, and computes
x · W token by token. Paper of the features of a language model below one: https://arxiv.org/abs/1802.05365

Shapes: B batch · L length · D width of the inputs · H units
"""

from __future__ import annotations

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from pydantic import Field

from jaxpt.config import Frozen, PositiveInt
from jaxpt.models.layers import Dense, Dropout, constrain, param


class BiLSTMConfig(Frozen):
    """Sizes of a bidirectional LSTM."""

    size: PositiveInt
    """Units of each direction; the output is twice as wide."""
    layers: PositiveInt = 1
    """Layers, each of which reads both directions of the one below."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the input of each layer."""


class BiLSTM(nn.Module):
    """Layers of two LSTMs each, one in each direction."""

    config: BiLSTMConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, segments_BxL: jax.Array) -> jax.Array:
        """Reads each text forwards and backwards.

        Args:
          x_BxLxD: inputs.
          segments_BxL: segment ids: neighbouring tokens of one text have the same.

        Returns:
          [B, L, 2·H].
        """
        for layer in range(self.config.layers):
            x_BxLxD = Dropout(self.config.dropout)(x_BxLxD)
            forward, backward = (
                LSTM(self.config.size, self.dtype, reverse, name=f"{name}_{layer}")(x_BxLxD, segments_BxL)
                for name, reverse in (("forward", False), ("backward", True))
            )
            x_BxLxD = constrain(jnp.concatenate([forward, backward], axis=-1), "act_embed")
        return x_BxLxD


class LSTM(nn.Module):
    """One direction of a layer."""

    size: int
    dtype: DTypeLike
    reverse: bool

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, segments_BxL: jax.Array) -> jax.Array:
        """[B, L, D], segment ids [B, L] → outputs [B, L, H]."""
        of_inputs = Dense(4 * self.size, ("embed", "norm"), nn.initializers.lecun_normal(), self.dtype, name="input")
        shape = (self.size, 4 * self.size)
        kernel_Hx4H = param(self, "recurrent_kernel", _orthogonal_gates, shape, ("embed", "norm"))
        # Gathered once, not in every step.
        kernel_Hx4H = nn.with_logical_constraint(kernel_Hx4H, (None, None)).astype(self.dtype)
        is_edge = segments_BxL[:, 1:] != segments_BxL[:, :-1]
        is_start_BxL = jnp.pad(is_edge, ((0, 0), (0, 1) if self.reverse else (1, 0)), constant_values=True)

        def step(carry: tuple[jax.Array, jax.Array], xs: tuple[jax.Array, jax.Array]) -> tuple[tuple, jax.Array]:
            gates_Bx4H, is_start_B = xs
            cell_BxH, output_BxH = (jnp.where(is_start_B[:, None], 0, x) for x in carry)
            gates_Bx4H = (gates_Bx4H + output_BxH @ kernel_Hx4H).astype(jnp.float32)
            i, f, g, o = jnp.split(gates_Bx4H, 4, axis=-1)
            cell_BxH = jax.nn.sigmoid(f) * cell_BxH + jax.nn.sigmoid(i) * jnp.tanh(g)
            output_BxH = (jax.nn.sigmoid(o) * jnp.tanh(cell_BxH)).astype(self.dtype)
            return (cell_BxH, output_BxH), output_BxH

        zeros_BxH = jnp.zeros((len(x_BxLxD), self.size), jnp.float32)
        steps = jax.tree.map(lambda x: x.swapaxes(0, 1), (of_inputs(x_BxLxD), is_start_BxL))
        _, outputs_LxBxH = jax.lax.scan(step, (zeros_BxH, zeros_BxH.astype(self.dtype)), steps, reverse=self.reverse)
        return outputs_LxBxH.swapaxes(0, 1)


def _orthogonal_gates(key: jax.Array, shape: tuple[int, int], dtype: DTypeLike) -> jax.Array:
    """An orthogonal matrix for each gate, side by side."""
    make = nn.initializers.orthogonal()
    return jnp.concatenate(
        [make(gate_key, (shape[0], shape[0]), dtype) for gate_key in jax.random.split(key, 4)], axis=1
    )
