"""Skip-gram (word2vec): the vector of a word says which words are near it.

    L = mean over pairs of a word i and a word j in its window of L_c(v_i, j)

L_c, the classifier, is negative sampling or a hierarchical softmax (`word2vec.py`). v is a row of the model's
`token_embed`, times `scale`, or with `subwords` a mean of rows; u is one of the head `contexts`. Layers are not
computed: so a Transformer of any family can be given such embeddings to start from, by `init_from: {path: RUN_DIR,
partial: true}`.
Papers: https://arxiv.org/abs/1310.4546, with subwords https://arxiv.org/abs/1607.04606

Shapes: M blocks · S words of a block · H words around · K noise words · C nodes on the way to a word · D width
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxpt.objectives.base import Batch, LossOutputs
from jaxpt.objectives.rows import CONTEXTS, Rows
from jaxpt.objectives.word2vec import Word2Vec, mean_like_sum, path_loss


class SkipGram(Word2Vec):
    """Hyperparameters of skip-gram."""

    kind: Literal["skip_gram"] = "skip_gram"

    def example_weights(self, examples: Batch) -> dict[str, jax.Array]:
        return {"skip_gram": self.pairs(examples).sum()}

    def rows(self, examples: Batch) -> Rows:
        words = self.input_rows(self.own(examples["words"]), self.own(examples.get("subwords")))
        if self.classifier == "hierarchical_softmax":
            return words | {CONTEXTS: examples["paths"] >> 1}
        return words | {CONTEXTS: jnp.concatenate([examples["words"], examples["noise"]], axis=1)}

    def loss_from_rows(self, rows: Rows, examples: Batch) -> LossOutputs:
        pairs_MxSxH = self.pairs(examples)
        v_MxSxD = mean_like_sum(*self.input_sums(rows, self.own(examples.get("subwords"))))
        count_MxS, around = pairs_MxSxH.sum(-1), pairs_MxSxH.shape[-1]
        if self.classifier == "hierarchical_softmax":
            scores_MxSxHxC = jnp.einsum("msd,mhcd->mshc", v_MxSxD, rows[CONTEXTS])
            loss_MxS = (pairs_MxSxH * path_loss(scores_MxSxHxC, examples["paths"][:, None])).sum(-1)
        else:
            scores_MxSxR = jnp.einsum("msd,mrd->msr", v_MxSxD, rows[CONTEXTS])  # neighbours, then noise
            near_MxS = (pairs_MxSxH * jax.nn.softplus(-scores_MxSxR[..., :around])).sum(-1)
            loss_MxS = near_MxS + count_MxS * self.noise_loss(scores_MxSxR[..., around:])
        return self.finished(loss_MxS, count_MxS, examples)
