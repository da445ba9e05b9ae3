"""Penalties, bans and filters of next-token logits, each as the LogitsProcessor of Transformers 5 of its name.

All are pure functions with static shapes. None sorts the vocabulary, and all but the scatters of a few ids are
elementwise or reductions over it, so it may be sharded. On one row they depend on nothing but that row.

Shapes: B rows · T columns of the history · V vocabulary · N n-grams or sequences · P their prefix
"""

from __future__ import annotations

from collections.abc import Callable

import flax
import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.decode.options import Options


@flax.struct.dataclass
class History:
    """The tokens of each row so far."""

    tokens_BxT: jax.Array
    """int32: a row's prompt from column 0 on, then what was generated; columns from `length_B` on are meaningless."""
    length_B: jax.Array
    """int32: tokens so far, prompt included."""
    prompt_B: jax.Array
    """int32: tokens of the prompt; of an encoder-decoder, the decoder's start tokens."""

    def append(self, tokens_B: jax.Array) -> History:
        """One token more in each row."""
        is_next_BxT = jnp.arange(self.tokens_BxT.shape[1]) == self.length_B[:, None]
        tokens_BxT = jnp.where(is_next_BxT, tokens_B[:, None], self.tokens_BxT)
        return self.replace(tokens_BxT=tokens_BxT, length_B=self.length_B + 1)


def process(logits_BxV: jax.Array, history: History, options: Options) -> jax.Array:
    """Applies the processors of the options, in the order of Transformers (`GenerationMixin._get_logits_processor`).

    Presence and frequency penalty come after the repetition penalty, as in vLLM. The filters of sampling come last,
    and only where the temperature is above 0. What is off costs nothing.

    Args:
      logits_BxV: logits, or log-probabilities (beam search). Padding columns are −inf.
      history: the tokens so far.
      options: static.

    Returns:
      float32 [B, V]; −inf where a token is excluded.
    """
    o = options
    x = logits_BxV.astype(jnp.float32)
    if o.repetition_penalty != 1:
        x = repetition_penalty(x, history, o.repetition_penalty)
    if o.presence_penalty or o.frequency_penalty:
        x = occurrence_penalties(x, history, o.presence_penalty, o.frequency_penalty)
    if o.no_repeat_ngram:
        x = no_repeat_ngram(x, history, o.no_repeat_ngram)
    if o.bad_words:
        x = bad_words(x, history, o.bad_words, o.eos)
    if o.eos and o.min_length:
        x = suppress(x, o.eos, history.length_B < o.min_length)
    if o.eos and o.min_new_tokens:
        x = suppress(x, o.eos, history.length_B - history.prompt_B < o.min_new_tokens)
    if o.first_sentinel is not None:
        ends = range(o.first_sentinel, x.shape[-1])
        x = suppress(x, (*ends, *o.eos), _last(history, 1)[:, 0] >= o.first_sentinel)
    if o.forced_first is not None:
        x = force(x, o.forced_first, history.length_B == 1)
    if o.forced_last is not None:
        x = force(x, o.forced_last, history.length_B - history.prompt_B == o.max_new_tokens - 1)
    if o.suppress:
        x = suppress(x, o.suppress)
    if o.suppress_first:
        forced = (history.prompt_B == 1) & (o.forced_first is not None)
        x = suppress(x, o.suppress_first, history.length_B == history.prompt_B + forced)
    return _filter(x, o) if o.temperature else x


def _filter(x_BxV: jax.Array, o: Options) -> jax.Array:
    x = x_BxV if o.temperature == 1 else x_BxV / o.temperature
    x = x if o.top_k is None else top_k(x, o.top_k)
    x = x if o.top_p in (None, 1.0) else top_p(x, o.top_p)
    x = x if not o.min_p else min_p(x, o.min_p)
    return x if o.typical_p is None else typical(x, o.typical_p)


def repetition_penalty(logits_BxV: jax.Array, history: History, penalty: float) -> jax.Array:
    """Divides the positive logits of tokens of the history, prompt included, and multiplies the negative ones.

    `RepetitionPenaltyLogitsProcessor`. Paper: https://arxiv.org/abs/1909.05858

    Args:
      logits_BxV: float32.
      history: the tokens so far.
      penalty: above 1 makes repetitions rarer.

    Returns:
      [B, V].
    """
    is_token_BxT = _columns(history) < history.length_B[:, None]
    is_present_BxV = _marked(history.tokens_BxT, is_token_BxT, logits_BxV.shape[-1])
    penalized_BxV = jnp.where(logits_BxV < 0, logits_BxV * penalty, logits_BxV / penalty)
    return jnp.where(is_present_BxV, penalized_BxV, logits_BxV)


