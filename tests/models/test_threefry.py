"""The random bits of dropout are those of `jax.random`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import threefry


@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (2, 3, 5, 4)])
@pytest.mark.parametrize("seed", [0, 2**31 + 5])
def test_draws_are_those_of_jax_random(shape, seed):
    key = jax.random.fold_in(jax.random.key(seed), 3)
    np.testing.assert_array_equal(threefry.bits(key, shape), jax.random.bits(key, shape))
    drawn = jax.jit(lambda key: threefry.bernoulli(key, 0.9, shape))(key)
    np.testing.assert_array_equal(drawn, jax.random.bernoulli(key, 0.9, shape))


def test_many_keys_at_once():
    keys = jax.random.split(jax.random.key(1), 6)
    drawn = jax.vmap(lambda key: threefry.bernoulli(key, 0.3, (5, 2)), out_axes=1)(keys)
    np.testing.assert_array_equal(drawn, jax.vmap(lambda key: jax.random.bernoulli(key, 0.3, (5, 2)), out_axes=1)(keys))


@pytest.mark.parametrize("rate", [0.0, 1e-7, 0.1, 1.0])
def test_rate(rate):
    drawn = threefry.bernoulli(jax.random.key(5), rate, (400, 500))
    assert abs(float(jnp.mean(drawn)) - rate) < 4 * (rate * (1 - rate) / drawn.size) ** 0.5 + 1e-5


def test_other_settings_of_jax_are_followed():
    with jax.threefry_partitionable(False):
        key = jax.random.key(2)
        np.testing.assert_array_equal(threefry.bernoulli(key, 0.5, (33,)), jax.random.bernoulli(key, 0.5, (33,)))
    key = jax.random.key(2, impl="rbg")
    np.testing.assert_array_equal(threefry.bernoulli(key, 0.5, (33,)), jax.random.bernoulli(key, 0.5, (33,)))
