"""A stack of layers: a list of segments, each a pattern of blocks that is scanned and rematerialised.

Shapes: B batch · L length · S memory length · D embedding width · H heads

A block is an `nn.Module` called as `block(x_BxLxD, past, shared) -> Output`. `past` (cache, memory) and the
other fields of the output are per layer; `shared` is the same for all layers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import LazyRng
from jax.extend.core.primitives import dot_general_p

from jaxpt.models import parts, pipeline
from jaxpt.models.cache import NewCache
from jaxpt.models.layers import mesh_axes
from jaxpt.models.mask import Mask
from jaxpt.models.output import NOTHING, Output, Past, sum_by_name
from jaxpt.models.positions import DistanceBias
from jaxpt.parallel import compiler

# Saves memory: projections of attention are kept, attention scores and the wide feed-forward are recomputed.
SAVED_NAMES = ("query", "key", "value", "context")
INTERMEDIATES = "intermediates"
"""Flax's collection of what modules sow. It is mutable, and then computed, only on request."""


@flax.struct.dataclass
class Shared:
    """Inputs common to all layers of a stack."""

    mask: Mask | None = None
    bias_HxLxS: jax.Array | DistanceBias | None = None
    memory_BxSxD: jax.Array | None = None
    """Source of keys and values of cross-attention; of self-attention where a layer's input is some positions only."""
    memory_mask: Mask | None = None
    positional: Any = None
    """Position inputs of the architecture: rotations, relative embeddings."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """A pattern of blocks, repeated: `Segment((local, local, global_), 8)` is 24 layers."""

    blocks: tuple[Callable[..., nn.Module], ...]
    """Factories of blocks, called as `make(name=…)`."""
    repeats: int
    shared: bool = False
    """All repetitions share their parameters, which have no layers axis (ALBERT)."""
    resizes: bool = False
    """The one repetition changes the width of the states, which no loop could carry (AWD-LSTM's first, last layer)."""


def repeated(kinds: Sequence[Any], period: int | None = None) -> tuple[tuple[range, ...], ...]:
    """Layer numbers of each block of each segment, of layers of several kinds: `result[segment][block]`.

    Args:
      kinds: of each layer.
      period: layers after which the kinds repeat. As many as there are layers, or None: a segment for each run of equal
        layers.

    Example:
      >>> repeated("aabaabaa", 3)  # twice (0, 1, 2), then (6) and (7) once
      ((range(0, 6, 3), range(1, 6, 3), range(2, 6, 3)), (range(6, 7), range(7, 8)))
      >>> repeated("aab")
      ((range(0, 2),), (range(2, 3),))
    """
    count = len(kinds)
    if period is None or period >= count:
        runs = [[*run] for _, run in itertools.groupby(range(count), kinds.__getitem__)]
        return tuple((range(run[0], run[-1] + 1),) for run in runs)
    end = count // period * period
    whole = tuple(range(i, end, period) for i in range(period))
    return (whole, tuple(range(i, i + 1) for i in range(end, count))) if end < count else (whole,)


class _Pattern(nn.Module):
    """One repetition of a segment: its blocks in sequence."""

    blocks: tuple[Callable[..., nn.Module], ...]
    layers: bool
    """Also return the input of each block."""

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> tuple[jax.Array, Output]:
        hidden_states, outputs = [], []
        for index, make in enumerate(self.blocks):
            hidden_states.append(x_BxLxD)
            outputs.append(make(name=f"block_{index}")(x_BxLxD, _part(past, index), shared))
            x_BxLxD = outputs[-1].hidden
        cache, memory = tuple(x.cache for x in outputs), tuple(x.memory for x in outputs)
        layers = tuple(hidden_states) if self.layers else None
        routing = tuple(x.routing for x in outputs)
        return x_BxLxD, Output(None, layers, cache, memory, sum_by_name(*(x.aux for x in outputs)), routing)


class Stack(nn.Module):
    """Runs segments of layers; parameters of a segment have a leading "layers" axis.

    Attributes:
      segments: the layers, in order.
      remat: what the backward pass recomputes: "none", "full", "dots" (all but matmuls without a batch) or
        "names" (all but `SAVED_NAMES`).
      unroll: repetitions per iteration of the compiled loop; "auto": see `turns`.
    """

    segments: tuple[Segment, ...]
    remat: str = "none"
    unroll: int | Literal["auto"] = "auto"

    @nn.compact
    def __call__(
        self,
        x_BxLxD: jax.Array,
        shared: Shared,
        past: Past = NOTHING,
        *,
        layers: bool = False,
        at_BxT: jax.Array | None = None,
    ) -> Output:
        """Runs all layers.

        Args:
          x_BxLxD: input of the first layer.
          shared: inputs common to all layers.
          past: cache and memory, each a tuple over segments of tuples over blocks, leaves [layers, …]; or a request
            for a new cache.
          layers: also return the hidden states of all layers.
          at_BxT: positions [B, T] whose hidden states are wanted, instead of all. The last layer of a plain stack then
            computes no others; its block takes keys and values of self-attention from `shared.memory_BxSxD`.

        Returns:
          The last layer's hidden states, the layers' cache and memory with the structure of `past` (None if no layer
          has any), the layers' `routing`, and the sum of their `aux`.
        """
        hidden_states, outputs = [], []
        for index, segment in enumerate(self.segments):
            name = f"segment_{index}"
            pattern = _Pattern(segment.blocks, layers, name=name, parent=None)
            inputs = x_BxLxD, _part(past, index), shared
            if self.is_initializing():  # merge with earlier calls (without cross-attention)
                self.put_variable("params", name, self._draw(segment, name, pattern, *inputs))
            is_last = index == len(self.segments) - 1
            x_BxLxD, output = self._run(segment, name, pattern, *inputs, at_BxT if is_last else None)
            outputs.append(output)
            if output.intermediates is not None:
                self.put_variable(INTERMEDIATES, name, output.intermediates)
            hidden_states.append(jax.tree.map(_in_order, *output.layers) if layers else None)
        every = None
        if layers:
            every = jax.tree.map(lambda *x: jnp.concatenate([*x[:-1], x[-1][None]]), *hidden_states, x_BxLxD)
        of_segments = zip(*((x.cache, x.memory, x.routing) for x in outputs))
        cache, memory, routing = (_or_none(tuple(x)) for x in of_segments)
        aux = sum_by_name(*({name: x.sum(0) for name, x in output.aux.items()} for output in outputs))
        return Output(x_BxLxD, every, cache, memory, aux, routing)

    @nn.nowrap
    def _draw(
        self, segment: Segment, name: str, pattern: _Pattern, x_BxLxD: jax.Array, past: Past, shared: Shared
    ) -> Any:
        """Initialises the segment's parameters, boxed. `self.param` would trace the initialisers in every `apply`."""
        rng, past = self.scope.rngs["params"], jax.tree.map(lambda x: x[0], past)
        counters = {"params": 0}

        def run(pattern: _Pattern, *given: Any) -> Any:
            pattern.scope.rng_counters = counters
            return pattern(*given)

        def draw(key: jax.Array) -> Any:
            rngs = {"params": LazyRng(key, (*rng.suffix, name))}
            return nn.init(run, pattern)(rngs, x_BxLxD, past, shared)["params"]

        if segment.shared:
            return draw(rng.rng)
        # Traces a layer twice and counts its draws, so a seed gives the same parameters as with `nn.scan`.
        jax.eval_shape(draw, rng.rng)
        params = jax.lax.map(draw, jax.random.split(rng.rng, segment.repeats))
        return nn.meta.add_axis(params, 0, {nn.PARTITION_NAME: "layers"})

    @nn.nowrap
    def _run(
        self, segment: Segment, name: str, pattern: _Pattern, x_BxLxD: jax.Array, past: Past, shared: Shared,
        at_BxT: jax.Array | None,
    ) -> tuple[jax.Array, Output]:  # fmt: skip
        """Runs the segment as a function of its parameters; `nn.scan` traces a layer twice and has no pipelining."""
        params, rngs = nn.unbox(self.get_variable("params", name)), self.scope.rngs
        draws = self._draws(name, shared)
        is_sown = self.is_mutable_collection(INTERMEDIATES)
        keys = {purpose: jax.random.split(rng.rng, segment.repeats) for purpose, rng in rngs.items()}

        def layer(x_BxLxD: jax.Array, inputs: Any, shared: Shared) -> tuple[jax.Array, Output]:
            of_layer, keys, past = inputs
            variables = {"params": params if segment.shared else of_layer}
            lazy = {purpose: LazyRng(keys[purpose], (*rng.suffix, *draws)) for purpose, rng in rngs.items()}
            if not is_sown:
                return pattern.apply(variables, x_BxLxD, past, shared, rngs=lazy)
            (x_BxLxD, output), sown = pattern.apply(
                variables, x_BxLxD, past, shared, rngs=lazy, mutable=[INTERMEDIATES]
            )
            return x_BxLxD, output.replace(intermediates=sown.get(INTERMEDIATES))

        if not isinstance(past.cache, NewCache | None):
            return self._run_cached(segment, layer, params, keys, past, x_BxLxD, shared)
        is_staged = pipeline.stages() > 1 and not segment.shared
        is_plain = len(parts.of(params)) == len(segment.blocks) == 1 and not is_staged and not segment.shared
        if at_BxT is not None and is_plain:
            layer = self._rematerialized(layer, segment.repeats)
            return self._run_at(segment, layer, (params, keys, past), x_BxLxD, shared, at_BxT)
        outputs = []
        for part, per_layer, count in _parts(segment, params, (keys, past)):
            scan = functools.partial(jax.lax.scan, unroll=turns(self.unroll, self.remat, count))
            run = self._rematerialized(layer, count)
            if is_staged:
                x_BxLxD, output = pipeline.run(run, part, per_layer, x_BxLxD, shared, scan)
            elif segment.resizes:
                only = jax.tree.map(lambda x: x[0], (part, *per_layer))
                x_BxLxD, output = run(x_BxLxD, only, shared)
                output = jax.tree.map(lambda x: x[None], output)
            else:
                x_BxLxD, output = scan(lambda x, xs, run=run: run(x, xs, shared), x_BxLxD, (part, *per_layer), count)
            outputs.append(output)
        joined = _written if isinstance(past.cache, NewCache) else _concatenated
        return x_BxLxD if at_BxT is None else _take(x_BxLxD, at_BxT), jax.tree.map(joined, *outputs)

    @nn.nowrap
    def _draws(self, name: str, shared: Shared) -> tuple[int | str, ...]:
        """What is folded into the random keys of a segment: its name, and what tells this call from others."""
        # As a module's: a layer that is called again (DeBERTa's mask decoder) has other dropout masks.
        calls = self.scope.rng_counters.get(name, 0)
        self.scope.rng_counters[name] = calls + 1
        # The decoder is a call of its own, so the count does not tell it from an encoder with the same layers.
        return name, *["decoder"] * (shared.memory_mask is not None), *[calls] * (calls > 0)

    @nn.nowrap
    def _rematerialized(self, layer: Any, count: int) -> Any:
        """The layer, rematerialized as configured; `count`: of how many repetitions."""
        if self.remat == "none":
            return layer
        # XLA would join equal computations of both passes where no loop is between them.
        is_loop = self.unroll in (1, "auto") and count > 1
        return jax.checkpoint(layer, policy=_kept(self.remat), prevent_cse=not is_loop)

    @nn.nowrap
    def _run_cached(
        self, segment: Segment, layer: Any, params: Any, keys: Any, past: Past, x_BxLxD: jax.Array, shared: Shared
    ) -> tuple[jax.Array, Output]:
        """Runs the segment with the cache of all its layers in the loop's carry, where each layer updates it in place.

        As inputs and outputs of the loop, the layers' caches would be copied.
        """

        def step(carry: Any, xs: Any) -> tuple[Any, Output]:
            (x_BxLxD, cache), (params, keys, memory, layer_index) = carry, xs
            of_layer = past.replace(cache=cache, memory=memory, layer=layer_index)
            x_BxLxD, output = layer(x_BxLxD, (params, keys, of_layer), shared)
            return (x_BxLxD, output.cache), output.replace(cache=None)

        carry, outputs = (x_BxLxD, past.cache), []
        inputs = keys, past.memory, jnp.arange(segment.repeats)
        for part, per_layer, count in _parts(segment, params, inputs):
            unroll = turns(self.unroll, self.remat, count, has_gradient=False)
            carry, output = jax.lax.scan(step, carry, (part, *per_layer), count, unroll=unroll)
            outputs.append(output)
        return carry[0], jax.tree.map(_concatenated, *outputs).replace(cache=carry[1])

    @nn.nowrap
    def _run_at(
        self, segment: Segment, layer: Any, per_layer: Any, x_BxLxD: jax.Array, shared: Shared, at_BxT: jax.Array
    ) -> tuple[jax.Array, Output]:
        """Runs the segment, its last layer at some positions only.

        For inference: the loop reads layers from the whole stack, which is not copied, but gradients would be slow.
        """

        def run(x_BxLxD: jax.Array, index: Any, shared: Shared = shared) -> tuple[jax.Array, Output]:
            return layer(x_BxLxD, jax.tree.map(lambda x: x[index], per_layer), shared)

        last = segment.repeats - 1
        unroll = turns(self.unroll, self.remat, last, has_gradient=False)
        x_BxLxD, outputs = jax.lax.scan(run, x_BxLxD, jnp.arange(last), unroll=unroll)
        shared = shared.replace(mask=shared.mask.of_queries(at_BxT), memory_BxSxD=x_BxLxD)
        x_BxTxD, output = run(_take(x_BxLxD, at_BxT), last, shared)
        return x_BxTxD, jax.tree.map(lambda before, last: jnp.concatenate([before, last[None]]), outputs, output)


UNROLLED = 24
"""Layers that "auto" unrolls at most: the time of compilation grows with them (12 of GPT-2: 26 s beside 9)."""


def turns(unroll: int | Literal["auto"], remat: str, count: int, has_gradient: bool = True) -> int:
    """Repetitions in one iteration of the loop over a segment.

    What the backward pass wants of each layer is copied into arrays of all layers, and out of them again. A TPU does so
    on the way, a GPU takes time for it: so "auto" has no loop on a GPU. Of Llama 1B, 4 rows of 2,048 tokens on an H200,
    a step takes 138 ms then instead of 148, and 15.7 GB of temporaries instead of 18.3. (Layers with dropout take more
    without a loop, by plan: BERT-base 8.2 GB instead of 6.5.) A loop is kept where it is what bounds memory: of layers
    that are computed again, or gathered one by one.

    Args:
      unroll: repetitions, or "auto".
      remat: of the stack.
      count: repetitions of the segment.
      has_gradient: false if nothing is kept for a backward pass: then "auto" is 1.

    Returns:
      From 1 to `count`.
    """
    if unroll != "auto":
        return max(min(unroll, count), 1)
    is_gpu, is_whole = compiler.platform() == "gpu", not mesh_axes("embed") and pipeline.stages() == 1
    return count if has_gradient and is_gpu and is_whole and remat == "none" and count <= UNROLLED else 1


def _take(x_BxLxD: jax.Array, at_BxT: jax.Array) -> jax.Array:
    """The states at some positions of each row."""
    return jnp.take_along_axis(x_BxLxD, at_BxT[..., None], axis=1)


def _part(past: Past, index: int) -> Past:
    """The past of one segment or block."""
    cache, memory = (x if isinstance(x, NewCache | None) else x[index] for x in (past.cache, past.memory))
    return past.replace(cache=cache, memory=memory)


def _parts(segment: Segment, params: Any, per_layer: Any) -> Iterator[tuple[Any, Any, int]]:
    """(parameters, inputs of each layer, repetitions) of each part of a segment; shared parameters are not scanned."""
    first = 0
    for part in [None] if segment.shared else parts.of(params):
        count = segment.repeats if part is None else len(jax.tree.leaves(part)[0])
        yield part, jax.tree.map(lambda x, at=slice(first, first + count): x[at], per_layer), count
        first += count


def _or_none(tree: Any) -> Any:
    return tree if jax.tree.leaves(tree) else None


def _concatenated(*pieces: jax.Array) -> jax.Array:
    """Joins arrays along the first axis."""
    return jnp.concatenate(pieces)


def _written(*pieces: jax.Array) -> jax.Array:
    """Joins arrays along the first axis, each as soon as it is there: a concatenation would hold all to the end."""
    if len(pieces) == 1:
        return pieces[0]
    joined, first = jnp.zeros((sum(map(len, pieces)), *pieces[0].shape[1:]), pieces[0].dtype), 0
    for piece in pieces:
        joined = jax.lax.dynamic_update_slice_in_dim(joined, piece, first, axis=0)
        first += len(piece)
    return joined


def _in_order(*blocks: jax.Array) -> jax.Array:
    """Interleaves the block inputs, each [repeats, …], in execution order: [repeats · blocks, …]."""
    return jnp.stack(blocks, axis=1).reshape(-1, *blocks[0].shape[1:])


def _kept(policy: str) -> Callable[..., Any] | None:
    """Checkpoint policy of a layer; None keeps only its inputs."""
    return {
        "full": None,
        "dots": functools.partial(_is_plain_dot, 0 if pipeline.stages() == 1 else 1),
        "names": jax.checkpoint_policies.save_only_these_names(*SAVED_NAMES),
    }[policy]


def _is_plain_dot(batch_axes: int, primitive: Any, *_: Any, **params: Any) -> bool:
    """True for a product with weights (of all stages with pipelining); products of attention have more batch axes."""
    return primitive is dot_general_p and len(params["dimension_numbers"][1][0]) == batch_axes
