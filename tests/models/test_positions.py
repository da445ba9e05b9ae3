"""T5's buckets and the bias made of them, tables of absolute positions, rotations, slopes."""

import doctest
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.models import position_terms, positions
from jaxpt.models.position_terms import Alibi, alibi_of_keys
from jaxpt.models.positions import (
    LearnedPositions,
    RelativeBias,
    Rope,
    positions_from,
    relative_bucket,
    rotate,
    sinusoids_in_halves,
)

pytestmark = pytest.mark.gpu


def test_examples():
    assert doctest.testmod(positions).failed == 0
    assert doctest.testmod(position_terms).failed == 0


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
@pytest.mark.parametrize(("buckets", "max_distance"), [(4, 3), (8, 5), (32, 17)])
def test_the_smallest_sizes_have_buckets_in_order(buckets, max_distance, bidirectional):
    """What T5's configuration takes: a distance has no smaller bucket than a shorter one."""
    sizes = {"buckets": buckets, "max_distance": max_distance}
    got = relative_bucket(-np.arange(40), bidirectional=bidirectional, **sizes)
    assert got[0] == 0 and (np.diff(got) >= 0).all() and got[-1] == buckets // (1 + bidirectional) - 1


SIZES = [(1, 1), (6, 6), (4, 9), (9, 4), (1, 7), (150, 140)]


