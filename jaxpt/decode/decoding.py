"""Decoding of one batch as pure functions: prefill, the loop over new tokens, beam search, replacing finished rows.

Shapes: B rows · P prompt · M encoder length · T columns of a row's history · R new rows · V vocabulary

A batch is decoded by calls of few programs:

    state = prefill(decoder, params, prompts)           # one pass over the prompts, and each row's first token
    state = run(decoder, params, state, 64, …)          # up to 64 tokens of each row in one loop on the device
    state = replace(decoder, params, state, rows, new)  # new prompts in rows that are done
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax
import jax
import jax.numpy as jnp

from jaxpt.decode import beam
from jaxpt.decode.logits import History, process
from jaxpt.decode.options import Options
from jaxpt.decode.sampling import choose, row_keys
from jaxpt.models.base import Bound
from jaxpt.models.cache import Cache, NewCache
from jaxpt.models.network import Network


@flax.struct.dataclass
class Prompts:
    """A batch of prompts. Rows without a prompt have `limit_B` 0."""

    tokens_BxP: jax.Array
    """int32, right-aligned: padding first. Of an encoder-decoder, the decoder's first tokens."""
    length_B: jax.Array
    """Tokens of each prompt."""
    limit_B: jax.Array
    """Tokens of each row at most, prompt included."""
    row_B: jax.Array
    """Number of each row's prompt, from 0; its random numbers depend on it."""
    sample_B: jax.Array
    """Number of the sample of this prompt, from 0."""
    encoder_tokens_BxM: jax.Array | None = None
    """Right-padded."""
    encoder_length_B: jax.Array | None = None
    first_B: jax.Array | None = None
    """Position of each row's first token; None: 0."""


@flax.struct.dataclass
class State:
    """A batch between two programs."""

    cache: Cache | None
    history: History
    limit_B: jax.Array
    keys_B: jax.Array
    """Random key data of the rows: uint32 [B, …]."""
    done_B: jax.Array
    logprobs_BxT: jax.Array | None
    """Log-probability of each generated token in its column, by the model; None unless `Options.scores`."""


