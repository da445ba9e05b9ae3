"""Beam search, as `transformers` 5 defines it for a batch of one.

Shapes: R rows, S samples (hypotheses returned of each row), N = R · beams with the beams of a row adjacent, K
candidates of a row, T columns of the history (prompt and generated tokens), V vocabulary.

Each step scores every continuation of every beam by its summed log-probability and keeps the best K, enough that the
beams stay full if each of them ends with each of the EOS ids. Of these

- the best that do not end are the next beams;
- those that end are hypotheses if they are among the best `beams`. Their score is the sum / lengthᵖ, with the generated
  tokens (EOS included) as the length and p the length penalty. The best `beams` hypotheses so far are kept.

A row is done when it has no candidate left that does not end, or `beams` hypotheses that no beam can improve. That
depends on `early_stopping`: True: never look; False: compare the worst hypothesis with the best beam as if that ended
now; "never": as if its sum stayed what it is up to the greatest length (of p > 0; that is exact).

T5X (`t5x/decoding.py`) searches as `early_stopping="never"` does, with these differences, which are not offered: the
sum is divided by ((5 + length)/6)^α, with the decoder's prompt in the length; all K candidates that end become
hypotheses, not those among the best `beams` alone; beams that reach the greatest length without EOS are returned only
if their row has no hypothesis at all; the best comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.decode.logits import History
from jaxpt.errors import UserError

OUT = -1e9
"""Score of what is no hypothesis. As in `transformers` it is finite: a continuation with a banned token is worse."""


@flax.struct.dataclass
class Hypotheses:
    """Sequences of each row, the best first."""

    tokens_RxKxT: jax.Array
    """int32, laid out as in `History`: the prompt, then what was generated, EOS included; the rest is meaningless."""
    length_RxK: jax.Array
    """Tokens, prompt included."""
    score_RxK: jax.Array
    """float32; of results the sum of the log-probabilities / lengthᵖ, `sequences_scores` of `transformers`."""
    is_complete_RxK: jax.Array
    """Ends with EOS or has the greatest length. False in results where a row has fewer hypotheses than were asked for
    (processors left no other continuation): then the score is about −1e9 and the tokens are meaningless."""
    log_probs_RxKxT: jax.Array | None = None
    """float32, on request: processed log-probability of each generated token in its column, 0 elsewhere."""

    def take(self, index_RxJ: jax.Array) -> Hypotheses:
        """The chosen ones of each row."""

        def take(x: jax.Array) -> jax.Array:
            return jnp.take_along_axis(x, index_RxJ.reshape(index_RxJ.shape + (1,) * (x.ndim - 2)), axis=1)

        return jax.tree.map(take, self)

    def append(self, token_RxK: jax.Array, log_prob_RxK: jax.Array) -> Hypotheses:
        """One token more in each."""
        is_next_RxKxT = jnp.arange(self.tokens_RxKxT.shape[-1]) == self.length_RxK[..., None]
        logged = self.log_probs_RxKxT
        return self.replace(
            tokens_RxKxT=jnp.where(is_next_RxKxT, token_RxK[..., None], self.tokens_RxKxT),
            length_RxK=self.length_RxK + 1,
            log_probs_RxKxT=None if logged is None else jnp.where(is_next_RxKxT, log_prob_RxK[..., None], logged),
        )


@flax.struct.dataclass
class Search:
    """What the loop carries besides the caller's state."""

    generated: jax.Array
    """Tokens so far, the same in every beam of every row that is not done."""
    beams: Hypotheses
    """Not ended; scores are sums of log-probabilities."""
    found: Hypotheses
    """The best hypotheses so far."""
    parent_RxK: jax.Array
    """Which of the row's beams each beam continued."""
    is_done_R: jax.Array


