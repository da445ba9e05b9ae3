"""LAMB: Adam whose step has the length of the parameter, for large batches. Paper: https://arxiv.org/abs/1904.00962"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import optax
from flax import traverse_util

from jaxpt.config import Fraction, OptimizerConfig, PositiveFloat
from jaxpt.train import patterns
from jaxpt.train.optimizers.adamw import scale_by_adam
from jaxpt.train.optimizers.logical import decay_mask, per_layer


class Lamb(OptimizerConfig):
    """LAMB: −η·‖p‖/‖r‖·r, r = m̂/(√v̂ + ε) + λ·p; with `bias_correction: false` (ALBERT) m and v in place of m̂ and v̂."""

    kind: Literal["lamb"] = "lamb"
    b1: Fraction = 0.9
    """First-moment decay."""
    b2: Fraction = 0.999
    """Second-moment decay."""
    eps: PositiveFloat = 1e-6
    """ε."""
    bias_correction: bool = True
    """False is the LAMB of ALBERT's released code."""
    exclude: tuple[str, ...] = ()
    """Patterns, as in `train.trainable` without ranges of layers, of parameters with neither trust ratio ‖p‖/‖r‖
    nor weight decay: ['*/bias', '*/scale'] in ALBERT's released code."""

    def check(self, logical_axes: Any) -> None:
        patterns.held(self.exclude, _flat(logical_axes), "optimizer.exclude")

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        has_ratio = {path: not holds for path, holds in patterns.held(self.exclude, _flat(logical_axes)).items()}
        decayed = _flat(decay_mask(logical_axes, self.decay_all))

        def mask_fn(mask: Mapping[str, bool]) -> Callable[[Any], Any]:  # `per_layer` gives a part of the tree at a time
            return lambda params: traverse_util.unflatten_dict({path: mask[path] for path in _flat(params)}, sep="/")

        lamb = optax.chain(
            scale_by_adam(self.b1, self.b2, self.eps, self.bias_correction),
            optax.add_decayed_weights(
                self.weight_decay, mask_fn({path: has_ratio[path] and decayed[path] for path in decayed})
            ),
            optax.masked(optax.scale_by_trust_ratio(), mask_fn(has_ratio)),
            optax.scale_by_learning_rate(schedule),
        )
        return per_layer(lamb, logical_axes)


def _flat(tree: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")
