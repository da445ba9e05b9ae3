"""word2vec's update: −η · gradient, of the rows alone that a step reads."""

from __future__ import annotations

from typing import Literal

import jax

from jaxpt.train.optimizers.rows import RowOptimizer, Tables


class SparseSGD(RowOptimizer):
    """Gradient descent on the rows that a step reads (word2vec): −η·g, g the gradient of a sum over examples."""

    kind: Literal["sparse_sgd"] = "sparse_sgd"

    def update_rows(
        self, tables: Tables, slots: Tables, ids: Tables, grads: Tables, rate: jax.Array
    ) -> tuple[Tables, Tables]:
        return {path: tables[path].at[ids[path]].add(-rate * grads[path], mode="drop") for path in tables}, slots
