"""T5's buckets and the bias made of them; tables of absolute positions."""

import doctest

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.models import positions
from jaxpt.models.positions import LearnedPositions, RelativeBias, relative_bucket


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
        return module.apply({"params": {"table": table}}, queries, keys), table[bucket].transpose(2, 0, 1)

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
