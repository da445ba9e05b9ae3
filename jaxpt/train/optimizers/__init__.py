"""Optimizers, all of optax, one module each: `optimizer.kind: lamb` names `jaxpt.train.optimizers.lamb`.

Each is a frozen class of its own hyperparameters whose `build` gives an optax transformation.
"""

from jaxpt.train.optimizers.base import decayed, make
from jaxpt.train.optimizers.groups import Group
from jaxpt.train.optimizers.logical import decay_mask, is_axes, per_layer, rank, state_axes

__all__ = ["Group", "decay_mask", "decayed", "is_axes", "make", "per_layer", "rank", "state_axes"]
