"""Decodes any number of prompts: batches, buckets of lengths, new prompts in the rows of finished ones.

Lengths are rounded up to few values (`batching.bucket`), so that few programs serve all prompts. The host is asked
between programs only: which rows are done, and what comes into them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxpt.decode import batching, decoding
from jaxpt.decode.batching import LEAST, bucket, check_ids
from jaxpt.decode.decoding import Decoder, Prompts, State
from jaxpt.decode.options import Options
from jaxpt.decode.programs import Place, Programs, layer_parts, stored
from jaxpt.errors import UserError
from jaxpt.models import parts
from jaxpt.models.network import Network
from jaxpt.parallel.distributed import to_host

DEFAULT_PLACE, GREEDY = Place(), Options()
REFILL = 4
"""New prompts come when a quarter of the rows is done."""


class Prompt(NamedTuple):
    """A prompt as ids."""

    tokens: Sequence[int]
    """Of an encoder-decoder, the decoder's first tokens: its start token."""
    encoder: Sequence[int] | None = None
    row: int | None = None
    """The number that its samples depend on; by default its index among the prompts."""


@dataclasses.dataclass(frozen=True)
class Generated:
    """What was generated for one prompt and sample."""

    index: int
    """Number of the prompt."""
    sample: int
    tokens: list[int]
    """Generated ids without the prompt, with EOS if there is one."""
    finish: Literal["eos", "length", "stop", "banned"]
    """Why it ended: EOS, the limit of tokens, the caller's `watch`, or options that ban every next token."""
    logprobs: list[float] | None = None
    """log p of each token by the model, before penalties and filters; of beams, after penalties."""
    score: float | None = None
    """Of beam search: the sum of the log-probabilities / length ** length_penalty."""


Watch = Callable[[int, int, list[int]], bool]
"""(number of the prompt, of the sample, all ids generated so far) → True to end this row."""