@dataclasses.dataclass(frozen=True)
class Decoder:
    """What the programs are compiled for. Hashable."""

    network: Network
    options: Options
    slots: int
    """Slots of the cache: at least the tokens of any row. Layers with a window have no more than that."""
    columns: int
    """T: tokens of any row at most."""
    prefix: bool = False
    """Attention is bidirectional in the prompt (prefix LM)."""

    def logits(self, bound: Bound, hidden_BxLxD: jax.Array) -> jax.Array:
        """Logits of the last position: [B, V]; the vocabulary keeps its padding, so a sharded axis stays divisible.

        Padding is excluded as what options ban is: else it would be left where they ban all tokens.
        """
        logits_BxV, size = bound.logits(hidden_BxLxD[:, -1], padded=True), self.network.config.vocab_size
        return jnp.where(jnp.arange(logits_BxV.shape[-1]) < size, logits_BxV, -jnp.inf)

    def start(self, bound: Bound, prompts: Prompts, slots: int) -> tuple[jax.Array, Cache]:
        """Reads the prompts: (logits of their last tokens, cache)."""
        P = prompts.tokens_BxP.shape[1]
        segments_BxP = (jnp.arange(P) >= P - prompts.length_B[:, None]).astype(jnp.int32)
        encoded: tuple[Any, ...] = ()
        options: dict[str, Any] = {"segment_ids": segments_BxP, "cache": NewCache(slots)}
        if prompts.encoder_tokens_BxM is not None:
            M = prompts.encoder_tokens_BxM.shape[1]
            of_encoder_BxM = (jnp.arange(M) < prompts.encoder_length_B[:, None]).astype(jnp.int32)
            encoded = (bound.encode(prompts.encoder_tokens_BxM, segment_ids=of_encoder_BxM).hidden,)
            options["encoder_segment_ids"] = of_encoder_BxM
        if self.prefix:
            options["prefix"] = segments_BxP > 0
        if prompts.first_B is None:
            output = bound.decode(prompts.tokens_BxP, *encoded, **options)
            return self.logits(bound, output.hidden), output.cache
        positions_BxP = prompts.first_B[:, None] + jnp.maximum(segments_BxP.cumsum(1) - 1, 0)
        output = bound.decode(prompts.tokens_BxP, *encoded, positions=positions_BxP, **options)
        cache = output.cache.replace(length_B=output.cache.length_B + prompts.first_B)
        return self.logits(bound, output.hidden), cache

    @property
    def switch(self) -> int | None:
        """Tokens after which a row is read again, see `step`; None if that never happens."""
        switch = self.network.config.position_switch
        return None if switch is None or switch >= self.slots or self.prefix else switch

    def step(
        self, bound: Bound, cache: Cache, tokens_B: jax.Array, history: History | None = None,
        done_B: jax.Array | bool = False,
    ) -> tuple[jax.Array, Cache]:  # fmt: skip
        """Reads one token of each row.

        With this token the rotary positions of a row may become those of longer texts (longrope). The keys in the cache
        have the former ones, so all rows are then read again.

        Args:
          bound: the network.
          cache: of the tokens before.
          tokens_B: the next ones.
          history: all of them, if there is a `switch`.
          done_B: rows whose text has ended.

        Returns:
          (logits of the tokens after these, cache).
        """

        def read() -> tuple[jax.Array, Cache]:
            encoded = () if cache.memory_segments_BxM is None else (None,)
            output = bound.decode(tokens_B[:, None], *encoded, cache=cache)
            return self.logits(bound, output.hidden), output.cache

        def read_again() -> tuple[jax.Array, Cache]:
            at_BxS = jnp.arange(self.slots) + history.length_B[:, None] - self.slots
            tokens_BxS = jnp.take_along_axis(history.tokens_BxT, jnp.clip(at_BxS, 0, self.columns - 1), axis=1)
            segments_BxS = (at_BxS >= 0).astype(jnp.int32)
            output = bound.decode(tokens_BxS, segment_ids=segments_BxS, cache=NewCache(self.slots))
            return self.logits(bound, output.hidden), output.cache

        if self.switch is None:
            return read()
        return jax.lax.cond(((cache.length_B == self.switch) & ~jnp.asarray(done_B)).any(), read_again, read)

    def history(self, prompts: Prompts) -> History:
        """The prompts as a history of T columns, left-aligned."""
        P = prompts.tokens_BxP.shape[1]
        at_BxT = jnp.arange(self.columns) + P - prompts.length_B[:, None]
        tokens_BxT = jnp.take_along_axis(prompts.tokens_BxP, jnp.clip(at_BxT, 0, P - 1), axis=1)
        return History(tokens_BxT, prompts.length_B, prompts.length_B)

    def advance(self, state: State, logits_BxV: jax.Array) -> State:
        """Chooses the next token of the rows that are not done; one whose options ban all tokens ends without it."""
        keys_B = jax.random.wrap_key_data(state.keys_B) if self.options.temperature else None
        choice = choose(logits_BxV, state.history, self.options, keys_B)
        goes_on_B = ~state.done_B & ~choice.is_banned_B
        is_next_BxT = (jnp.arange(self.columns) == state.history.length_B[:, None]) & goes_on_B[:, None]
        length_B = state.history.length_B + goes_on_B
        history = state.history.replace(
            tokens_BxT=jnp.where(is_next_BxT, choice.token_B[:, None], state.history.tokens_BxT), length_B=length_B
        )
        ends_B = jnp.isin(choice.token_B, jnp.array(self.options.eos, jnp.int32)) | (length_B >= state.limit_B)
        ends_B |= choice.is_banned_B
        logprobs = state.logprobs_BxT
        if logprobs is not None:
            logprobs = jnp.where(is_next_BxT, choice.logprob_B[:, None], logprobs)
        return state.replace(history=history, done_B=state.done_B | ends_B, logprobs_BxT=logprobs)


def prefill(decoder: Decoder, params: Any, prompts: Prompts, seed: jax.Array, slots: int | None = None) -> State:
    """Reads the prompts and chooses the first token of each row.

    Args:
      decoder: static.
      params: of the network.
      prompts: a batch.
      seed: of the random numbers, uint32.
      slots: of the cache; `decoder.slots` by default.

    Returns:
      The state.
    """
    bound = decoder.network.bind(params)
    logits_BxV, cache = decoder.start(bound, prompts, slots or decoder.slots)
    history = decoder.history(prompts)
    keys_B = jax.random.key_data(row_keys(seed, prompts.row_B, prompts.sample_B))
    logprobs = jnp.zeros(history.tokens_BxT.shape, jnp.float32) if decoder.options.scores else None
    state = State(cache, history, prompts.limit_B, keys_B, prompts.limit_B <= prompts.length_B, logprobs)
    return decoder.advance(state, logits_BxV)


