"""What the optimizers of `jaxpt.train.sparse` share: they are given gradients of the rows of tables that a step reads.

A row that a step reads n times is given n gradients, each of a *sum* over examples: so the published rates of word2vec,
fastText and GloVe hold, whose programs go from example to example.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxpt.config import OptimizerConfig, PositiveInt
from jaxpt.errors import UserError

Tables = dict[str, jax.Array]
"""{path of a table: an array [rows, width], or what belongs to some of its rows}."""


class RowState(NamedTuple):
    """State of an optimizer of rows."""

    schedule: optax.ScaleByScheduleState
    """Counts the updates."""
    slots: Any
    """Like the parameters; () if there are none."""


class RowOptimizer(OptimizerConfig):
    """What optimizers of rows share."""

    updates: PositiveInt = 1
    """Updates of a step, one after the other, each of an equal share of the batch: of its blocks of 32 words
    (skip_gram, cbow), or rows. Frequent words are in all of them: the gradients of many of their uses at the same
    values add up to steps that are far too long."""

    def slots(self, params: Any) -> Any:
        """What is kept of each parameter: a tree like them; () for nothing."""
        return ()

    def update_rows(self, tables: Tables, slots: Tables, ids: Tables, grads: Tables, rate: jax.Array) -> Any:
        """Changes the rows that a step has read, in place where the arrays are donated.

        Args:
          tables: of the parameters.
          slots: of the same parameters; {} if there are none.
          ids: int32 [n] of each table.
          grads: float32 [n, width] of each table; zeros change nothing.
          rate: the learning rate.

        Returns:
          (tables, slots).
        """
        raise NotImplementedError

    def check(self, logical_axes: Any) -> None:
        for name in ("weight_decay", "clip_norm", "ema_decay", "layer_decay", "rate_multipliers", "decay_multipliers"):
            if getattr(self, name):
                raise UserError(f"optimizer.{name}: reads whole tables; optimizer.kind: {self.kind} does not have it")

    def build(self, schedule: optax.Schedule, logical_axes: Any) -> optax.GradientTransformation:
        """The optimizer as optax has it, for its state alone: `jaxpt.train.sparse` makes the updates."""

        def init(params: Any) -> RowState:
            return RowState(optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), self.slots(params))

        def update(grads: Any, state: RowState, params: Any = None) -> Any:
            raise UserError(f"optimizer.kind: {self.kind}: is for objectives that read rows: skip_gram, cbow, glove")

        return optax.GradientTransformation(init, update)
