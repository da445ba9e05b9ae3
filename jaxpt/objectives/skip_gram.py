"""Skip-gram with negative sampling (word2vec): the embedding of a token says which tokens are near it.

    text, window 2     a b c d e       the neighbours of c: b and d with weight 1, a and e with 1/2

    L = mean over pairs of w(d) · [ −log σ(v · u) − k · mean over noise n of log σ(−v · u_n) ]
        w(d) = (window + 1 − d) / window, the share of word2vec's drawn windows that reach a distance of d

v is a row of the model's `token_embed`, times `scale`; u is one of a second table, the head `contexts`. Layers are not
computed, so a token costs a hundredth of what it costs a language model. A run of any family can start from it:
`init_from: {path: RUN_DIR, partial: true}`. Paper: https://arxiv.org/abs/1310.4546.

Shapes: B batch · L length · D width of the table · K noise tokens of a row
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from jaxpt.config import ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import DataSpec, text_windows
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.layers import Embed
from jaxpt.models.network import Head
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, Metrics, Objective


class SkipGram(Objective):
    """Hyperparameters of skip-gram."""

    kind: Literal["skip_gram"] = "skip_gram"
    family: ClassVar[str] = "encoder"
    window: PositiveInt = 5
    """Neighbours on each side."""
    negatives: PositiveInt = 5
    """k: the weight of the noise against one neighbour."""
    noise: PositiveInt = 64
    """K: noise tokens of a row; all of its tokens are compared with them."""
    noise_exponent: Annotated[float, Field(ge=0.0, le=1.0)] = 0.75
    """Noise is drawn from the counts of the training text to this power."""
    subsample: NonNegativeFloat = 1.0e-3
    """Tokens with a larger share of the text than this are left out often; 0: never."""
    scale: PositiveFloat = 16.0
    """v is so many times a row of the table: a model whose embeddings are normalized wants a small table."""

    def data_spec(self, length: int) -> DataSpec:
        names = ("encoder_input_tokens", "encoder_segment_ids", "encoder_positions")
        draws = {"subsample": self.subsample, "noise": self.noise, "noise_exponent": self.noise_exponent}
        transforms = Transforms(
            offline=text_windows(length, join=False, shortest=2),
            online=(
                Call(preprocessors.skip_gram.draw, draws),
                Call(preprocessors.skip_gram.features, {"length": length, "noise": self.noise}),
            ),
        )
        return DataSpec(
            features={**dict.fromkeys(names, ((length,), "int32")), "noise_tokens": ((self.noise,), "int32")},
            transforms=lambda vocabulary, seed: transforms,
        )

    def heads(self, model: ModelConfig) -> dict[str, Head]:
        token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        return {"contexts": Head(_table(model, nn.initializers.zeros), (token,))}

    def coefficients(self) -> dict[str, float]:
        return {"skip_gram": 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"skip_gram": self._pairs(batch).sum()}

    def loss(self, model: Bound, batch: Batch) -> LossOutputs:
        tokens_BxL, pairs_BxLxL = batch["encoder_input_tokens"], self._pairs(batch)
        table = _table(model.config, nn.initializers.zeros)
        v_BxLxD = self.scale * table.apply({"params": model.params["token_embed"]}, tokens_BxL)
        u_BxLxD, noise_BxKxD = model.heads["contexts"](tokens_BxL), model.heads["contexts"](batch["noise_tokens"])
        near_BxLxL = jax.nn.softplus(-jnp.einsum("BLD,BMD->BLM", v_BxLxD, u_BxLxD))
        noise_BxL = jax.nn.softplus(jnp.einsum("BLD,BKD->BLK", v_BxLxD, noise_BxKxD)).mean(-1)
        loss_BxL = (pairs_BxLxL * near_BxLxL).sum(-1) + self.negatives * pairs_BxLxL.sum(-1) * noise_BxL
        metrics: Metrics = {}
        if (mask_BxL := batch.get("eval_mask")) is not None:
            metrics["target_loss"] = ((loss_BxL * mask_BxL).sum(), (pairs_BxLxL.sum(-1) * mask_BxL).sum())
        return {"skip_gram": loss_BxL.sum()}, metrics

    def _pairs(self, batch: Batch) -> jax.Array:
        """Weight of each token as a neighbour of each other: [B, L, L]."""
        segments_BxL = batch["encoder_segment_ids"]
        place_L = jnp.arange(segments_BxL.shape[1])
        distance_LxL = jnp.abs(place_L[:, None] - place_L)
        weight_LxL = jnp.maximum(self.window + 1 - distance_LxL, 0) / self.window * (distance_LxL > 0)
        are_text = (segments_BxL[:, :, None] == segments_BxL[:, None]) & (segments_BxL[:, :, None] > 0)
        return weight_LxL * are_text

    @property
    def baseline(self) -> Baseline:
        """Vectors of zeros: near or noise, one is as likely as the other."""
        return Baseline(
            "uniform",
            "neighbours of each token",
            eval_mask=lambda batch, vocabulary: (batch["encoder_segment_ids"] > 0).astype(np.float32),
            loss=lambda validation: (1 + self.negatives) * math.log(2),
        )

    def check_family(self, model: ModelConfig) -> None:
        """Models of all families have a table of token embeddings."""

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.window >= length:
            raise UserError(f"objective.window: {self.window} must be less than data.length, {length}")


def _table(model: ModelConfig, init: nn.initializers.Initializer) -> Embed:
    """A table of the shape of the model's embeddings."""
    return Embed(model.vocab_size, getattr(model, "table_dim", model.embed_dim), init, jnp.float32)
