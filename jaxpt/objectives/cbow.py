"""CBOW (word2vec) predicts each word from the mean of the vectors of the words around it.

    h_i = mean over the words j in the window of i of v_j          L = mean over words i of L_c(h_i, i)

L_c, the classifier, is negative sampling or a hierarchical softmax (`word2vec.py`). With `subwords` the mean is over
all rows of all words of the window, as in fastText.
Papers: https://arxiv.org/abs/1301.3781, https://arxiv.org/abs/1310.4546

Shapes: M blocks · S words of a block · H words around · K noise words · C nodes on the way to a word · D width
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxpt.objectives.base import Batch, LossOutputs
from jaxpt.objectives.rows import CONTEXTS, Rows
from jaxpt.objectives.word2vec import Word2Vec, mean_like_sum, path_loss


class CBOW(Word2Vec):
    """Hyperparameters of CBOW."""

    kind: Literal["cbow"] = "cbow"

    def example_weights(self, examples: Batch) -> dict[str, jax.Array]:
        return {"cbow": self.pairs(examples).any(-1).sum().astype(jnp.float32)}

    def rows(self, examples: Batch) -> Rows:
        words = self.input_rows(examples["words"], examples.get("subwords"))
        if self.classifier == "hierarchical_softmax":
            return words | {CONTEXTS: self.own(examples["paths"]) >> 1}
        return words | {CONTEXTS: jnp.concatenate([self.own(examples["words"]), examples["noise"]], axis=1)}

    def loss_from_rows(self, rows: Rows, examples: Batch) -> LossOutputs:
        pairs_MxSxH = self.pairs(examples)
        sums_MxHxD, counts = self.input_sums(rows, examples.get("subwords"))
        counts_MxH = jnp.broadcast_to(counts, sums_MxHxD.shape[:2])
        count_MxS = jnp.einsum("msh,mh->ms", pairs_MxSxH, counts_MxH)
        h_MxSxD = jnp.einsum("msh,mhd->msd", pairs_MxSxH, sums_MxHxD)
        h_MxSxD = mean_like_sum(h_MxSxD, jnp.maximum(count_MxS, 1.0))
        if self.classifier == "hierarchical_softmax":
            scores_MxSxC = jnp.einsum("msd,mscd->msc", h_MxSxD, rows[CONTEXTS])
            loss_MxS = path_loss(scores_MxSxC, self.own(examples["paths"]))
        else:
            size = h_MxSxD.shape[1]
            near_MxS = jax.nn.softplus(-(h_MxSxD * rows[CONTEXTS][:, :size]).sum(-1))
            noise_MxSxK = jnp.einsum("msd,mkd->msk", h_MxSxD, rows[CONTEXTS][:, size:])
            loss_MxS = near_MxS + self.noise_loss(noise_MxSxK)
        has_any_MxS = (count_MxS > 0).astype(jnp.float32)
        return self.finished(has_any_MxS * loss_MxS, has_any_MxS, examples)
