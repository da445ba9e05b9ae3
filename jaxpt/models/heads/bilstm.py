"""A bidirectional LSTM over the states of each text, between a model and a head.

Each layer has an LSTM in each direction (`jaxpt.models.recurrent`); the outputs are concatenated, and read by the next
layer. Their state starts at zero at each end of a text, so that neither padding nor a neighbour in a packed row is
seen. Paper of the features of a language model below one: https://arxiv.org/abs/1802.05365

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
from jaxpt.models.layers import Dropout, constrain
from jaxpt.models.recurrent import LSTM


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
          segments_BxL: segment ids: 0 on padding, the same for all tokens of a text.

        Returns:
          [B, L, 2·H].
        """
        for layer in range(self.config.layers):
            x_BxLxD = Dropout(self.config.dropout)(x_BxLxD)
            outputs = []
            for name, reverse in (("forward", False), ("backward", True)):
                options = {"recurrent_init": _orthogonal_gates, "reverse": reverse, "name": f"{name}_{layer}"}
                outputs.append(LSTM(self.config.size, self.dtype, **options)(x_BxLxD, segments_BxL)[0])
            x_BxLxD = constrain(jnp.concatenate(outputs, axis=-1), "act_embed")
        return x_BxLxD


def _orthogonal_gates(key: jax.Array, shape: tuple[int, int], dtype: DTypeLike) -> jax.Array:
    """An orthogonal matrix for each gate, side by side."""
    make = nn.initializers.orthogonal()
    return jnp.concatenate(
        [make(gate_key, (shape[0], shape[0]), dtype) for gate_key in jax.random.split(key, 4)], axis=1
    )
