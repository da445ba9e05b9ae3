"""GloVe's AdaGrad, of the rows alone that a step reads. Paper: https://jmlr.org/papers/v12/duchi11a.html"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxpt.config import PositiveFloat
from jaxpt.train.optimizers.rows import RowOptimizer, Tables


class SparseAdagrad(RowOptimizer):
    """AdaGrad on the rows that a step reads (GloVe): s ← s + (η·g)², −η·g/√s, g the gradient of a sum over examples.

    As in GloVe's code η is in s as well, and each of the n gradients of a row that is read n times counts for itself.
    Unlike it, all of a step go into s before it divides them.
    """

    kind: Literal["sparse_adagrad"] = "sparse_adagrad"
    initial_sum: PositiveFloat = 1.0
    """s at the start."""

    def slots(self, params: Any) -> Any:
        return jax.tree.map(lambda x: jnp.full_like(x, self.initial_sum), params)

    def update_rows(
        self, tables: Tables, slots: Tables, ids: Tables, grads: Tables, rate: jax.Array
    ) -> tuple[Tables, Tables]:
        new_tables, new_slots = {}, {}
        for path, table in tables.items():
            steps, at = rate * grads[path], ids[path]
            new_slots[path] = slots[path].at[at].add(jnp.square(steps), mode="drop")
            new_tables[path] = table.at[at].add(-steps * jax.lax.rsqrt(new_slots[path][at]), mode="drop")
        return new_tables, new_slots
