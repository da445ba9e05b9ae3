"""Log-probabilities of given tokens: pure functions of a bound network and arrays of ids, with static shapes.

Only the scored positions are projected to the vocabulary, in chunks.

`jaxpt.decode.packed` scores several texts in a row; here each row is one, and its shape is chosen by the caller.

Shapes: B rows · L length · S encoder length · T targets · D width of the model
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxpt.models.base import Bound
from jaxpt.objectives.losses import token_log_probs

Scores = tuple[jax.Array, jax.Array]
"""(log-probabilities float32 [B, T], whether the target is the most likely token bool [B, T]); meaningless where a row
has fewer targets."""


def score_decoder(
    bound: Bound,
    inputs_BxL: jax.Array,
    lengths_B: jax.Array,
    targets_BxT: jax.Array,
    counts_B: jax.Array,
    *,
    prefix_lm: bool = False,
) -> Scores:
    """Scores the last tokens of a decoder's rows.

    Args:
      bound: a bound decoder.
      inputs_BxL: ids of context and continuation without its last token.
      lengths_B: number of inputs of each row.
      targets_BxT: ids of the continuation.
      counts_B: number of targets of each row, at most its length.
      prefix_lm: attention is bidirectional in the context.

    Returns:
      As `Scores`.
    """
    context_B = lengths_B - counts_B + 1
    prefix = {"prefix": _real(inputs_BxL, context_B) > 0} if prefix_lm else {}
    hidden = bound.decode(inputs_BxL, **prefix).hidden  # no token sees the padding after it
    return _score_last(bound, hidden, lengths_B, targets_BxT, counts_B)


def score_encoder_decoder(
    bound: Bound,
    encoder_BxS: jax.Array,
    encoder_lengths_B: jax.Array,
    inputs_BxL: jax.Array,
    lengths_B: jax.Array,
    targets_BxT: jax.Array,
    counts_B: jax.Array,
) -> Scores:
    """Scores the last targets of an encoder-decoder.

    Args:
      bound: a bound encoder-decoder.
      encoder_BxS: ids of the encoder's input.
      encoder_lengths_B: their number in each row.
      inputs_BxL: ids of the decoder's input: the start token, then targets without the last one.
      lengths_B: number of decoder inputs of each row.
      targets_BxT: ids of the scored targets.
      counts_B: number of scored targets of each row, at most its length.

    Returns:
      As `Scores`.
    """
    segments_BxS = _real(encoder_BxS, encoder_lengths_B)
    encoded = bound.encode(encoder_BxS, segment_ids=segments_BxS).hidden
    hidden = bound.decode(inputs_BxL, encoded, encoder_segment_ids=segments_BxS).hidden
    return _score_last(bound, hidden, lengths_B, targets_BxT, counts_B)


def _score_last(
    bound: Bound, hidden_BxLxD: jax.Array, lengths_B: jax.Array, targets_BxT: jax.Array, counts_B: jax.Array
) -> Scores:
    """Scores the targets of the last `counts_B` hidden states of each row."""
    at_BxT = _places(lengths_B - counts_B, targets_BxT, hidden_BxLxD)
    chosen_BxTxD = jnp.take_along_axis(hidden_BxLxD, at_BxT[..., None], axis=1)
    return token_log_probs(bound.lm_states(chosen_BxTxD), bound.output_projection(), targets_BxT)


def _places(first_B: jax.Array, targets_BxT: jax.Array, x_BxL: jax.Array) -> jax.Array:
    """Positions from the first one on, within the row: int32 [B, T]."""
    return jnp.clip(first_B[:, None] + jnp.arange(targets_BxT.shape[1]), 0, x_BxL.shape[1] - 1)


def _real(x_BxL: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """1 at the first `lengths_B` positions, 0 after them."""
    return (jnp.arange(x_BxL.shape[1]) < lengths_B[:, None]).astype(jnp.int32)
