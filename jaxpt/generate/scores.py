"""Log-probabilities of given tokens: pure functions of a bound network and arrays of ids, with static shapes.

Only the scored positions are projected to the vocabulary, in chunks.

Shapes: B rows · L length · S encoder length · T targets · D width of the model
        P prompts · R = P · K rows, K continuations of each prompt
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxpt.losses import token_log_probs
from jaxpt.models.base import Bound
from jaxpt.models.cache import NewCache

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


def score_shared(
    bound: Bound,
    prompts_PxL: jax.Array,
    lengths_P: jax.Array,
    targets_RxT: jax.Array,
    encoder_PxS: jax.Array | None = None,
    encoder_lengths_P: jax.Array | None = None,
    *,
    prefix_lm: bool = False,
) -> Scores:
    """Scores several continuations of each prompt, which is read once.

    Args:
      bound: a bound decoder or encoder-decoder whose `decode` takes a cache.
      prompts_PxL: ids that the decoder reads before the first target, right-aligned: padding first.
      lengths_P: number of ids of each prompt, at least 1.
      targets_RxT: ids of the continuations; those of a prompt are K adjacent rows.
      encoder_PxS: ids of the encoder's input of each prompt.
      encoder_lengths_P: their number.
      prefix_lm: attention is bidirectional in the prompt.

    Returns:
      As `Scores`, of R rows.
    """
    (P, L), (R, T) = prompts_PxL.shape, targets_RxT.shape
    segments_PxL = (jnp.arange(L) >= L - lengths_P[:, None]).astype(jnp.int32)
    options = {"prefix": segments_PxL > 0} if prefix_lm else {}
    given, nothing = (), ()
    if encoder_PxS is not None:
        options["encoder_segment_ids"] = segments_PxS = _real(encoder_PxS, encoder_lengths_P)
        given, nothing = (bound.encode(encoder_PxS, segment_ids=segments_PxS).hidden,), (None,)
    read = bound.decode(prompts_PxL, *given, segment_ids=segments_PxL, cache=NewCache(L + T - 1), **options)
    row_R = jnp.repeat(jnp.arange(P), R // P)
    hidden_RxTxD = read.hidden[row_R, -1:]
    if T > 1:
        later = bound.decode(targets_RxT[:, :-1], *nothing, cache=read.cache.take_rows(row_R))
        hidden_RxTxD = jnp.concatenate([hidden_RxTxD, later.hidden], axis=1)
    return token_log_probs(bound.lm_states(hidden_RxTxD), bound.output_projection(), targets_RxT)


def score_permutation(
    bound: Bound, tokens_BxL: jax.Array, lengths_B: jax.Array, targets_BxT: jax.Array, counts_B: jax.Array
) -> Scores:
    """Scores the last tokens of XLNet's rows from left to right; the context is visible to all tokens.

    Args:
      bound: a bound model with a query stream.
      tokens_BxL: ids of context and continuation.
      lengths_B: number of tokens of each row.
      targets_BxT: ids of the continuation.
      counts_B: number of targets of each row, below its length: a query needs a token that it sees.

    Returns:
      As `Scores`.
    """
    context_B = lengths_B - counts_B
    ranks_BxL = jnp.maximum(jnp.arange(tokens_BxL.shape[1]) - context_B[:, None], -1)
    at_BxT = _places(context_B, targets_BxT, tokens_BxL)
    real_BxL = _real(tokens_BxL, lengths_B)
    # Without token types: types that are all equal add the same to all scores of a query.
    query = bound.streams(tokens_BxL, segment_ids=real_BxL, ranks=ranks_BxL, targets=at_BxT).hidden.query_BxPxD
    return token_log_probs(bound.lm_states(query), bound.output_projection(), targets_BxT)


def score_masked(
    bound: Bound, tokens_PxL: jax.Array, lengths_P: jax.Array, at_Px1: jax.Array, targets_Rx1: jax.Array
) -> Scores:
    """Scores tokens of an encoder at a masked position.

    Args:
      bound: a bound encoder with a masked-LM head.
      tokens_PxL: ids of the text with special tokens, some of them [MASK].
      lengths_P: number of tokens of each text.
      at_Px1: position of the targets.
      targets_Rx1: ids of the targets; those of a text are K adjacent rows.

    Returns:
      As `Scores`, of R rows.
    """
    segments_PxL = _real(tokens_PxL, lengths_P)
    hidden = bound.encode(tokens_PxL, token_types=jnp.zeros_like(tokens_PxL), segment_ids=segments_PxL).hidden
    chosen_Px1xD = bound.lm_states(jnp.take_along_axis(hidden, at_Px1[..., None], axis=1))
    chosen_Rx1xD = jnp.repeat(chosen_Px1xD, len(targets_Rx1) // len(tokens_PxL), axis=0)
    return token_log_probs(chosen_Rx1xD, bound.output_projection(), targets_Rx1)


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