@functools.cache
def biases():
    """{(queries, keys, bidirectional): (bias, gradient)} by modules and by the table's entries."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((32, 3)).astype(np.float32)
    cases = [(*size, bidirectional) for size in SIZES for bidirectional in (True, False)]
    weights = {case: rng.standard_normal((3, *case[:2])).astype(np.float32) for case in cases}

    def of(case, table):
        module = RelativeBias(3, case[2], nn.initializers.normal(1.0))
        return module.apply({"params": {"table": table}}).materialise(*case[:2])

    @jax.jit  # one program for all cases
    def got(table):
        pairs = {case: jax.vjp(functools.partial(of, case), table) for case in cases}
        return {case: (bias, back(jnp.asarray(weights[case]))[0]) for case, (bias, back) in pairs.items()}

    def wanted(queries, keys, bidirectional):
        distance = np.arange(keys) - np.arange(queries)[:, None]
        bucket, gradient = relative_bucket(distance, bidirectional=bidirectional), np.zeros_like(table)
        np.add.at(gradient, bucket, weights[queries, keys, bidirectional].transpose(1, 2, 0))
        return table[bucket].transpose(2, 0, 1), gradient

    return {case: (found, wanted(*case)) for case, found in got(table).items()}


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_bias_is_the_table_entry_of_each_pair(queries, keys, bidirectional):
    (bias, gradient), (wanted_bias, wanted) = biases()[queries, keys, bidirectional]
    np.testing.assert_array_equal(bias, wanted_bias)
    np.testing.assert_allclose(gradient, wanted, atol=1e-3)


def test_learned_positions():
    module = LearnedPositions(8, 4, nn.initializers.normal(1.0), jnp.float32)
    variables = nn.unbox(jax.jit(functools.partial(module.init, length=8))(jax.random.key(0)))
    table, given = np.asarray(variables["params"]["table"]), np.array([[0, 1, 0, 1, 2]])
    assert table.shape == (8, 4) and np.std(table) > 0.5
    first, chosen = jax.jit(lambda v: (module.apply(v, 5)[0], module.apply(v, 5, given)))(variables)
    np.testing.assert_array_equal(first, table[:5])
    np.testing.assert_array_equal(chosen, table[given])
    with pytest.raises(UserError, match=r"9 tokens.* 8 positions"):
        module.apply(variables, 9)


INIT = nn.initializers.zeros


def relative_terms(queries, keys, offset, index=None):
    """Everything that is added to scores: T5's biases and ALiBi's."""
    table = np.random.default_rng(0).normal(size=(32, 3))
    for bidirectional in (True, False):
        bias = RelativeBias(3, bidirectional, INIT).apply({"params": {"table": table}})
        yield bias.materialise(queries, keys, offset, index)
    yield Alibi(3).materialise(queries, keys, offset, index)


def test_the_terms_of_queries_at_an_offset_are_a_slice_of_the_whole():
    """Of queries 5, 6 and 7 among ten positions: where they stand may be known at compile time, or not."""
    few = 3
    rows = np.random.default_rng(1).normal(size=(12, 4))
    learned = LearnedPositions(12, 4, INIT, jnp.float32, 2)

    def terms(queries, offset):
        yield from relative_terms(queries, 10, offset)
        yield learned.apply({"params": {"table": rows}}, queries, None, offset)
        yield from Rope().rotation(positions_from(queries, offset), 4)

    found = jax.jit(lambda at: [tuple(terms(*given)) for given in ((10, 0), (few, 5), (few, at))])(5)
    for whole, *parts in zip(*found, strict=True):
        axis = whole.ndim - 2  # of the queries
        for part in parts:
            np.testing.assert_allclose(part, np.take(whole, range(5, 8), axis), rtol=1e-6, atol=1e-6)
    assert len(found[0]) == 6


def test_keys_in_the_order_of_a_ring():
    """The newest of eight keys is in slot 2: each term has the columns of keys in order, turned."""
    order = (np.arange(8) - 3) % 8
    both = jax.jit(lambda order: [tuple(relative_terms(1, 8, 7, index)) for index in (order, None)])
    for got, in_order in zip(*both(order), strict=True):
        np.testing.assert_array_equal(got, np.asarray(in_order)[..., order])


def test_positions_beyond_the_table_are_refused():
    learned = LearnedPositions(8, 4, nn.initializers.zeros, jnp.float32, 2)
    with pytest.raises(UserError, match=r"7 tokens.* 6 positions"):
        learned.apply({"params": {"table": np.zeros((8, 4))}}, 2, None, 5)


def test_alibi_falls_off_with_distance():
    bias = np.asarray(Alibi(6).materialise(4, 5))
    slopes = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]  # four of 4 heads, then every second one of 8
    want = [[[-slope * abs(i - j) for j in range(5)] for i in range(4)] for slope in slopes]
    np.testing.assert_allclose(bias, want)
    by_distance = np.asarray(Alibi(6).by_distance(4, 5))
    np.testing.assert_allclose(by_distance[:, [4 + j - i for i in range(4) for j in range(5)]].reshape(6, 4, 5), want)


def test_alibi_of_keys_is_rounded():
    """Slope 2^−.5 of the last of three heads and its products in bfloat16; alike for all queries but for a constant."""
    bias = np.asarray(alibi_of_keys(3, jnp.array([[0, 1, 5]])))
    assert bias.shape == (1, 3, 1, 3)
    np.testing.assert_array_equal(bias[0, 0, 0], [0, 1 / 16, 5 / 16])
    np.testing.assert_array_equal(bias[0, 2, 0], np.float32([0, jnp.bfloat16(0.25), jnp.bfloat16(1.25)]))


def test_sinusoids_in_halves():
    found = np.asarray(sinusoids_in_halves(jnp.array([[3, 7]]), 6))
    angles = [7 / 10_000 ** (i / 2) for i in range(3)]
    np.testing.assert_allclose(found[0, 1], [*np.sin(angles), *np.cos(angles)], 1e-5)


ROPES = [Rope(), Rope(500.0, "linear", 4.0), Rope(500.0, "llama3", 8.0, 1.0, 4.0, 64)]


@functools.cache
def turned():
    """For each rope the queries, of the keys: at positions 7, 104, 3, 100 and 4."""
    rng, at = np.random.default_rng(0), np.array([[7, 104, 3, 100, 4]])
    q, k = (np.repeat(rng.normal(size=(1, 1, 1, 8)).astype(np.float32), 5, axis=1) for _ in range(2))
    return jax.jit(lambda *x: [[rotate(x, rope.rotation(at, 8))[0, :, 0] for x in x] for rope in ROPES])(q, k)


@pytest.mark.parametrize("rope", range(len(ROPES)))
def test_turned_products_depend_on_the_distance_alone(rope):
    q, k = map(np.asarray, turned()[rope])
    products = q @ k.T
    np.testing.assert_allclose(products[0, 2], products[1, 3], rtol=1e-3, atol=1e-3)
    assert abs(products[0, 2] - products[0, 4]) > 1e-2


def test_llama3_stretches_slow_pairs_alone():
    plain, scaled = (r.frequencies(16) for r in (Rope(), Rope(scaling="llama3", factor=8.0, original_positions=8192)))
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_array_equal(scaled[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any() and ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_longrope_goes_by_the_length_of_each_text():
    """Packed behind a long text, a short one is rotated as it is alone; padding is a text of its own."""
    rope = Rope(100.0, "longrope", original_positions=4, short_factors=(1.0, 1.5), long_factors=(1.0, 6.0), factor=4.0)
    positions = jnp.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]])
    packed = rope.rotation(positions, 4, jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]))
    for text in (slice(0, 5), slice(5, 8), slice(8, 9)):
        alone = rope.rotation(positions[:, text], 4)
        np.testing.assert_array_equal(packed.cos_BxLxK[:, text], alone.cos_BxLxK)
    assert not np.allclose(packed.cos_BxLxK[:, :3], packed.cos_BxLxK[:, 5:8])