def beam_search(
    step: Callable[[Any, jax.Array], tuple[jax.Array, Any]],
    gather: Callable[[Any, jax.Array], Any],
    state: Any,
    logits_RxV: jax.Array,
    history: History,
    *,
    beams: int,
    max_new_tokens: int | jax.Array,
    eos_ids: tuple[int, ...] = (),
    samples: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    process: Callable[[jax.Array, History], jax.Array] | None = None,
    log_probs: bool = False,
) -> Hypotheses:
    """The most likely continuations of each row that beam search finds; one compiled loop, to be called under `jit`.

    A row's result depends on that row alone: a row that is done stays as it is while others go on.

    `gather` runs once per step, and what it gathers is read and written whole: a cache of the size of the weights
    doubles the bytes of a step or more. Only what differs among the beams of a row has to be gathered: neither the
    encoder's keys and values nor those of the prompt.

    Args:
      step: (state, tokens [N]) → (logits [N, V] of the next token, state). The tokens follow those before.
      gather: (state, index) → state with the rows index [N] of the old one. First from R rows to N, then in every step
        from N to N, always within a row's beams.
      state: of the caller, a tree of arrays with R rows, in which the prompts are.
      logits_RxV: of each prompt's last token.
      history: of the R prompts. T columns have room for the prompt and the generated tokens.
      beams: at least 1.
      max_new_tokens: a number, or one for each row [R]. A row has no more than its history has room for; a row with 0
        is done at once, without hypotheses.
      eos_ids: a sequence ends with any of these.
      samples: hypotheses of each row to return, at most `beams`.
      length_penalty: p; above 0 it favours long sequences, below 0 short ones.
      early_stopping: False, True or "never"; see above.
      process: (log-probabilities [N, V], history of N rows) → log-probabilities, such as penalties and bans. They are
        not normalised again.
      log_probs: also return each token's.

    Returns:
      Hypotheses [R, S, …], the best first.

    Raises:
      UserError: for numbers of beams or samples and modes of stopping that do not exist.

    Example: a model without state whose next token is one more than the last, most likely, until 3 = EOS.
      >>> step = lambda state, tokens_N: (5.0 * jax.nn.one_hot(tokens_N + 1, 4), state)
      >>> prompt = History(jnp.array([[1, 0, 0, 0]]), length_B=jnp.array([1]), prompt_B=jnp.array([1]))
      >>> first = 5.0 * jax.nn.one_hot(jnp.array([2]), 4)
      >>> found = beam_search(step, lambda s, i: s, (), first, prompt, beams=2, max_new_tokens=3, eos_ids=(3,))
      >>> found.tokens_RxKxT[0, 0, : found.length_RxK[0, 0]].tolist()
      [1, 2, 3]
    """
    if beams < 1 or not 1 <= samples <= beams:
        raise UserError(f"beams: {beams} with samples: {samples}: there are 1 or more beams, and 1 to `beams` samples")
    if not (isinstance(early_stopping, bool) or early_stopping == "never"):
        raise UserError(f'early_stopping: {early_stopping!r} is neither false, true nor "never"')
    rows, columns = history.tokens_BxT.shape
    limit_R = jnp.broadcast_to(jnp.minimum(max_new_tokens, columns - history.length_B), rows)
    # lengthᵖ in float64, then rounded: `transformers` divides by a Python number.
    power_T = jnp.asarray(np.r_[1.0, np.arange(1.0, columns + 1) ** length_penalty], jnp.float32)
    looks_ahead = early_stopping == "never" and length_penalty > 0
    candidates = max(2, 1 + len(eos_ids)) * beams

    def advance(search: Search, logits_NxV: jax.Array) -> Search:
        """Continues each beam by one token."""
        log_probs_NxV = jax.nn.log_softmax(logits_NxV.astype(jnp.float32))
        if process is not None:
            log_probs_NxV = process(log_probs_NxV, _flat(search.beams, history.prompt_B))
        continued, parent_RxK, token_RxK = _continuations(search.beams, log_probs_NxV, candidates)
        sum_RxK, generated = continued.score_RxK, search.generated + 1
        ends_RxK = jnp.isin(token_RxK, jnp.array(eos_ids, jnp.int32)) | (generated >= limit_R)[:, None]
        continued = continued.replace(is_complete_RxK=ends_RxK)

        # Beams that end come last, so that there are always as many; their number keeps them from winning later.
        open_ = continued.replace(score_RxK=sum_RxK + jnp.where(ends_RxK, OUT, 0.0))
        open_, chosen_RxK = _best(open_, beams)
        is_new_RxK = ends_RxK & (jnp.arange(candidates) < beams)
        new = continued.replace(score_RxK=jnp.where(is_new_RxK, sum_RxK / power_T[generated], -jnp.inf))
        hypotheses, _ = _best(jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), search.found, new), beams)

        # A row that is done stays as it was.
        now = (open_, hypotheses, jnp.take_along_axis(parent_RxK, chosen_RxK, axis=1))
        before = (search.beams, search.found, search.parent_RxK)
        open_, hypotheses, parent_RxK = jax.tree.map(lambda old, x: _where_row(search.is_done_R, old, x), before, now)

        best_R = open_.score_RxK[:, 0] / power_T[limit_R if looks_ahead else generated]
        worst_RxK = jnp.where(hypotheses.is_complete_RxK, hypotheses.score_RxK.min(1, keepdims=True), OUT)
        is_done_R = ~(best_R[:, None] > worst_RxK).any(1) | ends_RxK.all(1)
        if early_stopping is True:
            is_done_R |= hypotheses.is_complete_RxK.all(1)
        return Search(generated, open_, hypotheses, parent_RxK, search.is_done_R | is_done_R)

    def body(carry: tuple[Search, Any]) -> tuple[Search, Any]:
        search, state = carry
        state = gather(state, (search.parent_RxK + beams * jnp.arange(rows)[:, None]).reshape(-1))
        flat = _flat(search.beams, history.prompt_B)
        last_N = jnp.take_along_axis(flat.tokens_BxT, flat.length_B[:, None] - 1, axis=1)[:, 0]
        logits_NxV, state = step(state, last_N)
        return advance(search, logits_NxV), state

    row_N = jnp.repeat(jnp.arange(rows), beams)
    search = advance(_start(history, beams, log_probs, limit_R), logits_RxV[row_N])
    carry = (search, gather(state, row_N))
    search, _ = jax.lax.while_loop(lambda carry: ~carry[0].is_done_R.all(), body, carry)
    return jax.tree.map(lambda x: x[:, :samples], search.found)


