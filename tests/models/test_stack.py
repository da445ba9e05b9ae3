"""Scanned stacks: equal to their layers one after the other, whatever is rematerialised."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.base import unstack
from jaxpt.models.output import Output, Past
from jaxpt.models.stack import Segment, Shared, Stack, _Pattern


class Block(nn.Module):
    """Adds a projection of its input, and its memory if it has one; gives back the mean as its memory."""

    slope: float

    @nn.compact
    def __call__(self, x, past, shared):
        kernel = self.param(
            "kernel", nn.with_logical_partitioning(nn.initializers.normal(0.3), ("embed", "norm")), (4, 4)
        )
        x = x + self.slope * jnp.tanh(x @ kernel)
        x = x if past.memory is None else x + past.memory
        return Output(x, memory=x.mean(), aux={"square": jnp.square(x).sum()})


FAST, SLOW = functools.partial(Block, 1.0), functools.partial(Block, 0.1)
SEGMENTS = (Segment((FAST, FAST, SLOW), 3), Segment((SLOW,), 2))


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (2, 3, 4))


def test_equals_its_layers_in_order(x):
    stack, shared = Stack(SEGMENTS), Shared()
    boxed = stack.init(jax.random.key(1), x, shared)
    assert boxed["params"]["segment_0"]["block_2"]["kernel"].names == ("layers", "embed", "norm")
    variables = nn.unbox(boxed)
    output = stack.apply(variables, x, shared, layers=True)
    means, seen, squares = [], [x], 0.0
    for s, segment in enumerate(SEGMENTS):
        for layer in unstack(variables["params"][f"segment_{s}"]):
            for b, make in enumerate(segment.blocks):
                one = make().apply({"params": layer[f"block_{b}"]}, x, Past(), shared)
                x, squares = one.hidden, squares + one.aux["square"]
                means.append(one.memory)
                seen.append(x)
    np.testing.assert_allclose(output.hidden, x, atol=1e-6)
    first, second = np.stack(output.memory[0], axis=1).ravel(), np.asarray(output.memory[1][0])
    np.testing.assert_allclose(np.concatenate([first, second]), means, atol=1e-6)
    np.testing.assert_allclose(output.layers, seen, atol=1e-6)
    np.testing.assert_allclose(output.aux["square"], squares, rtol=1e-6)
    assert output.cache is None and stack.apply(variables, x, shared).layers is None


def test_unrolled_layers_are_the_same_layers(x):
    """3 repetitions at 2 a turn leave one over, and 2 at a turn are all of the second segment."""
    variables = nn.unbox(Stack(SEGMENTS).init(jax.random.key(1), x, Shared()))
    want = Stack(SEGMENTS).apply(variables, x, Shared())
    got = Stack(SEGMENTS, unroll=2).apply(variables, x, Shared())
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), got, want)


def test_layers_start_different(x):
    params = nn.unbox(Stack(SEGMENTS).init(jax.random.key(1), x, Shared()))["params"]
    first, second, _ = params["segment_0"]["block_0"]["kernel"]
    assert float(jnp.abs(first - second).max()) > 0.1


class Two(nn.Module):
    """Two parameters in one scope: the second draw of a scope has a key of its own."""

    @nn.compact
    def __call__(self, x, past, shared):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.3), ("embed", "norm"))
        return Output(x @ self.param("first", init, (4, 4)) @ self.param("second", init, (4, 4)))


class Scanned(nn.Module):
    """The reference for drawn parameters: `nn.scan` over each segment's layers."""

    segments: tuple

    @nn.compact
    def __call__(self, x, shared):
        for index, segment in enumerate(self.segments):
            scanned = nn.scan(
                _Pattern,
                variable_axes={} if segment.shared else {"params": 0},
                variable_broadcast="params" if segment.shared else False,
                split_rngs={"params": not segment.shared},
                in_axes=(0, nn.broadcast),
                length=segment.repeats,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x, _ = scanned(segment.blocks, False, name=f"segment_{index}")(x, Past(), shared)
        return x


def test_draws_what_nn_scan_draws(x):
    """Parameters and logical axes, of layers of their own and of shared ones; and gives the same hidden states."""
    segments = (*SEGMENTS, Segment((Two, SLOW), 2), Segment((Two, SLOW), 2, shared=True))
    got, drawn = Stack(segments).init_with_output(jax.random.key(1), x, Shared())
    want, scanned = Scanned(segments).init_with_output(jax.random.key(1), x, Shared())
    jax.tree.map(np.testing.assert_array_equal, drawn, scanned)
    assert jax.tree.structure(drawn) == jax.tree.structure(scanned), "boxes have the same names"
    np.testing.assert_allclose(got.hidden, want, atol=1e-6)


def test_layers_have_inputs_of_their_own(x):
    stack, shared = Stack((Segment((FAST,), 2),)), Shared()
    variables = nn.unbox(stack.init(jax.random.key(1), x, shared))
    one, two = unstack(variables["params"]["segment_0"]["block_0"])
    given = jnp.array([10.0, 20.0])
    y = stack.apply(variables, x, shared, Past(memory=((given,),))).hidden
    for params, memory in ((one, 10.0), (two, 20.0)):
        x = FAST().apply({"params": params}, x, Past(memory=memory), shared).hidden
    np.testing.assert_allclose(y, x, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_reach_every_layer_s_states(x, remat):
    """Of a mixture of all layers, and of a sum of the blocks' own, as if the layers were called one by one."""
    stack = Stack(SEGMENTS, remat)
    params = nn.unbox(stack.init(jax.random.key(1), x, Shared()))["params"]

    def scanned(params):
        output = stack.apply({"params": params}, x, Shared(), layers=True)
        return jnp.tensordot(jnp.arange(1.0, 13), output.layers, 1).sum() + output.aux["square"]

    def unrolled(params):
        y, total = x, x.sum()
        for s, segment in enumerate(SEGMENTS):
            for layer in unstack(params[f"segment_{s}"]):
                for b, make in enumerate(segment.blocks):
                    one = make().apply({"params": layer[f"block_{b}"]}, y, Past(), Shared())
                    weights.append(len(weights) + 2)
                    y, total = one.hidden, total + one.aux["square"] + weights[-1] * one.hidden.sum()
        return total

    weights = []
    got = jax.grad(scanned)(params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), got, jax.grad(unrolled)(params))


class Cached(nn.Module):
    """Attention of one head to its own projections of all tokens so far: writes keys into a cache at a place."""

    @nn.compact
    def __call__(self, x, past, shared):
        kernel = self.param(
            "kernel", nn.with_logical_partitioning(nn.initializers.normal(0.5), ("embed", "norm")), (4, 4)
        )
        keys = (x @ kernel)[:, None]  # [B, heads, L, K]
        if past.cache is None:
            return Output(x + jax.nn.softmax(x @ keys[:, 0].mT) @ keys[:, 0])
        at, length = shared.positional, past.cache.shape[3]
        stored = jax.lax.dynamic_update_slice(past.cache, keys[None], (past.layer, 0, 0, at, 0))  # of all layers
        cache = stored[past.layer]
        scores = jnp.where(jnp.arange(length) < at + x.shape[1], x @ cache[:, 0].mT, -jnp.inf)
        return Output(x + jax.nn.softmax(scores) @ cache[:, 0], cache=stored)


def test_a_cache_goes_in_and_comes_out_written(x):
    """The last of three tokens, with a cache of the two before, is that of a pass over as many from the start."""
    stack = Stack((Segment((Cached,), 3), Segment((Cached, Cached), 2)))
    variables = nn.unbox(stack.init(jax.random.key(1), x, Shared()))
    empty = ((jnp.zeros((3, 2, 1, 5, 4)),), (jnp.zeros((2, 2, 1, 5, 4)),) * 2)
    run = jax.jit(lambda x, cache, at: stack.apply(variables, x, Shared(positional=at), Past(cache)))
    first = run(x[:, :2], empty, 0)
    then = run(x[:, 2:], first.cache, 2)
    assert jax.tree.map(jnp.shape, then.cache) == jax.tree.map(jnp.shape, empty)
    assert all(np.abs(c[:, :, :, :3]).min() > 0 and not c[:, :, :, 3:].any() for c in jax.tree.leaves(then.cache))
    one_by_one = run(x[:, 1:2], run(x[:, :1], empty, 0).cache, 1)
    again = run(x[:, 2:], one_by_one.cache, 2)
    assert again.memory is None and np.abs(again.hidden - then.hidden).max() > 0, "tokens at once see one another"
    whole = run(x, empty, 0)
    np.testing.assert_allclose(whole.cache[0][0][0], then.cache[0][0][0], atol=1e-6)
