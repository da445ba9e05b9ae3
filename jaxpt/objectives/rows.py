"""Base of objectives whose loss reads some rows of tables, and nothing else of the parameters.

    examples(batch)                     what is read one after the other: rows of the batch, or blocks of them
    rows(examples)                      {path of a table: ids of the rows that they read}
    loss_from_rows(rows, examples)      the loss, a function of these rows

With `optimizer.kind: sparse_sgd` or `sparse_adagrad` a step takes gradients by these rows alone and changes them in
place (`jaxpt.train.sparse`): it costs what it reads, however large the tables are. Any other optimizer works as well,
and costs a pass over the tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.layers import Embed
from jaxpt.models.network import Head
from jaxpt.objectives.base import Batch, LossOutputs, Objective

Rows = dict[str, jax.Array]
"""{path of a table: what there is of each row}."""
Tables = Mapping[str, np.ndarray]
TOKENS, CONTEXTS = "model/token_embed/table", "heads/contexts/table"


class RowObjective(Objective):
    """Hyperparameters of objectives that read rows of tables."""

    predicts_tokens = False

    def check_writes(self, path: object) -> None:
        """Raises UserError: word vectors write no text; `path` is the model's."""
        hint = f"use jaxpt neighbours {shlex.quote(str(path))} WORD"
        raise UserError(f"{path}: objective.kind: {self.kind} makes word vectors and writes no text; {hint}")

    def examples(self, batch: Batch) -> Batch:
        """A batch as examples that do not depend on each other, [examples, ...]; its rows by default."""
        return batch

    def example_weights(self, examples: Batch) -> dict[str, jax.Array]:
        """As `weights`."""
        raise self._undefined("example_weights")

    def rows(self, examples: Batch) -> Rows:
        """The rows that examples read, as often as they read them: {path of a table: int32 [examples, ...]}."""
        raise self._undefined("rows")

    def loss_from_rows(self, rows: Rows, examples: Batch) -> LossOutputs:
        """As `loss`.

        Args:
          rows: {path: float32 [examples, ..., width]}, the tables' rows at the ids of `rows`.
          examples: of `examples`.
        """
        raise self._undefined("loss_from_rows")

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return self.example_weights(self.examples(batch))

    def loss(self, model: Bound, batch: Batch) -> LossOutputs:
        """`loss_from_rows` of the model's tables."""
        examples = self.examples(batch)
        ids = self.rows(examples)
        return self.loss_from_rows({path: lookup(table_of(model, path), ids[path]) for path in ids}, examples)

    def word_vectors(self, tables: Tables, ids: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """The vectors of words that a run gives away.

        Args:
          tables: {path: [rows, width]}, all parameters of the network.
          ids: int [V] of the words.
          words: their letters, for n-grams.

        Returns:
          float32 [V, width].
        """
        return tables[TOKENS][ids]

    def composer(self, tables: Tables) -> Callable[[str], np.ndarray | None] | None:
        """A function from an unknown word to its vector [width], None of a word without one; None where no unknown word
        has one."""
        return None

    def check_family(self, model: ModelConfig) -> None:
        """Models of all families have a table of token embeddings."""

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        """Raises UserError if the model is the exception."""
        if "token_embed" not in self.network(model).shapes()["model"]:
            raise UserError(
                f"model.kind: {model.kind} has no table of token embeddings, which objective.kind: {self.kind} trains; "
                "model.kind: word_vectors is one"
            )


def lookup(table_VxD: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows of a table: [..., D]; an id below 0 has some row, of which a loss makes nothing."""
    return jnp.take(nn.with_logical_constraint(table_VxD, ("vocab", None)), ids, axis=0, mode="clip")


def table_of(model: Bound, path: str) -> jax.Array:
    """A table of a bound network, by its path such as "heads/contexts/table"."""
    part, name, table = path.split("/")
    return (model.params[name] if part == "model" else model.heads[name].params)[table]


def table_head(rows: int, width: int, init: nn.initializers.Initializer) -> Head:
    """A further table as a head."""
    return Head(Embed(rows, width, init, jnp.float32), (jax.ShapeDtypeStruct((1, 1), jnp.int32),))


def width_of(model: ModelConfig) -> int:
    """Numbers of a row of the model's table of token embeddings."""
    return getattr(model, "table_dim", model.embed_dim)
