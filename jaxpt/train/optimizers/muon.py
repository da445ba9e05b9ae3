"""Muon: momentum made orthogonal, for the matrices inside the network. Paper: https://arxiv.org/abs/2502.16982"""

from __future__ import annotations

from typing import Any, Literal

import jax
import optax
import optax.contrib

from jaxpt.config import Fraction, OptimizerConfig, PositiveFloat
from jaxpt.train.optimizers.logical import Axes, decay_mask, is_axes, rank

NOT_MATRICES = frozenset({"vocab", "positions", "buckets", "classes"})
"""Axes of tables and output heads, which Muon leaves to AdamW."""


class Muon(OptimizerConfig):
    """Muon: −η·(√max(1, out/in)·orthogonal(b1·m̂ + (1 − b1)·ĝ) + λ·p) for matrices inside the network; AdamW (with its
    own b1 of 0.9) on the same schedule for everything else."""

    kind: Literal["muon"] = "muon"
    b1: Fraction = 0.95
    """Decay of Muon's momentum."""
    b2: Fraction = 0.999
    """AdamW's second-moment decay."""
    eps: PositiveFloat = 1e-8
    """AdamW's ε."""
    adam_learning_rate: PositiveFloat | None = None
    """Peak learning rate of the AdamW that takes embeddings, norms and biases; `learning_rate` by default."""

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        ratio = (self.adam_learning_rate or self.learning_rate) / self.learning_rate
        not_matrices = _map(lambda axes: optax.MaskedNode() if is_matrix(axes) else axes, logical_axes)
        adam = optax.adamw(
            lambda step: ratio * schedule(step),
            b2=self.b2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            mask=lambda _: decay_mask(not_matrices, self.decay_all),
        )
        labels = _map(lambda axes: "muon" if is_matrix(axes) else "adam", logical_axes)
        return optax.partition({"muon": self._matrices(schedule, logical_axes), "adam": adam}, labels)

    def _matrices(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        def dimensions(axes: Axes) -> Any:  # the stacks' axes are a batch of matrices to Muon
            first = len(axes) - 2
            return optax.contrib.MuonDimensionNumbers(first, first + 1) if is_matrix(axes) else optax.MaskedNode()

        return optax.chain(
            optax.contrib.scale_by_muon(beta=self.b1, weight_dimension_numbers=_map(dimensions, logical_axes)),
            optax.stateless_with_tree_map(lambda u, p: u * max(1.0, p.shape[-1] / p.shape[-2]) ** 0.5),
            optax.add_decayed_weights(self.weight_decay),
            optax.scale_by_learning_rate(schedule),
        )


def is_matrix(axes: Axes) -> bool:
    """Whether Muon takes an array of these axes."""
    return rank(axes) == 2 and NOT_MATRICES.isdisjoint(axes)


def _map(function: Any, logical_axes: Any) -> Any:
    return jax.tree.map(function, logical_axes, is_leaf=is_axes)