def occurrence_penalties(logits_BxV: jax.Array, history: History, presence: float, frequency: float) -> jax.Array:
    """Lowers the logits of generated tokens, whatever the prompt has.

        logits − presence · [count > 0] − frequency · count

    As OpenAI (https://developers.openai.com/api/docs/guides/text-generation, "Frequency and presence penalties") and
    vLLM (`apply_penalties` of vllm/model_executor/layers/utils.py) define them; Transformers has neither.

    Args:
      logits_BxV: float32.
      history: the tokens so far.
      presence: subtracted once.
      frequency: subtracted per occurrence.

    Returns:
      [B, V].
    """
    columns_T = _columns(history)
    generated_BxT = (columns_T >= history.prompt_B[:, None]) & (columns_T < history.length_B[:, None])
    count_BxV = _scatter(history.tokens_BxT, generated_BxT, jnp.zeros(logits_BxV.shape[-1], jnp.int32), "add")
    return logits_BxV - frequency * count_BxV - presence * (count_BxV > 0)


def no_repeat_ngram(logits_BxV: jax.Array, history: History, size: int) -> jax.Array:
    """Excludes tokens that would complete an n-gram that the history has, prompt included.

    `NoRepeatNGramLogitsProcessor`.

    Args:
      logits_BxV: float32.
      history: the tokens so far.
      size: n; 1 excludes all tokens of the history.

    Returns:
      [B, V].
    """
    starts = history.tokens_BxT.shape[1] - size + 1
    if starts < 1:
        return logits_BxV
    last_BxP = _last(history, size - 1)
    # The n-gram of column j has its prefix in columns j … j+n−2 and ends in column j+n−1.
    match_BxN = jnp.arange(starts) + size <= history.length_B[:, None]
    for i in range(size - 1):
        match_BxN &= history.tokens_BxT[:, i : i + starts] == last_BxP[:, i : i + 1]
    banned_BxV = _marked(history.tokens_BxT[:, size - 1 :], match_BxN, logits_BxV.shape[-1])
    return jnp.where(banned_BxV, -jnp.inf, logits_BxV)


def bad_words(
    logits_BxV: jax.Array, history: History, words: tuple[tuple[int, ...], ...], eos: tuple[int, ...] = ()
) -> jax.Array:
    """Excludes tokens that would complete one of the given sequences.

    `NoBadWordsLogitsProcessor`, which ignores a sequence that is a single EOS.

    Args:
      logits_BxV: float32.
      history: the tokens so far; a sequence may begin in the prompt.
      words: sequences of at least one id.
      eos: ids that end a text.

    Returns:
      [B, V].
    """
    single = tuple(word[0] for word in words if len(word) == 1 and word[0] not in eos)
    x_BxV = suppress(logits_BxV, single) if single else logits_BxV
    for size in sorted({len(word) for word in words} - {1}):
        words_NxL = np.array([word for word in words if len(word) == size], np.int32)
        last_BxP = _last(history, size - 1)
        match_BxN = (last_BxP[:, None] == words_NxL[:, :-1]).all(-1) & (history.length_B >= size - 1)[:, None]
        ends_BxN = jnp.broadcast_to(words_NxL[:, -1], match_BxN.shape)
        x_BxV = jnp.where(_marked(ends_BxN, match_BxN, x_BxV.shape[-1]), -jnp.inf, x_BxV)
    return x_BxV


def suppress(logits_BxV: jax.Array, ids: tuple[int, ...], where_B: jax.Array | bool = True) -> jax.Array:
    """Excludes tokens, in some rows.

    `MinLengthLogitsProcessor` and `MinNewTokensLengthLogitsProcessor` where the ids are EOS and the text is short,
    `SuppressTokensLogitsProcessor` everywhere, `SuppressTokensAtBeginLogitsProcessor` at the first token.

    Args:
      logits_BxV: float32.
      ids: static.
      where_B: rows that it applies to; default: all.

    Returns:
      [B, V].
    """
    suppressed_V = np.isin(np.arange(logits_BxV.shape[-1]), ids)
    return jnp.where(suppressed_V & jnp.reshape(where_B, (-1, 1)), -jnp.inf, logits_BxV)


def force(logits_BxV: jax.Array, token: int | tuple[int, ...], where_B: jax.Array) -> jax.Array:
    """Excludes all tokens but one, or a few, whose logits are 0, in some rows.

    `ForcedBOSTokenLogitsProcessor` where the text has one token, `ForcedEOSTokenLogitsProcessor` where one is left.

    Args:
      logits_BxV: float32.
      token: the id, or several.
      where_B: rows that it applies to.

    Returns:
      [B, V].
    """
    forced_V = jnp.where(np.isin(np.arange(logits_BxV.shape[-1]), token), 0.0, -jnp.inf)
    return jnp.where(where_B[:, None], forced_V, logits_BxV)


def top_k(logits_BxV: jax.Array, k: int) -> jax.Array:
    """Keeps the k largest logits, and those that equal the smallest of them. `TopKLogitsWarper`.

    Args:
      logits_BxV: float32.
      k: at least 1; all are kept if the vocabulary is smaller.

    Returns:
      [B, V], −inf elsewhere.
    """
    ones = jnp.ones_like(logits_BxV)  # a sum of ones is exact below 2²⁴
    threshold_Bx1 = _threshold(logits_BxV, ones, min(k, logits_BxV.shape[-1]))
    return jnp.where(logits_BxV < threshold_Bx1, -jnp.inf, logits_BxV)


