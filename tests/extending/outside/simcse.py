"""Unsupervised SimCSE: a sentence is its own positive, under other dropout; the others of the batch are negatives.

    loss_i = −log exp(cos(z_i, z'_i) / τ) / Σ_j exp(cos(z_i, z'_j) / τ)

z and z' are the projected states of [CLS] in two passes. They are one pass here, in which each row stands twice: every
row draws its own dropout. Negatives are those of the whole global batch; with `train.grad_accum_steps` those of the
microbatch, so that accumulation saves memory but has fewer negatives. As in the paper a run begins with a pretrained
encoder (`init_from` with `partial`): from random parameters dropout outweighs the differences of sentences, and all of
them become alike. Paper: https://arxiv.org/abs/2104.08821

Shapes: B sentences · L length · D width
"""

from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import PositiveFloat
from jaxpt.data.calls import Call, Transforms, preprocessors
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.models.base import compute_dtype
from jaxpt.models.layers import Dense
from jaxpt.models.network import Head
from jaxpt.objectives.base import Baseline, Objective, encode_batch
from jaxpt.objectives.losses import cross_entropy


class Projection(nn.Module):
    """tanh(x · W + b)."""

    config: object

    @nn.compact
    def __call__(self, x_BxD):
        init, dtype = nn.initializers.truncated_normal(0.02), compute_dtype(self.config)
        return jnp.tanh(Dense(x_BxD.shape[-1], ("embed", "norm"), init, dtype, name="dense")(x_BxD))


class SimCSE(Objective):
    """Hyperparameters of SimCSE."""

    family: ClassVar[str] = "encoder"

    kind: Literal["tests.extending.outside.simcse"] = "tests.extending.outside.simcse"
    temperature: PositiveFloat = 0.05
    """τ."""

    def data_spec(self, length):
        """[CLS] text [SEP], a document in a row; of a longer one several rows."""
        names = ("input_tokens", "token_types", "segment_ids", "positions")

        def transforms(vocabulary, seed):
            cut = Call(preprocessors.windows.cut, {"length": length - 2, "join": False})
            enclose = Call(preprocessors.windows.enclose, {"cls": vocabulary.cls, "sep": vocabulary.sep})
            rows = Call("tests.extending.outside.preprocessors.encoder", {"length": length})
            return Transforms(offline=(Call(preprocessors.documents.tokenize), cut, enclose), online=(rows,))

        features = {f"encoder_{name}": ((length,), "int32") for name in names}
        return DataSpec(features, transforms, overhead_tokens=2)

    def heads(self, model):
        state = jax.ShapeDtypeStruct((1, model.embed_dim), jnp.float32)
        return {"projection": Head(Projection(model), (state,))}

    def coefficients(self):
        return {"simcse": 1.0}

    def weights(self, batch):
        return {"simcse": _real(batch).sum(dtype=jnp.float32)}

    def output(self, model, batch):
        return encode_batch(model, {name: jnp.repeat(x, 2, axis=0) for name, x in batch.items()})

    def loss_from_hidden(self, model, hidden, batch):
        z = model.heads["projection"](hidden[:, 0]).astype(jnp.float32)
        z /= jnp.maximum(jnp.linalg.norm(z, axis=-1, keepdims=True), 1e-6)
        cosine_BxB = z[::2] @ z[1::2].T
        real_B, own_B = _real(batch), jnp.arange(len(cosine_BxB))
        logits_BxB = jnp.where(real_B, cosine_BxB / self.temperature, -1e9)
        loss_B = cross_entropy(logits_BxB, own_B)
        others_BxB = real_B & real_B[:, None] & (own_B != own_B[:, None])
        metrics = {
            "accuracy": ((real_B & (logits_BxB.argmax(-1) == own_B)).sum(), real_B.sum()),
            "cosine_of_others": ((cosine_BxB * others_BxB).sum(), others_BxB.sum()),
        }
        if "eval_mask" in batch:
            metrics["target_loss"] = ((loss_B * batch["eval_mask"]).sum(), batch["eval_mask"].sum())
        return {"simcse": (loss_B * real_B).sum()}, jax.lax.stop_gradient(metrics)

    @property
    def baseline(self):
        """A uniform choice among the sentences of a batch, of which every one counts."""

        def uniform_loss(validation):
            sizes = np.array([_real(batch).sum() for batch in validation])
            return float((sizes * np.log(np.maximum(sizes, 1))).sum() / max(sizes.sum(), 1))

        return Baseline(
            "uniform choice",
            "all sentences",
            eval_mask=lambda batch, vocabulary: _real(batch).astype(np.float32),
            loss=uniform_loss,
            report_lines=lambda means: [
                f"cosine of different sentences: {means['cosine_of_others']:.3f} (1: all alike)"
            ],
        )

    def check(self, model, length, vocabulary):
        if vocabulary.cls is None or vocabulary.sep is None:
            raise UserError("simcse needs a vocabulary with [CLS] and [SEP]; data.tokenizer.kind: wordpiece has them")
        if not model.dropout:
            raise UserError("model.dropout: 0 makes both passes of simcse alike; the paper has 0.1")


def _real(batch):
    """Which rows hold a sentence, bool [B]."""
    return batch["encoder_segment_ids"][:, 0] > 0