def _start(history: History, beams: int, log_probs: bool, limit_R: jax.Array) -> Search:
    """Equal beams. All but the first count as out, so that no continuation is found twice."""
    rows, columns = history.tokens_BxT.shape
    empty = Hypotheses(
        tokens_RxKxT=jnp.repeat(history.tokens_BxT[:, None], beams, axis=1),
        length_RxK=jnp.repeat(history.length_B[:, None], beams, axis=1),
        score_RxK=jnp.full((rows, beams), OUT, jnp.float32),
        is_complete_RxK=jnp.zeros((rows, beams), bool),
        log_probs_RxKxT=jnp.zeros((rows, beams, columns)) if log_probs else None,
    )
    return Search(
        generated=jnp.int32(0),
        beams=empty.replace(score_RxK=empty.score_RxK.at[:, 0].set(0.0)),
        found=empty,
        parent_RxK=jnp.zeros((rows, beams), jnp.int32),
        is_done_R=limit_R < 1,
    )


def _continuations(beams: Hypotheses, log_probs_NxV: jax.Array, count: int) -> tuple[Hypotheses, jax.Array, jax.Array]:
    """The best continuations of each row by one token, the beams that they continue [R, K], and the tokens [R, K]."""
    rows = beams.score_RxK.shape[0]
    sums_NxV = log_probs_NxV + beams.score_RxK.reshape(-1, 1)
    sum_RxK, index_RxK = jax.lax.top_k(sums_NxV.reshape(rows, -1), count)
    parent_RxK, token_RxK = jnp.divmod(index_RxK, log_probs_NxV.shape[-1])
    log_prob_RxK = jnp.take_along_axis(log_probs_NxV.reshape(rows, -1), index_RxK, axis=1)
    continued = beams.take(parent_RxK).append(token_RxK, log_prob_RxK)
    return continued.replace(score_RxK=sum_RxK), parent_RxK, token_RxK


def _best(hypotheses: Hypotheses, count: int) -> tuple[Hypotheses, jax.Array]:
    """Those with the highest scores, and where they were; of equal ones the first."""
    _, index_RxK = jax.lax.top_k(hypotheses.score_RxK, count)
    return hypotheses.take(index_RxK), index_RxK


def _flat(beams: Hypotheses, prompt_R: jax.Array) -> History:
    """The beams as N rows."""
    _, count, columns = beams.tokens_RxKxT.shape
    return History(beams.tokens_RxKxT.reshape(-1, columns), beams.length_RxK.reshape(-1), jnp.repeat(prompt_R, count))


def _where_row(condition_R: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(condition_R.reshape((-1,) + (1,) * (x.ndim - 1)), x, y)
