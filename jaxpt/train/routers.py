"""What a run says of its routers: a figure for each layer and expert, and a warning of experts that get no token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxpt.models.moe import ROUTERS, MixtureConfig

MOST_SHARES = 1024
"""Up to so many experts of all layers each has a figure; of more the largest share of each layer is written alone."""
SHARE = f"{ROUTERS}share"


def sparse_layers(model: MixtureConfig, side: str) -> list[int]:
    """Numbers of the sparse layers of a stack; `side` is "encoder_", "decoder_" or "" of a model with one stack."""
    count = (getattr(model, "decoder_layers", None) or model.layers) if side == "decoder_" else model.layers
    return [i for i in range(count) if model.is_sparse(i)]


def by_layer(model: Any, means: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a step with the numbers of layers and experts in the names of routers' metrics.

    Args:
      model: configuration of the model.
      means: {name: mean}; a router's "router/share" is [sparse layers, experts], others [sparse layers].

    Returns:
      {name: figure}: "router/entropy/LAYER", "router/dropped/LAYER" and "router/share/LAYER/EXPERT"; and
      "router/imbalance/LAYER", the largest share times the number of experts: 1 where all have the same.
    """
    figures = {name: x for name, x in means.items() if ROUTERS not in name}
    for name in (name for name in means if ROUTERS in name):
        side, _, what = name.partition(ROUTERS)
        values = np.asarray(means[name])
        for layer, row in zip(sparse_layers(model, side), values, strict=True):
            if not name.endswith(SHARE):
                figures[f"{name}/{layer}"] = row
                continue
            figures[f"{side}{ROUTERS}imbalance/{layer}"] = row.max() * len(row)
            if values.size <= MOST_SHARES:
                figures |= {f"{side}{ROUTERS}{what}/{layer}/{expert}": x for expert, x in enumerate(row)}
    return figures


def dead(model: Any, means: Mapping[str, Any]) -> list[str]:
    """Layers with experts that no token has chosen, in words.

    Args:
      model: configuration of the model.
      means: as of `by_layer`, over many steps.

    Example: ["encoder layer 3: 2 of 8 experts"].
    """
    lines = []
    for name in (name for name in means if name.endswith(SHARE)):
        side = name.removesuffix(SHARE)
        for layer, row in zip(sparse_layers(model, side), np.asarray(means[name]), strict=True):
            if count := int((row == 0).sum()):
                lines.append(f"{side.replace('_', ' ')}layer {layer}: {count} of {len(row)} experts")
    return lines


class Watch:
    """Reports experts that get no token, once for each of them."""

    MIN_STEPS = 5
    """Fewer steps say little."""

    def __init__(self) -> None:
        """Nothing has been reported."""
        self._reported: list[str] = []

    def news(self, model: Any, means: Mapping[str, Any], steps: int) -> str | None:
        """A warning, if other experts than before got no token.

        Args:
          model: configuration of the model.
          means: as of `by_layer`.
          steps: number of steps that they are means of.
        """
        if steps < self.MIN_STEPS:
            return None
        unused, previous = dead(model, means), self._reported
        self._reported = unused
        if not unused or unused == previous:
            return None
        advice = "raise model.balance_weight, or lower optimizer.learning_rate"
        return f"no token of {steps} steps went to {'; '.join(unused)}; {advice}"
