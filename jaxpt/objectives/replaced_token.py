"""ELECTRA's objective: a generator fills masks, a discriminator tells which tokens are not the original ones.

    text            the chef cooked the meal
    generator       [MASK] chef [MASK] the meal      masked LM at both
    sampled         the chef ate the meal            from the generator's distribution
    discriminator   0 0 1 0 0                        "the" is the original: not replaced

All chosen positions take the sample, those too that were not masked (15 % of them). Nothing passes back through the
sample. The total is the generator's cross-entropy plus 50 times the discriminator's binary cross-entropy, which is over
all tokens but padding. Papers: https://arxiv.org/abs/2003.10555, DeBERTa-v3 https://arxiv.org/abs/2111.09543
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from jaxpt.config import Fraction, ModelConfig, PositiveFloat
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.losses import sample
from jaxpt.models.base import Bound
from jaxpt.objectives.base import Batch, Metrics
from jaxpt.objectives.masked_lm import MaskedLM, MaskedLMJudge, MaskedLMLoss, encoded


class ReplacedToken(MaskedLM):
    """Hyperparameters of replaced-token detection; the defaults are ELECTRA's (its large model masks 0.25)."""

    kind: Literal["replaced_token"] = "replaced_token"
    mask_probability: Fraction = 0.85
    """Share of the chosen tokens that the generator sees as [MASK]."""
    random_probability: Fraction = 0.0
    next_sentence: bool = False
    discriminator_weight: PositiveFloat = 50.0
    """Of the discriminator's loss in the total."""

    @property
    def loss(self) -> ReplacedTokenLoss:
        return ReplacedTokenLoss(self)

    @property
    def judge(self) -> ReplacedTokenJudge:
        return ReplacedTokenJudge(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if not getattr(model, "generator", None):
            raise UserError(
                f"model.kind: {model.kind} has no generator, which objective.kind: replaced_token trains too; set "
                "model.generator=0.25 in an electra, or model.generator=1 in a deberta"
            )
        super().check(model, length, vocabulary)


class ReplacedTokenLoss(MaskedLMLoss):
    """The generator's cross-entropy of the masked targets, and the discriminator's of all tokens."""

    h: ReplacedToken
    states: ClassVar[str] = "generator_states"

    def coefficients(self) -> dict[str, float]:
        return {"masked_lm": 1.0, "replaced_token": self.h.discriminator_weight}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | {"replaced_token": _real(batch).sum()}

    def __call__(self, model: Bound, batch: Batch) -> tuple[dict[str, jax.Array], Metrics]:
        generated = self.output(model, batch)
        sums, metrics = self.loss_from_hidden(model, generated.hidden, batch)
        chosen = jnp.take_along_axis(generated.hidden, batch["masked_positions"][..., None], axis=1)
        key = model.rngs["sample"] if model.rngs else jax.random.key(0)  # an evaluation draws the same every time
        sampled = sample(model.lm_states(chosen), model.output_projection(), key, chunk=self.h.loss_chunk)
        tokens, labels = replaced(batch, sampled)

        output = encoded(model, {**batch, "encoder_input_tokens": tokens}).plus(generated.aux)
        scores = model.replaced(output.hidden)
        weights = _real(batch)
        total = (optax.sigmoid_binary_cross_entropy(scores, labels) * weights).sum()
        said = (scores > 0).astype(jnp.float32)
        of_labels = {
            "discriminator_accuracy": ((said == labels) * weights, weights),
            "discriminator_recall": (said * labels * weights, labels * weights),
            "discriminator_precision": (said * labels * weights, said * weights),
            "replaced_share": (labels * weights, weights),
        }
        metrics |= {name: (x.sum(), weight.sum()) for name, (x, weight) in of_labels.items()}
        return {**sums, "replaced_token": total, **output.aux}, metrics


class ReplacedTokenJudge(MaskedLMJudge):
    """The generator as in masked LM, and the discriminator."""

    def report_lines(self, means: Mapping[str, float]) -> list[str]:
        """The discriminator beside one probability for all tokens, the share of replaced ones: its entropy, in nats."""
        share, loss = means["replaced_share"], means["replaced_token"]
        constant = -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
        return [
            f"validation, all tokens but padding: discriminator {loss:.3f} nats, one probability for all "
            f"{constant:.3f}: {abs(constant - loss):.3f} nats {'below' if loss < constant else 'ABOVE'} it; "
            f"right in {means['discriminator_accuracy']:.1%}, {max(share, 1 - share):.1%} without looking"
        ]


def replaced(batch: Batch, sampled: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The discriminator's input: the text with the samples at the chosen positions.

    Args:
      batch: encoder_input_tokens [batch, length], masked_{positions,targets,weights} [batch, max_predictions].
      sampled: int32 [batch, max_predictions].

    Returns:
      (int32 tokens, float32 labels), [batch, length]; label 1 where a token is not the original one.

    Example:
      >>> import jax.numpy as jnp
      >>> masked = {"positions": [[1, 3, 0]], "targets": [[11, 13, 0]], "weights": [[1.0, 1.0, 0.0]]}
      >>> batch = {f"masked_{name}": jnp.array(x) for name, x in masked.items()}
      >>> batch["encoder_input_tokens"] = jnp.array([[2, 4, 12, 4, 14, 3]])
      >>> tokens, labels = replaced(batch, jnp.array([[11, 77, 55]]))
      >>> tokens.tolist(), labels.tolist()
      ([[2, 11, 12, 77, 14, 3]], [[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
    """
    tokens, weights = batch["encoder_input_tokens"], batch["masked_weights"]
    positions = jnp.where(weights > 0, batch["masked_positions"], tokens.shape[-1])  # outside: dropped
    put = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
    differs = (sampled != batch["masked_targets"]).astype(jnp.float32)
    return put(tokens, positions, sampled), put(jnp.zeros_like(tokens, jnp.float32), positions, differs)


def _real(batch: Batch) -> jax.Array:
    """1.0 on what is not padding."""
    return (batch["encoder_segment_ids"] > 0).astype("float32")