def top_p(logits_BxV: jax.Array, p: float) -> jax.Array:
    """Keeps the fewest most likely tokens whose probabilities sum up to at least p. `TopPLogitsWarper`.

    Tokens of equal logits are kept or excluded together: which of them Transformers keeps depends on an unstable sort.

    Args:
      logits_BxV: float32.
      p: in (0, 1].

    Returns:
      [B, V], −inf elsewhere.

    Paper: https://arxiv.org/abs/1904.09751
    """
    threshold_Bx1 = _threshold(logits_BxV, jax.nn.softmax(logits_BxV), p)
    return jnp.where(logits_BxV < threshold_Bx1, -jnp.inf, logits_BxV)


def min_p(logits_BxV: jax.Array, p: float) -> jax.Array:
    """Keeps tokens at least p times as likely as the most likely one. `MinPLogitsWarper`.

    Args:
      logits_BxV: float32.
      p: in [0, 1].

    Returns:
      [B, V], −inf elsewhere.

    Paper: https://arxiv.org/abs/2407.01082
    """
    relative_BxV = jnp.exp(logits_BxV - logits_BxV.max(-1, keepdims=True))
    return jnp.where(relative_BxV < p, -jnp.inf, logits_BxV)


def typical(logits_BxV: jax.Array, p: float) -> jax.Array:
    """Keeps the tokens of most typical information whose probabilities sum up to at least p. `TypicalLogitsWarper`.

    The information −log p(token) is the more typical the nearer it is to the entropy, its mean. Equally typical tokens
    are kept or excluded together, as in Transformers.

    Args:
      logits_BxV: float32.
      p: in (0, 1).

    Returns:
      [B, V], −inf elsewhere.

    Paper: https://arxiv.org/abs/2202.00666
    """
    logp_BxV = jax.nn.log_softmax(logits_BxV)
    prob_BxV = jnp.exp(logp_BxV)
    entropy_Bx1 = -jnp.where(prob_BxV > 0, prob_BxV * logp_BxV, 0).sum(-1, keepdims=True)
    typicality_BxV = -jnp.abs(-logp_BxV - entropy_Bx1)
    return jnp.where(typicality_BxV < _threshold(typicality_BxV, prob_BxV, p), -jnp.inf, logits_BxV)


def _threshold(x_BxV: jax.Array, weights_BxV: jax.Array, mass: float) -> jax.Array:
    """The largest float32 t with Σ weights[x ≥ t] ≥ mass, per row: [B, 1]; a NaN, below which is nothing, if none.

    Exact, by bisection: 32 masked sums, one per bit of t from the highest. On a CPU (V 50,257, B 8) this takes 3 ms,
    `lax.top_k` of 50 64 ms and a sort 74 ms; a sharded vocabulary costs 32 sums of a number per row over its devices.
    """

    def add_bit(i: jax.Array, bits_Bx1: jax.Array) -> jax.Array:
        larger_Bx1 = bits_Bx1 | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        reached = jnp.where(x_BxV >= _ordered(larger_Bx1), weights_BxV, 0).sum(-1, keepdims=True) >= mass
        return jnp.where(reached, larger_Bx1, bits_Bx1)

    bits_Bx1 = jax.lax.fori_loop(0, 32, add_bit, jnp.zeros((x_BxV.shape[0], 1), jnp.uint32))
    return _ordered(bits_Bx1)  # rank 0 is a NaN


def _ordered(rank: jax.Array) -> jax.Array:
    """The float32 of a rank (uint32): greater ranks are greater numbers. Positive numbers have the upper half."""
    bits = jnp.where(rank >> 31 == 1, rank ^ jnp.uint32(0x80000000), ~rank)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _columns(history: History) -> jax.Array:
    return jnp.arange(history.tokens_BxT.shape[1])


def _last(history: History, size: int) -> jax.Array:
    """The last tokens of each row [B, size]; meaningless in rows that have fewer."""
    columns_BxP = history.length_B[:, None] - size + jnp.arange(size)
    return jnp.take_along_axis(history.tokens_BxT, jnp.maximum(columns_BxP, 0), axis=1, mode="clip")


def _marked(ids_BxN: jax.Array, where_BxN: jax.Array, vocabulary: int) -> jax.Array:
    """bool [B, V]: whether an id occurs in the row, where `where` is true."""
    return _scatter(ids_BxN, where_BxN, jnp.zeros(vocabulary, bool), "max")


def _scatter(ids_BxN: jax.Array, where_BxN: jax.Array, zeros_V: jax.Array, method: str) -> jax.Array:
    # What is nowhere goes behind the vocabulary's end, where it is dropped. Made anew each step from N ids, this is
    # cheaper than a [B, V] that is carried along and reordered with the beams.
    ids_BxN = jnp.where(where_BxN, ids_BxN, zeros_V.shape[0])
    unit = jnp.ones((), zeros_V.dtype)

    def of_row(ids_N: jax.Array) -> jax.Array:
        at: Callable[..., jax.Array] = getattr(zeros_V.at[ids_N], method)
        return at(unit, mode="drop")

    return jax.vmap(of_row)(ids_BxN)
