"""Rows that are sent to their experts come back as if all experts were here, however uneven the routing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpt.models import dispatch, exchange

DEVICES, T, D, F, K, EXPERTS = 4, 12, 6, 5, 2, 8
ROUTINGS = {
    "balanced": lambda rng: np.argsort(rng.random((DEVICES * T, EXPERTS)))[:, :K],
    "one device": lambda rng: np.argsort(rng.random((DEVICES * T, 2)))[:, :K] + 4,
    "one expert": lambda rng: np.tile([7, EXPERTS], (DEVICES * T, 1)),
    "none": lambda rng: np.full((DEVICES * T, K), EXPERTS),
}
"""{name: choices of all tokens}: EXPERTS is no choice. All rows to one device take four turns."""


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((DEVICES,), ("expert",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])


@pytest.mark.parametrize("name", ROUTINGS)
def test_experts_of_all_devices_have_the_values_and_gradients_of_one_device(mesh, name):
    rng = np.random.default_rng(0)
    shapes = {"gate": (EXPERTS, D, F), "up": (EXPERTS, D, F), "down": (EXPERTS, F, D)}
    kernels = {kernel: rng.normal(size=shape).astype(np.float32) for kernel, shape in shapes.items()}
    shapes = (DEVICES * T, D), (DEVICES * T, K), (DEVICES * T, K, F), (DEVICES * T, D)
    x, weights, keep, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    keep, ids = jnp.asarray(keep), ROUTINGS[name](rng).astype(np.int32)
    feed_forward = functools.partial(dispatch._feed_forward, "silu", "blocks")
    rows = PartitionSpec("expert")
    sent = jax.shard_map(
        functools.partial(dispatch._exchanged, feed_forward, "expert"), mesh=mesh, in_specs=(rows,) * 5,
        out_specs=rows, check_vma=False,
    )  # fmt: skip

    def run(function):
        y, pull = jax.vjp(lambda x, w, kernels: function(x, ids, w, kernels, keep), x, weights, kernels)
        return y, pull(jnp.asarray(cotangent))

    wanted = jax.jit(run, static_argnums=0)(functools.partial(dispatch._at_once, feed_forward))
    found = jax.jit(run, static_argnums=0)(sent)
    assert name == "none" or np.abs(wanted[0]).max() > 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, wanted)


def test_each_turn_has_its_share_of_the_rows(mesh):
    """Turns of 5 rows: together they send each row once, and no device gets more than 5 at a time."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(0, 7, (DEVICES, EXPERTS)).astype(np.int32)

    def pieces(sizes_E):
        where = exchange.plan(sizes_E[0], 5, "expert")
        turns = jax.lax.map(lambda n: exchange.turn_of(where, n, 5, "expert"), jnp.arange(20))
        return where.turns[None], jax.tree.map(lambda x: x[None], turns)

    turns, (there, back, own) = jax.jit(
        jax.shard_map(pieces, mesh=mesh, in_specs=PartitionSpec("expert"), out_specs=PartitionSpec("expert"),
                      check_vma=False)
    )(sizes)  # fmt: skip
    fullest = sizes.sum(0).reshape(DEVICES, -1).sum(1).max()
    assert set(np.asarray(turns)) == {-(-fullest // 5)}
    np.testing.assert_array_equal(there[1].sum(1), sizes)
    np.testing.assert_array_equal(own.sum(1).reshape(-1), sizes.sum(0))
    assert np.asarray(own).sum(2).max() == 5
    np.testing.assert_array_equal(there[1], back[3])
    np.testing.assert_array_equal(there[3], back[1])


def test_pieces_arrive_where_they_were_sent():
    """Two pieces for each of two devices, as the documentation of `jax.lax.ragged_all_to_all` says it, in NumPy."""
    mesh = jax.make_mesh((DEVICES,), ("expert",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 4, (DEVICES, 2 * DEVICES)).astype(np.int32)
    starts = np.cumsum(sizes, axis=1, dtype=np.int32) - sizes
    x = rng.normal(size=(DEVICES, 30, 3)).astype(np.float32)
    into, places, received = np.full((DEVICES, 40, 3), -1, np.float32), np.zeros_like(sizes), np.zeros_like(sizes)
    wanted, ends = into.copy(), np.ones(DEVICES, np.int32)
    for sender in range(DEVICES):
        for piece in range(2 * DEVICES):
            to, start, size = piece // 2, starts[sender, piece], sizes[sender, piece]
            places[sender, piece] = ends[to]
            received[to, 2 * sender + piece % 2] = size
            wanted[to, ends[to] : ends[to] + size] = x[sender, start : start + size]
            ends[to] += size

    def send(*arguments):
        return exchange.all_to_all(*(x[0] for x in arguments), "expert")[None]

    rows = PartitionSpec("expert")
    sent = jax.shard_map(send, mesh=mesh, in_specs=(rows,) * 6, out_specs=rows, check_vma=False)
    found = jax.jit(sent)(x, into, starts, sizes, places, received)
    np.testing.assert_array_equal(found, wanted)
