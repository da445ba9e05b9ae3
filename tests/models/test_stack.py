"""Scanned stacks: equal to their layers one after the other, whatever is rematerialised."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import MeshConfig
from jaxpt.models.layers import Dropout
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output, Past
from jaxpt.models.stack import Segment, Shared, Stack, turns
from jaxpt.parallel import compiler
from jaxpt.parallel import mesh as meshes


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
X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


@functools.cache
def initial():
    """Parameters with their logical axes."""
    return jax.jit(lambda key: Stack(SEGMENTS).init(key, X, Shared()))(jax.random.key(1))


def variables():
    return jax.tree.map(np.asarray, nn.unbox(initial()))


def some(stack):
    """Parameters of a stack that are not drawn by it, which takes longer."""
    rng, shapes = np.random.default_rng(1), nn.unbox(jax.eval_shape(stack.init, jax.random.key(1), X, Shared()))
    return jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape).astype(np.float32), shapes)


def by_hand(params, x=X):
    """The states after each layer, in order."""
    for s, segment in enumerate(SEGMENTS):
        stacked = params[f"segment_{s}"]
        for i in range(segment.repeats):
            layer = jax.tree.map(lambda x, i=i: x[i], stacked)
            for b, make in enumerate(segment.blocks):
                x = x + make.args[0] * jnp.tanh(x @ layer[f"block_{b}"]["kernel"])
                yield x


def test_equals_its_layers_in_order():
    assert initial()["params"]["segment_0"]["block_2"]["kernel"].names == ("layers", "embed", "norm")
    run = jax.jit(lambda v: Stack(SEGMENTS).apply(v, X, Shared(), layers=True))
    output = run(variables())
    seen = [X, *jax.jit(lambda params: list(by_hand(params)))(variables()["params"])]
    np.testing.assert_allclose(output.hidden, seen[-1], atol=1e-6)
    first, second = np.stack(output.memory[0], axis=1).ravel(), np.asarray(output.memory[1][0])
    np.testing.assert_allclose(np.concatenate([first, second]), [np.mean(x) for x in seen[1:]], atol=1e-6)
    np.testing.assert_allclose(output.layers, seen, atol=1e-6)
    np.testing.assert_allclose(output.aux["square"], sum(np.square(x).sum() for x in seen[1:]), rtol=1e-6)
    assert output.cache is None


def test_unrolled_layers_are_the_same_layers():
    """3 repetitions at 2 a turn leave one over, and 2 at a turn are all of the second segment."""
    want, got = jax.jit(lambda v: [Stack(SEGMENTS, unroll=n).apply(v, X, Shared()) for n in (1, 2)])(variables())
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), got, want)
    assert want.layers is None and want.hidden.shape == X.shape


def test_auto_has_no_loop_on_a_gpu_unless_the_loop_is_what_bounds_memory(monkeypatch):
    assert turns("auto", "none", 12) == 1, "on a CPU"
    assert turns(4, "full", 12) == 4 and turns(4, "none", 3) == 3
    mesh = meshes.make(MeshConfig(data=1, fsdp=2), jax.devices()[:2])
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "platform", lambda: "gpu")
        assert turns("auto", "none", 12) == 12 and turns("auto", "none", 25) == 1
        assert turns("auto", "dots", 12) == 1, "computed again"
        with meshes.use(mesh):
            assert turns("auto", "none", 12) == 1, "gathered"
        text = jax.jit(lambda v: Stack(SEGMENTS).apply(v, X, Shared())).lower(variables()).as_text()
    assert "stablehlo.while" not in text


@pytest.mark.parametrize(("unroll", "repeats"), [(1, 3), (3, 3), (1, 1)])
def test_what_is_computed_again_is_so_without_a_loop_too(unroll, repeats):
    """XLA would join equal computations of both passes where no loop is between them."""
    params = jax.tree.map(lambda x: x[:repeats], {"segment_0": variables()["params"]["segment_0"]})

    def products(remat):
        stack = Stack((Segment(SEGMENTS[0].blocks, repeats),), remat, unroll)
        loss = lambda params: jnp.square(stack.apply({"params": params}, X, Shared()).hidden).sum()  # noqa: E731
        lowered = jax.jit(jax.grad(loss)).lower(params)
        assert ("optimization_barrier" in lowered.as_text()) == (remat == "full" and (unroll, repeats) != (1, 3))
        return lowered.compile().as_text().count(" dot(")

    assert products("full") > products("none")


class Dropped(nn.Module):
    """Dropout of its input."""

    @nn.compact
    def __call__(self, x, past, shared):
        self.param("unused", nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)), (1,))
        return Output(Dropout(0.5)(x))


class Twice(nn.Module):
    """A stack that is called again, as DeBERTa's mask decoder calls its last layer."""

    def setup(self):
        self.stack = Stack((Segment((Dropped,), 1),))

    def __call__(self, shared):
        return [self.stack(jnp.ones(64), shared).hidden for _ in range(2)]


