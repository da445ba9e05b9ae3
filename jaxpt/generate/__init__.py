"""Greedy generation: continuations, spans, and the most likely tokens at masks."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxpt.models.base import Bound


def greedy(next_logits: Callable[[jax.Array, jax.Array], jax.Array], tokens_BxT: jax.Array, start: int) -> jax.Array:
    """Greedy decoding from left to right.

    t_i = argmax p(· | t_<i) for i ≥ start.

    Args:
      next_logits: (tokens [batch, length], i) → logits [batch, vocabulary] of the token at position i.
      tokens_BxT: ids; those from `start` are overwritten.
      start: first generated position, at least 1.

    Returns:
      int32 [batch, length].
    """

    def body(i: jax.Array, tokens: jax.Array) -> jax.Array:
        chosen = next_logits(tokens, i).argmax(-1).astype(tokens.dtype)
        return jax.lax.dynamic_update_index_in_dim(tokens, chosen, i, axis=1)

    return jax.lax.fori_loop(start, tokens_BxT.shape[1], body, tokens_BxT)


def continue_text(bound: Bound, prompt_BxP: jax.Array, length: int) -> jax.Array:
    """A decoder's greedy continuation.

    Args:
      bound: a bound decoder.
      prompt_BxP: ids of the prompt.
      length: length of the result, including the prompt.

    Returns:
      int32 [batch, length].
    """
    prompt_length = prompt_BxP.shape[1]
    tokens = jnp.pad(prompt_BxP, ((0, 0), (0, length - prompt_length)))

    def next_logits(tokens: jax.Array, i: jax.Array) -> jax.Array:
        return _logits_at(bound, bound.decode(tokens).hidden, i - 1)

    return greedy(next_logits, tokens, prompt_length)


def fill_spans(
    bound: Bound,
    inputs_BxS: jax.Array,
    segment_ids_BxS: jax.Array,
    start_token: int | jax.Array,
    length: int,
    first_sentinel: int,
    eos: int,
) -> jax.Array:
    """Greedy targets of an encoder-decoder for a text with sentinels: each sentinel, followed by its span.

    A span has at least one token, so a sentinel is not followed by a sentinel or EOS.

    Args:
      bound: a bound encoder-decoder.
      inputs_BxS: ids of the encoder's input.
      segment_ids_BxS: 0 on padding.
      start_token: first decoder input (T5: 0), a number or an array [batch] (mBART).
      length: number of tokens to generate.
      first_sentinel: the lowest sentinel id; all ids from it are sentinels.
      eos: end-of-text id.

    Returns:
      int32 [batch, length]; ids after the first EOS are meaningless.
    """
    encoded = bound.encode(inputs_BxS, segment_ids=segment_ids_BxS).hidden
    tokens = jnp.full((inputs_BxS.shape[0], length + 1), jnp.reshape(start_token, (-1, 1)), jnp.int32)

    def next_logits(tokens: jax.Array, i: jax.Array) -> jax.Array:
        # The last token is not an input: the decoder has as many inputs as targets, as in training.
        hidden = bound.decode(tokens[:, :-1], encoded, encoder_segment_ids=segment_ids_BxS).hidden
        logits_BxV = _logits_at(bound, hidden, i - 1)
        ids_V = jnp.arange(logits_BxV.shape[-1])
        ends_span_V = (ids_V >= first_sentinel) | (ids_V == eos)
        after_sentinel_B = jax.lax.dynamic_index_in_dim(tokens, i - 1, axis=1, keepdims=False) >= first_sentinel
        return jnp.where(after_sentinel_B[:, None] & ends_span_V, -jnp.inf, logits_BxV)

    return greedy(next_logits, tokens, 1)[:, 1:]


def fill_masks(bound: Bound, batch: dict[str, jax.Array]) -> jax.Array:
    """The most likely id of an encoder at each masked position.

    Args:
      bound: a bound encoder with a masked-LM head.
      batch: encoder_input_tokens, encoder_token_types, encoder_segment_ids, encoder_positions, masked_positions, and
        encoder_ranks if the model was trained with them; for two-stream models encoder_order instead of
        encoder_positions.

    Returns:
      int32 [batch, max_predictions].
    """
    tokens, at = batch["encoder_input_tokens"], batch["masked_positions"]
    of_tokens = {"token_types": batch["encoder_token_types"], "segment_ids": batch["encoder_segment_ids"]}
    if "encoder_order" in batch:
        chosen = bound.streams(tokens, **of_tokens, ranks=batch["encoder_order"], targets=at).hidden.query_BxPxD
    else:
        of_tokens |= {"ranks": batch["encoder_ranks"]} if "encoder_ranks" in batch else {}
        hidden = bound.encode(tokens, **of_tokens, positions=batch["encoder_positions"]).hidden
        chosen = jnp.take_along_axis(hidden, at[..., None], axis=1)
    return bound.logits(chosen).argmax(-1).astype(jnp.int32)


def _logits_at(bound: Bound, hidden_BxTxD: jax.Array, i: jax.Array) -> jax.Array:
    return bound.logits(jax.lax.dynamic_index_in_dim(hidden_BxTxD, i, axis=1, keepdims=False))
