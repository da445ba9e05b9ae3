"""SpanBERT's objective: masked LM of spans; each token of a span is also predicted from the span's boundary tokens.

    text     [CLS] super bowl fifty was an american football game [SEP]
    inputs   [CLS] super bowl fifty was [MASK] [MASK] [MASK] game [SEP]
    targets  an, american, football: each from its own state, and from the states of "was" and "game" and its offset

The total is the masked-LM cross-entropy plus the span-boundary cross-entropy of the same targets. The latter excludes
tokens with an offset in their span of `max_span` or more, spans at the ends of a text, and spans beside which the text
has no token. Paper: https://arxiv.org/abs/1907.10529
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import span_boundary
from jaxpt.models.network import Head, Network
from jaxpt.objectives.base import Batch, LossOutputs
from jaxpt.objectives.losses import token_loss
from jaxpt.objectives.masked_lm import MaskedLM, Unit


class SpanBoundary(MaskedLM):
    """Hyperparameters of the span-boundary objective; the defaults are SpanBERT's."""

    kind: Literal["span_boundary"] = "span_boundary"
    unit: Unit = "span"
    rounding: Literal["nearest", "random", "up"] = "up"
    random_tokens: Literal["uniform", "corpus"] = "corpus"
    next_sentence: bool = False
    max_span: PositiveInt = 20
    """Number of offsets in a span that have a position embedding."""
    edge_spans: bool = False
    """The span-boundary loss includes spans at the ends of a text, whose boundary is [CLS] or [SEP]; they have none in
    the released code."""
    position_dim: PositiveInt = 200
    """Width of the position embeddings."""

    def heads(self, model: ModelConfig) -> dict[str, Head | Network]:
        return super().heads(model) | span_boundary.declare(model, self.max_span, self.position_dim)

    def coefficients(self) -> dict[str, float]:
        return super().coefficients() | {"span_boundary": 1.0}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | {"span_boundary": self.boundary_targets(batch)[3].sum()}

    def loss(self, model: Bound, batch: Batch) -> LossOutputs:
        output, head = self.output(model, batch), model.heads["span_boundary"]
        sums, metrics = self.loss_from_hidden(model, output.hidden, batch)
        left, right, offsets, weights = self.boundary_targets(batch)
        boundary_states = [jnp.take_along_axis(output.hidden, x[..., None], axis=1) for x in (left, right)]
        total, of_spans = token_loss(
            head(*boundary_states, offsets),
            model.output_projection().replace(bias=head.projection_bias()),
            batch["masked_targets"],
            weights,
            z_loss=self.z_loss,
            chunk=self.loss_chunk,
        )
        sums = {**sums, "span_boundary": total, **output.aux}
        return sums, metrics | {"span_boundary_accuracy": of_spans["accuracy"]}

    def boundary_targets(self, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """`boundaries`, and the weights of the span-boundary loss: all [batch, max_predictions]."""
        positions, segment_ids = batch["masked_positions"], batch["encoder_segment_ids"]
        *sides, offsets = boundaries(positions, batch["masked_weights"])
        left, right = (jnp.clip(x, 0, segment_ids.shape[1] - 1) for x in sides)
        weights = batch["masked_weights"] * (offsets < self.max_span)
        text = jnp.take_along_axis(segment_ids, positions, axis=1)
        for side, x in zip(sides, (left, right)):  # [CLS], [SEP] and the end of a text that was cut may be selected
            weights *= (side == x) & (jnp.take_along_axis(segment_ids, x, axis=1) == text)
        if not self.edge_spans:
            weights *= ~at_edge(left, right, segment_ids)
        return left, right, offsets, weights

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if model.masked_lm_options is None:
            raise UserError(
                f"model.kind: {model.kind} has no masked-LM head, which objective.kind: {self.kind} needs; "
                "model.kind: bert, roberta and albert have one"
            )


def at_edge(left: jax.Array, right: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Whether the boundary before a span is the first token of its text, or the one after it the last.

    Args:
      left: positions before the spans, int [B, N].
      right: positions after them.
      segment_ids: [B, L], 0 on padding.

    Returns:
      bool [B, N].

    Example:
      >>> import jax.numpy as jnp
      >>> text = jnp.array([[1, 1, 1, 1, 1, 1, 0]])  # [CLS], four tokens, [SEP], padding
      >>> at_edge(jnp.array([[0, 1, 1]]), jnp.array([[3, 4, 5]]), text).tolist()
      [[True, False, True]]
    """
    changes = segment_ids[:, 1:] != segment_ids[:, :-1]
    edge = jnp.ones_like(changes[:, :1])
    is_first, is_last = (jnp.concatenate(x, axis=1) for x in ((edge, changes), (changes, edge)))
    return jnp.take_along_axis(is_first, left, axis=1) | jnp.take_along_axis(is_last, right, axis=1)


def boundaries(positions: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For each selected position, the boundaries of its span and its offset. Spans are runs of adjacent positions.

    Args:
      positions: int [..., N], ascending where the weights are positive.
      weights: [..., N], 0 after the last position.

    Returns:
      (position before the span, position after it, offset from 0), int [..., N]; 0 where the weights are 0.

    Example:
      >>> import jax.numpy as jnp
      >>> left, right, offsets = boundaries(jnp.array([3, 4, 5, 8, 0]), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0]))
      >>> print(left, right, offsets)
      [2 2 2 7 0] [6 6 6 9 0] [0 1 2 0 0]
    """
    is_target = weights > 0
    continues = (positions[..., 1:] == positions[..., :-1] + 1) & is_target[..., 1:] & is_target[..., :-1]
    edge = jnp.ones_like(positions[..., :1], bool)
    is_first = jnp.concatenate([edge, ~continues], axis=-1)
    is_last = jnp.concatenate([~continues, edge], axis=-1)
    axis = positions.ndim - 1
    first = jax.lax.cummax(jnp.where(is_first & is_target, positions, 0), axis=axis)
    far = jnp.iinfo(positions.dtype).max - 1
    last = jax.lax.cummin(jnp.where(is_last & is_target, positions, far), axis=axis, reverse=True)
    return tuple(jnp.where(is_target, x, 0) for x in (first - 1, last + 1, positions - first))