def test_each_call_draws_masks_of_its_own():
    """Also a decoder with the layers of an encoder (T5's `share_layers`), which is a call of another method."""
    params = {"params": {"stack": {"segment_0": {"block_0": {"unused": np.zeros((1, 1))}}}}}

    @jax.jit
    def run(key):
        return [Twice().apply(params, x, rngs={"dropout": key}) for x in (Shared(), Shared(memory_mask=Mask()))]

    (first, second), (decoder, _) = run(jax.random.key(0))
    assert (first != second).any() and (first != decoder).any()
    assert np.flatnonzero(first).tolist()[:8] == [1, 2, 4, 5, 8, 12, 13, 15], "runs go on with the masks that they had"


def test_layers_start_different():
    first, second, _ = variables()["params"]["segment_0"]["block_0"]["kernel"]
    assert float(np.abs(first - second).max()) > 0.1


class Two(nn.Module):
    """Two parameters in one scope: the second draw of a scope has a key of its own."""

    @nn.compact
    def __call__(self, x, past, shared):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.3), ("embed", "norm"))
        return Output(x @ self.param("first", init, (4, 4)) @ self.param("second", init, (4, 4)))


class InOrder(nn.Module):
    """One repetition of a segment."""

    blocks: tuple

    @nn.compact
    def __call__(self, x, past, shared):
        for index, make in enumerate(self.blocks):
            x = make(name=f"block_{index}")(x, past, shared).hidden
        return x, None


class Scanned(nn.Module):
    """The reference for drawn parameters: `nn.scan` over each segment's layers."""

    segments: tuple

    @nn.compact
    def __call__(self, x, shared):
        for index, segment in enumerate(self.segments):
            scanned = nn.scan(
                InOrder,
                variable_axes={} if segment.shared else {"params": 0},
                variable_broadcast="params" if segment.shared else False,
                split_rngs={"params": not segment.shared},
                in_axes=(0, nn.broadcast),
                length=segment.repeats,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x, _ = scanned(segment.blocks, name=f"segment_{index}")(x, Past(), shared)
        return x


def test_draws_what_nn_scan_draws():
    """Parameters and logical axes, of layers of their own and of shared ones; and gives the same hidden states."""
    segments = (*SEGMENTS, Segment((Two, SLOW), 2), Segment((Two, SLOW), 2, shared=True))
    stacks = Stack(segments), Scanned(segments)
    both = jax.jit(lambda key: [stack.init_with_output(key, X, Shared()) for stack in stacks])
    (got, drawn), (want, scanned) = both(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, drawn, scanned)
    assert jax.tree.structure(drawn) == jax.tree.structure(scanned), "boxes have the same names"
    np.testing.assert_allclose(got.hidden, want, atol=1e-6)


def test_layers_have_inputs_of_their_own():
    stack = Stack((Segment((FAST,), 2),))
    params, given = some(stack), np.array([10.0, 20.0], np.float32)
    y = jax.jit(lambda v: stack.apply(v, X, Shared(), Past(memory=((given,),))).hidden)(params)
    x = X
    for kernel, memory in zip(params["params"]["segment_0"]["block_0"]["kernel"], given):
        x = x + np.tanh(x @ kernel) + memory
    np.testing.assert_allclose(y, x, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_reach_every_layer_s_states(remat):
    """Of a mixture of all layers, and of a sum of the blocks' own, as if the layers were called one by one."""
    stack = Stack(SEGMENTS, remat)

    def scanned(params):
        output = stack.apply({"params": params}, X, Shared(), layers=True)
        return jnp.tensordot(jnp.arange(1.0, 13), output.layers, 1).sum() + output.aux["square"]

    def unrolled(params):
        return sum(weight * x.sum() + jnp.square(x).sum() for weight, x in enumerate(by_hand(params), 2))

    got, want = jax.jit(lambda params: [jax.grad(f)(params) for f in (scanned, unrolled)])(variables()["params"])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), got, want)


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


def test_a_cache_goes_in_and_comes_out_written():
    """The last of three tokens, with a cache of the two before, is that of a pass over as many from the start."""
    stack = Stack((Segment((Cached,), 3), Segment((Cached, Cached), 2)))
    params = jax.tree.map(lambda x: x * 5 / 3, some(stack))  # N(0, 0.5²)
    empty = ((np.zeros((3, 2, 1, 5, 4), np.float32),), (np.zeros((2, 2, 1, 5, 4), np.float32),) * 2)
    run = jax.jit(lambda x, cache, at: stack.apply(params, x, Shared(positional=at), Past(cache)))
    first = run(X[:, :2], empty, 0)
    then = run(X[:, 2:], first.cache, 2)
    assert jax.tree.map(np.shape, then.cache) == jax.tree.map(np.shape, empty)
    caches = jax.tree.map(np.asarray, then.cache)
    assert all(np.abs(c[:, :, :, :3]).min() > 0 and not c[:, :, :, 3:].any() for c in jax.tree.leaves(caches))
    one_by_one = run(X[:, 1:2], run(X[:, :1], empty, 0).cache, 1)
    again = run(X[:, 2:], one_by_one.cache, 2)
    assert again.memory is None and np.abs(again.hidden - then.hidden).max() > 0, "tokens at once see one another"
    whole = run(X, empty, 0)
    np.testing.assert_allclose(np.asarray(whole.cache[0][0])[0], caches[0][0][0], atol=1e-6)
