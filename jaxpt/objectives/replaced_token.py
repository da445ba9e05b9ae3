"""ELECTRA's objective: a generator fills in masked tokens, a discriminator detects the replaced tokens.

    text            the chef cooked the meal
    generator       [MASK] chef [MASK] the meal      masked LM at both
    sampled         the chef ate the meal            from the generator's distribution
    discriminator   0 0 1 0 0                        "the" is the original: not replaced

All selected positions are replaced by samples, including the 15 % that were not masked. No gradient flows through the
samples. The total is the generator's cross-entropy plus 50 times the discriminator's binary cross-entropy over all
non-padding tokens. The model is the discriminator; the generator is a smaller model, stored as a head. Both share their
embeddings E, or the discriminator adds a learned difference Δ, initially 0 (sg is stop-gradient):

    shared          E_D = E_G          trained by both losses (ELECTRA)
    disentangled    E_D = sg(E_G) + Δ  the generator's loss trains E_G, the discriminator's loss Δ (DeBERTa-v3)

Papers: https://arxiv.org/abs/2003.10555, DeBERTa-v3 https://arxiv.org/abs/2111.09543
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from pydantic import ValidationError

from jaxpt.config import Fraction, ModelConfig, Overrides, PositiveFloat
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import masked_lm, replaced_token
from jaxpt.models.network import Head, Network
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, encode_batch
from jaxpt.objectives.losses import sample
from jaxpt.objectives.masked_lm import MaskedLM, Unit

TABLES = {"token_embed": "vocab_size", "position_embed": "max_positions", "type_embed": "token_types"}
"""{table of embeddings: the key of its rows}."""


class ReplacedToken(MaskedLM):
    """Hyperparameters of replaced-token detection; the defaults are ELECTRA's (its large model masks 0.25)."""

    kind: Literal["replaced_token"] = "replaced_token"
    unit: Unit = "draw"
    mask_probability: Fraction = 0.85
    """Fraction of the selected tokens that become [MASK] in the generator's input."""
    random_probability: Fraction = 0.0
    next_sentence: Literal[False] = False
    sentence_order: Literal[False] = False
    discriminator_weight: PositiveFloat = 50.0
    """Coefficient of the discriminator's loss."""
    generator: Overrides | None = None
    """The generator's overrides of `model`, such as {embed_dim: 64, heads: 1, mlp_dim: 256} (ELECTRA: a quarter to a
    third of the width) or {layers: 6} (DeBERTa-v3: half of the layers)."""
    sharing: Literal["shared", "disentangled"] = "shared"
    """`shared`: both networks use the same embeddings and embedding norm; `disentangled`: DeBERTa-v3's
    gradient-disentangled embedding sharing."""
    sees_first: bool = False
    """Each token's logit also depends on the first token's hidden state (DeBERTa-v3's head)."""

    def generator_of(self, model: ModelConfig) -> Network:
        """The generator with its masked-LM head, from the discriminator's configuration."""
        try:
            config = type(model)(**{**dict(model), **dict(self.generator)})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("objective.generator", *first["loc"])))
            raise UserError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
        shared = (*TABLES, "embed_norm") if self.sharing == "shared" else ()
        both = set(_parts(model, shared)) & set(_parts(config, shared))
        return Network(config.build(), masked_lm.declare(config), tuple(name for name in shared if name in both))

    def heads(self, model: ModelConfig) -> dict[str, Head | Network]:
        head = replaced_token.declare(model, self.sees_first)
        return head if self.generator is None else head | {"generator": self.generator_of(model)}

    def network(self, model: ModelConfig) -> Network:
        is_sum = self.generator is not None and self.sharing == "disentangled"
        deltas = dict.fromkeys(_parts(model, TABLES), "generator") if is_sum else {}
        return Network(model.build(), self.heads(model), deltas=deltas)

    def lm_network(self, model: Bound) -> Bound:
        """The generator; UserError if it is missing, as in an imported discriminator."""
        if "generator" not in model.heads:
            raise UserError(
                f"model.kind: {model.config.kind} is a discriminator, which does not predict tokens, and its generator "
                "is not here; use the generator's own directory"
            )
        return model.heads["generator"]

    def coefficients(self) -> dict[str, float]:
        return {"masked_lm": 1.0, "replaced_token": self.discriminator_weight}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | {"replaced_token": _token_mask(batch).sum()}

    def loss(self, model: Bound, batch: Batch) -> LossOutputs:
        generator = self.lm_network(model)
        generated = self.output(generator, batch)
        sums, metrics = self.loss_from_hidden(generator, generated.hidden, batch)
        chosen = jnp.take_along_axis(generated.hidden, batch["masked_positions"][..., None], axis=1)
        key = model.rngs["sample"] if model.rngs else jax.random.key(0)  # evaluation always draws the same samples
        sampled = sample(generator.lm_states(chosen), generator.output_projection(), key, chunk=self.loss_chunk)
        tokens, labels = replaced(batch, sampled)

        output = encode_batch(model, {**batch, "encoder_input_tokens": tokens}).add_aux(generated.aux)
        scores = model.heads["replaced_token"](output.hidden, _first_tokens(batch) if self.sees_first else None)
        weights = _token_mask(batch)
        total = (optax.sigmoid_binary_cross_entropy(scores, labels) * weights).sum()
        predicted = (scores > 0).astype(jnp.float32)
        of_labels = {
            "discriminator_accuracy": ((predicted == labels) * weights, weights),
            "discriminator_recall": (predicted * labels * weights, labels * weights),
            "discriminator_precision": (predicted * labels * weights, predicted * weights),
            "replaced_share": (labels * weights, weights),
        }
        metrics |= {name: (x.sum(), weight.sum()) for name, (x, weight) in of_labels.items()}
        return {**sums, "replaced_token": total, **output.aux}, metrics

    @property
    def baseline(self) -> Baseline:
        """Of the generator as in masked LM; of the discriminator a constant probability, the fraction of replaced
        tokens, in nats."""

        def report_lines(means: Mapping[str, float]) -> list[str]:
            share, loss = means["replaced_share"], means["replaced_token"]
            constant = -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
            return [
                f"validation, all non-padding tokens: discriminator {loss:.3f} nats, constant prediction "
                f"{constant:.3f}: {abs(constant - loss):.3f} nats {'below' if loss < constant else 'ABOVE'} it; "
                f"accuracy {means['discriminator_accuracy']:.1%}, constant prediction {max(share, 1 - share):.1%}"
            ]

        return dataclasses.replace(super().baseline, report_lines=report_lines)

    def missing_rows(self, model: ModelConfig, length: int) -> tuple[str, ...]:
        limit = None if self.generator is None else self.generator_of(model).config.position_limit
        if limit is None or length <= limit:
            return ()
        return (f"objective.generator.max_positions: {limit} is below data.length, {length}; leave it out",)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.generator is None:
            raise UserError(
                "objective.generator is missing: set the generator's overrides of model, such as "
                "{embed_dim: 64, heads: 1, mlp_dim: 256}"
            )
        if model.masked_lm_options is None:
            raise UserError(
                f"model.kind: {model.kind} has no masked-LM head, which the generator of objective.kind: {self.kind} "
                "needs; model.kind: electra and deberta have one"
            )
        if self.sharing == "disentangled" and "embedded" not in inspect.signature(model.build().encode).parameters:
            raise UserError(
                f"objective.sharing: disentangled adds to the embeddings, which model.kind: {model.kind} does not take "
                "apart from its layers; shared does without, model.kind: electra, bert and deberta have both"
            )
        mine, theirs = (_table_shapes(m) for m in (model, self.generator_of(model).config))
        (_, width), (_, their_width) = mine["token_embed"], theirs["token_embed"]
        if width != their_width:
            raise UserError(
                f"objective.generator: its embeddings have width {their_width}, but the model, which shares them, has "
                f"{width}" + (f"; set model.embedding_dim={width}" if hasattr(model, "embedding_dim") else "")
            )
        for name in mine.keys() & theirs.keys() if self.sharing == "shared" else ():
            if mine[name] != theirs[name]:
                raise UserError(
                    f"objective.generator.{TABLES[name]}: its {name} has {theirs[name][0]} rows, but the model, which "
                    f"shares it, has {mine[name][0]}; leave it out"
                )
        super().check(model, length, vocabulary)


