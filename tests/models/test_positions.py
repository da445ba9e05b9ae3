"""T5's buckets and the bias made of them, tables of absolute positions, rotations, slopes."""

import doctest

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.models import positions
from jaxpt.models.positions import (
    LearnedPositions,
    RelativeBias,
    Rope,
    ShawPositions,
    alibi,
    positions_from,
    relative_bucket,
    rotate,
    sinusoidal,
)


def test_examples():
    assert doctest.testmod(positions).failed == 0


@pytest.mark.parametrize(
    ("bidirectional", "want"),
    [
        (True, {-128: 15, -16: 10, -8: 8, 0: 0, 1: 17, 8: 24, 20: 26, 128: 31, 4000: 31, -4000: 15}),
        (False, {-4000: 31, -128: 31, -16: 16, -15: 15, 0: 0, 1: 0, 300: 0}),
    ],
)
def test_buckets_of_t5(bidirectional, want):
    got = relative_bucket(np.array(list(want)), bidirectional=bidirectional)
    assert got.tolist() == list(want.values())


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 6), (4, 9), (9, 4), (1, 7), (150, 140)])
def test_bias_is_the_table_entry_of_each_pair(queries, keys, bidirectional):
    module = RelativeBias(3, bidirectional, nn.initializers.normal(1.0))
    table = jax.random.normal(jax.random.key(0), (32, 3))
    distance = np.arange(keys) - np.arange(queries)[:, None]
    bucket = relative_bucket(distance, bidirectional=bidirectional)

    def both(table):
        return module.apply({"params": {"table": table}}).materialise(queries, keys), table[bucket].transpose(2, 0, 1)

    got, want = both(table)
    np.testing.assert_array_equal(got, want)
    weights = jax.random.normal(jax.random.key(1), got.shape)
    gradients = [jax.grad(lambda t, i=i: (both(t)[i] * weights).sum())(table) for i in (0, 1)]
    np.testing.assert_allclose(*gradients, atol=1e-3)


def test_learned_positions():
    module = LearnedPositions(8, 4, nn.initializers.normal(1.0), jnp.float32)
    variables = nn.unbox(module.init(jax.random.key(0), 8))
    table = variables["params"]["table"]
    np.testing.assert_array_equal(module.apply(variables, 5)[0], table[:5])
    given = jnp.array([[0, 1, 0, 1, 2]])
    np.testing.assert_array_equal(module.apply(variables, 5, given), table[given])
    with pytest.raises(UserError, match=r"9 tokens.* 8 positions"):
        module.apply(variables, 9)


@pytest.mark.parametrize("traced", [False, True])
def test_the_terms_of_queries_at_an_offset_are_a_slice_of_the_whole(traced):
    """Of queries 5, 6 and 7 among ten positions: where they stand may be known at compile time, or not."""
    at, few, of_all = 5, 3, slice(5, 8)
    rng = np.random.default_rng(0)
    init, table, q = nn.initializers.zeros, rng.normal(size=(32, 3)), rng.normal(size=(2, 10, 3, 4)).astype(np.float32)
    rows, shaw = rng.normal(size=(12, 4)), rng.normal(size=(5, 4)).astype(np.float32)
    learned = LearnedPositions(12, 4, init, jnp.float32, 2)

    def terms(queries, offset):
        positions = positions_from(queries, offset)
        for bidirectional in (True, False):
            yield (
                RelativeBias(3, bidirectional, init)
                .apply({"params": {"table": table}})
                .materialise(queries, 10, offset)
            )
        yield alibi(3, queries, 10, offset)
        own = q if queries == 10 else q[:, of_all]
        yield ShawPositions(2, init).apply({"params": {"table": shaw}}, own, 10, offset)[0]
        yield learned.apply({"params": {"table": rows}}, queries, None, offset)
        yield from Rope().rotation(positions, 4)

    part = jax.jit(lambda at: tuple(terms(few, at)))(at) if traced else terms(few, at)
    for got, whole in zip(part, terms(10, 0), strict=True):
        np.testing.assert_allclose(got, whole[:, of_all], rtol=1e-6, atol=1e-6)


def test_keys_in_the_order_of_a_ring():
    """The newest of eight keys is in slot 2: each term has the columns of keys in order, turned."""
    order, rng = (np.arange(8) - 3) % 8, np.random.default_rng(0)
    init, table, shaw = nn.initializers.zeros, rng.normal(size=(32, 3)), rng.normal(size=(5, 4)).astype(np.float32)
    q = rng.normal(size=(2, 1, 3, 4)).astype(np.float32)

    def terms(index):
        for bidirectional in (True, False):
            yield RelativeBias(3, bidirectional, init).apply({"params": {"table": table}}).materialise(1, 8, 7, index)
        yield alibi(3, 1, 8, 7, index)
        yield ShawPositions(2, init).apply({"params": {"table": shaw}}, q, 8, 7, index)

    for got, in_order in zip(terms(jnp.asarray(order)), terms(None), strict=True):
        np.testing.assert_array_equal(got, in_order[..., order])


def test_positions_beyond_the_table_are_refused():
    learned = LearnedPositions(8, 4, nn.initializers.zeros, jnp.float32, 2)
    with pytest.raises(UserError, match=r"7 tokens.* 6 positions"):
        learned.apply({"params": {"table": np.zeros((8, 4))}}, 2, None, 5)


def test_sinusoidal():
    table = sinusoidal(50, 6)
    np.testing.assert_allclose(table[7], [f(7 / 10_000 ** (i / 6)) for i in (0, 2, 4) for f in (np.sin, np.cos)], 1e-5)


def test_alibi_falls_off_with_distance():
    bias = np.asarray(alibi(6, 4, 5))
    slopes = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]  # four of 4 heads, then every second one of 8
    want = [[[-slope * abs(i - j) for j in range(5)] for i in range(4)] for slope in slopes]
    np.testing.assert_allclose(bias, want)


def test_shaw_is_one_vector_for_each_distance():
    module = ShawPositions(reach=2, embedding_init=nn.initializers.normal(1.0))
    q = np.random.default_rng(0).normal(size=(2, 4, 3, 5)).astype(np.float32)
    scores, variables = module.init_with_output(jax.random.key(0), q, 6)
    table = np.asarray(variables["params"]["table"].value)
    for i in range(4):
        for j in range(6):
            want = q[:, i] @ table[np.clip(j - i, -2, 2) + 2]
            np.testing.assert_allclose(scores[:, :, i, j], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rope", [Rope(), Rope(500.0, "linear", 4.0), Rope(500.0, "llama3", 8.0, 1.0, 4.0, 64)])
def test_turned_products_depend_on_the_distance_alone(rope):
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def product(i, j):
        turned = (rotate(x, rope.rotation(jnp.array([[at]]), 8)) for x, at in ((q, i), (k, j)))
        return float((next(turned) * next(turned)).sum())

    np.testing.assert_allclose(product(7, 3), product(104, 100), rtol=1e-3, atol=1e-3)
    assert abs(product(7, 3) - product(7, 4)) > 1e-2


def test_llama3_stretches_slow_pairs_alone():
    plain, scaled = (r.frequencies(16) for r in (Rope(), Rope(scaling="llama3", factor=8.0, original_positions=8192)))
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_array_equal(scaled[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any() and ((scaled < plain) & (scaled > plain / 8))[between].all()