def run(decoder: Decoder, params: Any, state: State, steps: jax.Array, spare: jax.Array) -> State:
    """Generates up to `steps` tokens of each row in one loop on the device.

    Args:
      decoder: static.
      params: of the network.
      state: donate it: the cache is updated in place.
      steps: int32 [], tokens at most.
      spare: int32 []: the loop ends when so many rows are done; the number of rows to let all of them finish.

    Returns:
      The state.
    """
    bound = decoder.network.bind(params)

    def goes_on(carry: tuple[jax.Array, State]) -> jax.Array:
        done, state = carry
        return (done < steps) & (state.done_B.sum() < spare)

    def body(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
        done, state = carry
        last_Bx1 = jnp.take_along_axis(state.history.tokens_BxT, state.history.length_B[:, None] - 1, axis=1)
        logits_BxV, cache = decoder.step(bound, state.cache, last_Bx1[:, 0], state.history, state.done_B)
        return done + 1, decoder.advance(state.replace(cache=cache), logits_BxV)

    return jax.lax.while_loop(goes_on, body, (jnp.int32(0), state))[1]


def complete(decoder: Decoder, params: Any, prompts: Prompts, seed: jax.Array | int = 0) -> History:
    """`prefill` and `run` to the end of all rows, in one program; also of models without a cache, which read the whole
    text for each token.

    Args:
      decoder: static.
      params: of the network.
      prompts: a batch.
      seed: of the random numbers.

    Returns:
      The prompts with what was generated.
    """
    if not decoder.network.has_cache:
        return _without_cache(decoder, params, prompts, seed)
    state = prefill(decoder, params, prompts, jnp.uint32(seed))
    return run(decoder, params, state, jnp.int32(decoder.columns), jnp.int32(len(prompts.length_B))).history


def _without_cache(decoder: Decoder, params: Any, prompts: Prompts, seed: jax.Array | int) -> History:
    """`complete` of a decoder that reads the whole text for each token."""
    bound, history = decoder.network.bind(params), decoder.history(prompts)
    keys_B = jax.random.key_data(row_keys(seed, prompts.row_B, prompts.sample_B))
    start = State(None, history, prompts.limit_B, keys_B, prompts.limit_B <= prompts.length_B, None)

    def body(state: State) -> State:
        hidden_BxTxD = bound.decode(state.history.tokens_BxT).hidden
        last_BxTxD = jnp.take_along_axis(hidden_BxTxD, state.history.length_B[:, None, None] - 1, axis=1)
        return decoder.advance(state, decoder.logits(bound, last_BxTxD))

    return jax.lax.while_loop(lambda state: ~state.done_B.all(), body, start).history


def replace(
    decoder: Decoder, params: Any, state: State, index_R: jax.Array, prompts: Prompts, seed: jax.Array
) -> State:
    """Puts new prompts into rows, and chooses their first tokens.

    Args:
      decoder: static.
      params: of the network.
      state: donate it.
      index_R: rows to replace; a number outside of the batch is ignored, with its prompt.
      prompts: R prompts.
      seed: of the random numbers.

    Returns:
      The state.
    """
    slots = min(prompts.tokens_BxP.shape[1], decoder.slots)
    new = prefill(decoder, params, prompts, seed, slots)

    def put(old: jax.Array, x: jax.Array) -> jax.Array:
        return old.at[index_R].set(x, mode="drop")

    rest = jax.tree.map(put, state.replace(cache=None), new.replace(cache=None))
    return rest.replace(cache=state.cache.put_rows(index_R, new.cache))


def cancel(state: State, cancelled_B: jax.Array) -> State:
    """Ends rows, such as those whose text has a stop string."""
    return state.replace(done_B=state.done_B | cancelled_B)


def search(decoder: Decoder, params: Any, prompts: Prompts) -> beam.Hypotheses:
    """Beam search, from the prompts to the results.

    Args:
      decoder: static; `options.beams` and `options.samples` say how many.
      params: of the network.
      prompts: a batch.

    Returns:
      Hypotheses [B, samples, …].
    """
    bound, options = decoder.network.bind(params), decoder.options
    logits_BxV, cache = decoder.start(bound, prompts, decoder.slots)

    def step(state: Any, tokens_N: jax.Array) -> tuple[jax.Array, Any]:
        cache, history = state
        history = None if history is None else history.append(tokens_N)
        logits_NxV, cache = decoder.step(bound, cache, tokens_N, history)
        return logits_NxV, (cache, history)

    def take_rows(state: Any, index_N: jax.Array) -> Any:
        cache, history = state
        return cache.take_rows(index_N), jax.tree.map(lambda x: x[index_N], history)

    history = decoder.history(prompts)
    return beam.beam_search(
        step,
        take_rows,
        (cache, None if decoder.switch is None else history),
        logits_BxV,
        history,
        beams=options.beams,
        max_new_tokens=prompts.limit_B - prompts.length_B,
        eos_ids=options.eos,
        samples=options.samples,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
        process=functools.partial(process, options=options),
        log_probs=options.scores,
    )
