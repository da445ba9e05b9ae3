"""GloVe: the product of two words' vectors is the logarithm of how often the words are near each other.

    X_ij    Σ of 1 / distance over the places of the corpus where words i and j are at most `window` apart
    L = Σ over pairs of f(X_ij) · ½ (w_i · u_j + b_i + c_j − log X_ij)²          f(x) = min(1, (x / x_max)^α)

w is the model's `token_embed`, u, b and c are the heads `contexts`, `bias` and `context_bias`. The published vectors
are w + u. X is counted once, with the records. Paper: https://aclanthology.org/D14-1162

Shapes: B rows of a batch · P pairs of a row · D width
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec, text_windows
from jaxpt.errors import UserError
from jaxpt.models.layers import uniform
from jaxpt.models.network import Head
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, Metrics
from jaxpt.objectives.rows import CONTEXTS, TOKENS, RowObjective, Rows, Tables, table_head, width_of

BIAS, CONTEXT_BIAS = "heads/bias/table", "heads/context_bias/table"
_TEXT = 4096  # tokens of a text that is counted: no pair crosses its end


class GloVe(RowObjective):
    """Hyperparameters of GloVe; `data.length` is the number of pairs in a row."""

    family: ClassVar[str] = "encoder"
    kind: Literal["glove"] = "glove"
    window: PositiveInt = 10
    """Words on each side that are near; unknown ones are passed over."""
    x_max: PositiveFloat = 100.0
    """Pairs that are more frequent have no more weight."""
    alpha: Annotated[float, Field(ge=0.0, le=1.0)] = 0.75
    """α."""

    def data_spec(self, length: int) -> DataSpec:
        features = {"words": ((length,), "int32"), "contexts": ((length,), "int32"), "counts": ((length,), "float32")}

        def transforms(vocabulary: Vocabulary, seed: int) -> Transforms:
            options = {"window": self.window, "length": length, "unknown": vocabulary.unk}
            return Transforms(
                offline=text_windows(_TEXT, join=False, shortest=2),
                corpus=Call(preprocessors.cooccurrences.count, options),
                online=(Call(preprocessors.cooccurrences.features, {"length": length}),),
            )

        return DataSpec(features=features, transforms=transforms)

    def heads(self, model: ModelConfig) -> dict[str, Head]:
        width, rows = width_of(model), model.vocab_size
        init = uniform(0.5 / width)
        tables = {"contexts": width, "bias": 1, "context_bias": 1}
        return {name: table_head(rows, size, init) for name, size in tables.items()}

    def coefficients(self) -> dict[str, float]:
        return {"glove": 1.0}

    def example_weights(self, examples: Batch) -> dict[str, jax.Array]:
        return {"glove": (examples["counts"] > 0).sum().astype(jnp.float32)}

    def rows(self, examples: Batch) -> Rows:
        words, contexts = examples["words"], examples["contexts"]
        return {TOKENS: words, CONTEXTS: contexts, BIAS: words, CONTEXT_BIAS: contexts}

    def loss_from_rows(self, rows: Rows, examples: Batch) -> LossOutputs:
        counts_BxP = examples["counts"]
        scores_BxP = (rows[TOKENS] * rows[CONTEXTS]).sum(-1) + (rows[BIAS] + rows[CONTEXT_BIAS])[..., 0]
        error_BxP = scores_BxP - jnp.log(jnp.where(counts_BxP > 0, counts_BxP, 1.0))
        weight_BxP = jnp.minimum(counts_BxP / self.x_max, 1.0) ** self.alpha * (counts_BxP > 0)
        loss_BxP = 0.5 * weight_BxP * jnp.square(error_BxP)
        metrics: Metrics = {}
        if (mask_BxP := examples.get("eval_mask")) is not None:
            # Of a text of another size all counts are so many times as large: the error counts without its mean.
            mean = (weight_BxP * error_BxP).sum() / jnp.maximum(weight_BxP.sum(), 1e-9)
            squares_BxP = 0.5 * weight_BxP * jnp.square(error_BxP - mean)
            metrics["target_loss"] = (squares_BxP * mask_BxP).sum(), mask_BxP.sum()
        return {"glove": loss_BxP.sum()}, metrics

    def word_vectors(self, tables: Tables, ids: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """w + u, as in the released code."""
        return tables[TOKENS][ids] + tables[CONTEXTS][ids]

    @property
    def baseline(self) -> Baseline:
        """The best constant of each batch: the weighted mean of the logarithms."""
        return Baseline(
            "constant",
            "pairs of words",
            eval_mask=lambda batch, vocabulary: (batch["counts"] > 0).astype(np.float32),
            loss=self._constant_loss,
            unit="weighted squared error",
        )

    def _constant_loss(self, validation: Iterable[Arrays]) -> float:
        total = count = 0.0
        for batch in validation:
            counts = batch["counts"][batch["counts"] > 0].astype(np.float64)
            weights = np.minimum(counts / self.x_max, 1.0) ** self.alpha
            total += (0.5 * weights * (np.log(counts) - np.average(np.log(counts), weights=weights)) ** 2).sum()
            count += len(counts)
        return total / count

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if self.window >= _TEXT:
            raise UserError(f"objective.window: {self.window} must be less than {_TEXT}")
