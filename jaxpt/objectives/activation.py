"""Regularisers of a recurrent model's activations: AR keeps them small, TAR keeps neighbours alike.

    activation            α · mean over tokens and units of m(h_t)²                    m: the output dropout
    temporal_activation   β · mean over neighbouring tokens and units of (h_t − h_{t−1})²

They are parts of the training loss, without a share in evaluation. Padding and the ends of texts have no part in them.
Paper: https://arxiv.org/abs/1708.01009

Shapes: B batch · L length · D width
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from pydantic import Field

from jaxpt.config import Frozen
from jaxpt.models.base import Bound

Parts = dict[str, jax.Array]


class ActivationRegularizer(Frozen):
    """Coefficients of both; the defaults are AWD-LSTM's and ULMFiT's."""

    activation: Annotated[float, Field(ge=0)] = 2.0
    """α, of AR."""
    temporal_activation: Annotated[float, Field(ge=0)] = 1.0
    """β, of TAR."""

    def coefficients(self) -> dict[str, float]:
        """{part of the loss: its coefficient}, without those of coefficient 0."""
        return {name: value for name, value in self.model_dump().items() if value}

    def weights(self, segments_BxL: jax.Array) -> Parts:
        """Tokens, and pairs of neighbours: what the parts are divided by."""
        is_real_BxL, is_pair_BxL = _masks(segments_BxL)
        counts = {"activation": is_real_BxL.sum(), "temporal_activation": is_pair_BxL.sum()}
        return {name: counts[name].astype(jnp.float32) for name in self.coefficients()}

    def sums(self, model: Bound, hidden_BxLxD: jax.Array, dropped_BxLxD: jax.Array, segments_BxL: jax.Array) -> Parts:
        """Σ of each part, 0 in evaluation.

        Args:
          model: says whether it is trained: dropout is on.
          hidden_BxLxD: the last layer's states.
          dropped_BxLxD: the same after the output dropout.
          segments_BxL: segment ids.
        """
        names = self.coefficients()
        if "dropout" not in model.rngs:
            return dict.fromkeys(names, jnp.zeros(()))
        is_real_BxL, is_pair_BxL = _masks(segments_BxL)
        steps_BxLxD = jnp.diff(hidden_BxLxD.astype(jnp.float32), axis=1)
        sums = {
            "activation": (jnp.square(dropped_BxLxD.astype(jnp.float32)).mean(-1) * is_real_BxL).sum(),
            "temporal_activation": (jnp.square(steps_BxLxD).mean(-1) * is_pair_BxL).sum(),
        }
        return {name: sums[name] for name in names}


def _masks(segments_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which tokens are real [B, L], and which are followed by one of their text [B, L - 1]."""
    is_real_BxL = segments_BxL > 0
    return is_real_BxL, is_real_BxL[:, 1:] & (segments_BxL[:, 1:] == segments_BxL[:, :-1])