class Engine:
    """Generates with one network. Compiled programs are kept as long as it lives.

    Attributes:
      params: the parameters on the devices; on a CPU each layer is a part of its own (`jaxpt.models.parts`).
    """

    def __init__(
        self,
        network: Network,
        params: Any,
        place: Place = DEFAULT_PLACE,
        *,
        batch_size: int = 32,
        prefix: bool = False,
    ) -> None:
        """Places the parameters on the devices.

        Args:
          network: a decoder or an encoder-decoder.
          params: of the network; NumPy or JAX arrays. Matrices are kept in the compute dtype. With
            `jax.ShapeDtypeStruct`s it compiles, and generates after `load`.
          place: devices; by default the first one.
          batch_size: rows decoded at a time, at most.
          prefix: True if attention is bidirectional in the prompt (prefix LM).
        """
        if network.config.family == "encoder":
            raise UserError(f"{network.config.kind} is an encoder: it fills masks, but does not generate")
        if not network.has_cache:
            raise UserError(f"model.kind {network.config.kind}: its `decode` takes no cache, so it cannot generate")
        network, _ = batching.independent(network)  # the encoder's texts of a batch have one length anyway
        self._network = network.with_model(remat="none")
        self._place, self._batch_size, self._prefix = place, batch_size, prefix
        self._kept: dict[tuple[Any, ...], Programs] = {}
        self.load(params)

    def load(self, params: Any) -> None:
        """Takes other parameters of the same network; programs stay compiled.

        Args:
          params: NumPy or JAX arrays; shapes let go of the parameters that it has.
        """
        with self._place.use():
            shapes, axes = stored(self._network)
            where = jax.tree.map(lambda like, names: self._place.sharding(names, like.shape), shapes, axes)
            if isinstance(jax.tree.leaves(params)[0], jax.ShapeDtypeStruct):
                self.params = jax.tree.map(
                    lambda like, at: jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=at), shapes, where
                )
                return
            self.params = jax.tree.map(
                lambda x, like, at: jax.device_put(x.astype(like.dtype), at),
                parts.split(params, layer_parts(self._network)), shapes, where,
            )  # fmt: skip

    def check(self, prompts: Sequence[Prompt], options: Options) -> None:
        """Checks prompts and options.

        Raises:
          UserError: an empty prompt, one that is longer than the model's position table, ids outside the vocabulary, a
            prompt without a text for the encoder that the model has, or with one for none.
        """
        config = self._network.config
        limit, size = config.position_limit, config.vocab_size
        options.check_vocabulary(size)
        for name in ("tokens", "encoder"):
            check_ids("prompt", [getattr(prompt, name) or () for prompt in prompts], size)
        for number, prompt in enumerate(prompts):
            if config.family == "decoder" and prompt.encoder is not None:
                raise UserError(f"prompt {number}: it has a text for an encoder, which {config.kind} has not")
            if config.family != "decoder" and prompt.encoder is None:
                raise UserError(f"prompt {number}: it has no text for the encoder of {config.kind}")
            for ids in [ids for ids in (prompt.tokens, prompt.encoder) if ids is not None]:
                if not len(ids):
                    raise UserError(f"prompt {number}: it has no token; expected at least one")
                if limit is not None and len(ids) > limit:
                    raise UserError(
                        f"prompt {number}: it has {len(ids)} tokens, but the model has {limit} positions; shorten it"
                    )

    def generate(
        self, prompts: Sequence[Prompt], options: Options = GREEDY, *, watch: Watch | None = None, every: int = 16
    ) -> Iterator[Generated]:
        """Generates for each prompt `options.samples` continuations.

        What a row gets depends on (seed, `row` of the prompt, sample) alone, not on the other prompts.

        Args:
          prompts: any number.
          options: search and sampling.
          watch: called for each row every few tokens.
          every: tokens between two calls of `watch`.

        Yields:
          Results as they are finished, in any order.

        Raises:
          UserError: as `check`.
        """
        self.check(prompts, options)
        for slots, members in self._groups(prompts, options):
            if options.beams > 1:
                yield from self._search(prompts, members, slots, options)
            else:
                yield from self._group(prompts, members, slots, options, watch, every)

    def compile(self, prompts: Sequence[Prompt], options: Options = GREEDY) -> list[Programs]:
        """Compiles what `generate` starts with for these prompts; new prompts in rows of finished ones come later.

        Args:
          prompts: any number.
          options: search and sampling.

        Returns:
          The programs of each first batch of a bucket of lengths, and of each batch of beam search.

        Raises:
          UserError: as `check`.
        """
        self.check(prompts, options)
        programs = []
        for slots, members in self._groups(prompts, options):
            if options.beams > 1:
                for owners in self._searched(members, options):
                    programs.append(self._programs(self._batch(prompts, owners, options), slots, options))
                    programs[-1].search  # noqa: B018 (compiled when it is asked for)
                continue
            waiting = [(number, sample) for number in members for sample in range(options.samples)]
            rows = self._rows(len(waiting))
            batch = self._batch(prompts, _filled(waiting[:rows], rows), options)
            programs.append(self._programs(batch, slots, options))
            programs[-1].prefill, programs[-1].run
        return programs

    def _groups(self, prompts: Sequence[Prompt], options: Options) -> list[tuple[int, list[int]]]:
        """(slots of the cache, numbers of the prompts) of each bucket of lengths."""
        groups: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for number, prompt in enumerate(prompts):
            slots = bucket(self._limit(prompt, options) - 1)  # the last token is not read
            groups[slots, bucket(len(prompt.encoder)) if prompt.encoder is not None else 0].append(number)
        return [(slots, members) for (slots, _), members in groups.items()]

    def _limit(self, prompt: Prompt, options: Options) -> int:
        """Tokens at most, prompt included: the last generated one needs no position."""
        length, limit = len(prompt.tokens) + options.max_new_tokens, self._network.config.position_limit
        return length if limit is None else min(length, limit + 1)

    def _programs(self, batch: Prompts, slots: int, options: Options) -> Programs:
        """The programs for a batch of prompts."""
        encoder = 0 if batch.encoder_tokens_BxM is None else batch.encoder_tokens_BxM.shape[1]
        key = (options.static, slots, *batch.tokens_BxP.shape, encoder)
        if key not in self._kept:
            decoder = Decoder(self._network, options.static, slots, slots + 1, self._prefix)
            self._kept[key] = Programs(decoder, self._place, self.params, batch)
        return self._kept[key]

    def _rows(self, count: int) -> int:
        """Rows of a batch for so many texts: a power of two, and a multiple of what the mesh divides."""
        multiple = self._place.row_multiple
        rows = min(1 << (count - 1).bit_length(), self._batch_size)
        return -(-rows // multiple) * multiple

    def _group(
        self,
        prompts: Sequence[Prompt],
        members: list[int],
        slots: int,
        options: Options,
        watch: Watch | None,
        every: int,
    ) -> Iterator[Generated]:
        """Prompts of one bucket, by sampling or greedily."""
        waiting = collections.deque((number, sample) for number in members for sample in range(options.samples))
        rows = self._rows(len(waiting))
        owners = _filled([waiting.popleft() for _ in range(min(rows, len(waiting)))], rows)
        batch = self._batch(prompts, owners, options)
        programs = self._programs(batch, slots, options)
        params, seed = self._formatted(programs, programs.run), np.uint32(options.seed)

        def refill(state: State, free: list[int]) -> State:
            """Puts waiting prompts into free rows."""
            taken = free[: len(waiting)]
            for row in taken:
                owners[row] = waiting.popleft()
            count = max(1 << (len(taken) - 1).bit_length(), rows // REFILL)  # few sizes: each is compiled
            index = np.array([*taken, *[rows] * (count - len(taken))], np.int32)
            batch = self._batch(prompts, _filled([owners[row] for row in taken], count), options)
            return programs.replace(state, params, index, batch, seed)

        state = programs.prefill(params, self._place.put(batch), seed)
        steps = np.int32(slots if watch is None else every)
        while True:
            results, stopped = self._finished(state, owners, options, watch)
            yield from results
            if stopped.any():
                state = decoding.cancel(state, stopped)
            free = [row for row, owner in enumerate(owners) if owner is None]
            if len(free) == rows and not waiting:
                return
            if waiting and free:
                state = refill(state, free)
                continue  # a first token may end a row
            spare = np.int32(max(rows // REFILL, 1) if waiting else rows)
            state = programs.run(params, state, steps, spare)

    def _formatted(self, programs: Programs, program: Any) -> Any:
        """The parameters in the layout that a compiled program wants."""
        if programs.chooses_layouts:
            (params, *_), _ = program.input_formats
            self.params = jax.device_put(self.params, params)
        return self.params

    def _finished(
        self, state: State, owners: list[tuple[int, int] | None], options: Options, watch: Watch | None
    ) -> tuple[list[Generated], np.ndarray]:
        """What is done, whose rows become free; and the rows that `watch` ended."""
        small = (state.history, state.done_B, state.limit_B, state.logprobs_BxT)
        history, done_B, limit_B, logprobs_BxT = jax.tree.map(to_host, small)
        generated, stopped = [], np.zeros(len(owners), bool)
        for row, owner in enumerate(owners):
            if owner is None or not (done_B[row] or watch is not None):
                continue
            first, end = history.prompt_B[row], history.length_B[row]
            ids = history.tokens_BxT[row, first:end].tolist()
            stopped[row] = watch is not None and watch(*owner, ids)
            if not (done_B[row] or stopped[row]):
                continue
            at_end = "eos" if ids and ids[-1] in options.eos else "length" if end >= limit_B[row] else "banned"
            logprobs = None if logprobs_BxT is None else logprobs_BxT[row, first:end].tolist()
            generated.append(Generated(*owner, ids, "stop" if stopped[row] else at_end, logprobs))
            owners[row] = None
        return generated, stopped

    def _search(
        self, prompts: Sequence[Prompt], members: list[int], slots: int, options: Options
    ) -> Iterator[Generated]:
        """Prompts of one bucket, by beam search."""
        for owners in self._searched(members, options):
            batch = self._batch(prompts, owners, options)
            programs = self._programs(batch, slots, options)
            params = self._formatted(programs, programs.search)
            hypotheses = jax.tree.map(to_host, programs.search(params, self._place.put(batch)))
            for row, owner in enumerate(owners):
                for sample in range(options.samples if owner is not None else 0):
                    if not hypotheses.is_complete_RxK[row, sample]:
                        continue
                    at = slice(len(prompts[owner[0]].tokens), hypotheses.length_RxK[row, sample])
                    ids = hypotheses.tokens_RxKxT[row, sample, at].tolist()
                    logged = hypotheses.log_probs_RxKxT
                    logprobs = None if logged is None else logged[row, sample, at].tolist()
                    finish = "eos" if ids and ids[-1] in options.eos else "length"
                    yield Generated(owner[0], sample, ids, finish, logprobs, float(hypotheses.score_RxK[row, sample]))

    def _searched(self, members: list[int], options: Options) -> Iterator[list[tuple[int, int] | None]]:
        """The owners of the rows of each batch of beam search."""
        rows = self._rows(min(len(members), max(self._batch_size // options.beams, 1)))
        for start in range(0, len(members), rows):
            yield _filled([(number, 0) for number in members[start : start + rows]], rows)

    def _batch(self, prompts: Sequence[Prompt], owners: Sequence[tuple[int, int] | None], options: Options) -> Prompts:
        """The prompts of some rows; a row without owner is done from the start."""
        row_prompts = [None if owner is None else prompts[owner[0]] for owner in owners]
        longest = max(len(prompt.tokens) for prompt in row_prompts if prompt is not None)
        width = bucket(
            longest, least=1 if any(prompt is not None and prompt.encoder for prompt in row_prompts) else LEAST
        )
        encoded = [prompt.encoder for prompt in row_prompts if prompt is not None and prompt.encoder is not None]
        batch = _empty(len(row_prompts), width, bucket(max(map(len, encoded))) if encoded else 0)
        for row, (prompt, owner) in enumerate(zip(row_prompts, owners)):
            if prompt is None:
                continue
            batch.tokens_BxP[row, width - len(prompt.tokens) :] = prompt.tokens
            batch.length_B[row], batch.limit_B[row] = len(prompt.tokens), self._limit(prompt, options)
            batch.row_B[row] = owner[0] if prompt.row is None else prompt.row
            batch.sample_B[row] = owner[1]
            if prompt.encoder is not None:
                batch.encoder_tokens_BxM[row, : len(prompt.encoder)] = prompt.encoder
                batch.encoder_length_B[row] = len(prompt.encoder)
        return batch


def _filled(owners: list[tuple[int, int]], rows: int) -> list[tuple[int, int] | None]:
    """Owners of all rows; the last ones have none."""
    return [*owners, *[None] * (rows - len(owners))]


def _empty(rows: int, width: int, encoder: int) -> Prompts:
    """A batch without prompts. Each row has a token, so that no attention is empty."""

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int32)

    ones = np.ones(rows, np.int32)
    return Prompts(
        zeros(rows, width), ones, zeros(rows), zeros(rows), zeros(rows),
        zeros(rows, encoder) if encoder else None, ones.copy() if encoder else None,
    )  # fmt: skip