def _parts(model: ModelConfig, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these modules that a backbone has."""
    parts = Network(model.build()).abstract()["model"]
    return tuple(name for name in names if name in parts)


def _table_shapes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Rows and width of each table of embeddings of a backbone."""
    parts = Network(model.build()).shapes()["model"]
    return {name: parts[name]["table"].shape for name in TABLES if name in parts}


def replaced(batch: Batch, sampled: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The discriminator's input: the text with the samples at the selected positions.

    As in ELECTRA's released code, a position that was drawn several times gets the mean of its samples' ids, rounded
    down.

    Args:
      batch: encoder_input_tokens [batch, length], masked_{positions,targets,weights} [batch, max_predictions].
      sampled: int32 [batch, max_predictions].

    Returns:
      (int32 tokens, float32 labels), [batch, length]; label 1 if a token differs from the original.

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
    positions = jnp.where(weights > 0, batch["masked_positions"], tokens.shape[-1])  # out of range: dropped
    put = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
    add = jax.vmap(lambda row, at, new: row.at[at].add(new, mode="drop"))
    draws, zeros = jnp.ones_like(positions), jnp.zeros_like(tokens)
    mean = add(zeros, positions, sampled) // jnp.maximum(add(zeros, positions, draws), 1)
    new = jnp.take_along_axis(mean, jnp.minimum(positions, tokens.shape[-1] - 1), axis=1)
    differs = (new != batch["masked_targets"]).astype(jnp.float32)
    return put(tokens, positions, new), put(jnp.zeros_like(tokens, jnp.float32), positions, differs)


def _first_tokens(batch: Batch) -> jax.Array:
    """Index of the first token of each token's text: int32 [batch, length]; a row may hold several texts."""
    positions = batch["encoder_positions"]
    return jnp.maximum(jnp.arange(positions.shape[1]) - positions, 0)


def _token_mask(batch: Batch) -> jax.Array:
    """1.0 on non-padding tokens."""
    return (batch["encoder_segment_ids"] > 0).astype("float32")
