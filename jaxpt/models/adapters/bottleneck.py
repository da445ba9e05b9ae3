"""Bottleneck adapters: y + f(y · W_down) · W_up, near the identity at first. Paper: https://arxiv.org/abs/1902.00751

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from jaxpt.config import AdapterConfig, PositiveFloat, PositiveInt
from jaxpt.models.layers import ACTIVATIONS, Activation, Dense


class BottleneckConfig(AdapterConfig):
    """Sizes of a bottleneck adapter."""

    kind: Literal["bottleneck"] = "bottleneck"
    dim: PositiveInt = 64
    """Width of the bottleneck."""
    activation: Activation = "gelu"
    """f; the released code has `gelu_tanh`."""
    init_scale: PositiveFloat = 1e-3
    """Standard deviation of fresh weights."""

    def build(self, dtype: DTypeLike, name: str) -> nn.Module:
        return Bottleneck(self, dtype, name=name)


class Bottleneck(nn.Module):
    """y + f(y · W_down) · W_up."""

    config: BottleneckConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, y_BxLxD: jax.Array) -> jax.Array:
        c, init = self.config, nn.initializers.truncated_normal(self.config.init_scale)
        h = Dense(c.dim, ("embed", "norm"), init, self.dtype, name="down")(y_BxLxD)
        return y_BxLxD + Dense(y_BxLxD.shape[-1], ("norm", "embed"), init, self.dtype, name="up")(
            ACTIVATIONS[c.activation](h)
        )
