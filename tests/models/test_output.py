"""The projection to the vocabulary, and outputs put together."""

import doctest
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.models import output
from jaxpt.models.output import Output, Projection


@functools.cache
def given():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 8), (8, 128), (128,))]


def test_a_projection_by_hand():
    x, kernel, bias = given()

    @jax.jit
    def run(x):
        plain, tied = Projection(kernel)(x), Projection(kernel.T, tied=True)(x)
        capped = Projection(kernel, bias, scale=0.5, soft_cap=2.0)(x)
        return plain, tied, capped, Projection(kernel, dtype=jnp.bfloat16)(x)

    plain, tied, capped, low = run(x)
    want = x @ kernel
    np.testing.assert_allclose(plain, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tied, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(capped, 2 * np.tanh((0.5 * want + bias) / 2), rtol=1e-5, atol=1e-5)
    assert low.dtype == jnp.float32 and 0 < np.abs(low - want).max() < 0.1


def test_columns_that_exist_in_storage_alone():
    x, kernel, _ = given()
    projection = Projection(kernel, vocab_size=101)

    @jax.jit
    def run(x):
        padded = projection(x)
        return Projection(kernel)(x), padded, projection(x, padded=False), jax.nn.softmax(padded)

    logits, padded, cut, shares = map(np.asarray, run(x))
    assert projection.columns == 128 and cut.shape == (2, 3, 101)
    np.testing.assert_array_equal(padded[..., :101], logits[..., :101])
    np.testing.assert_array_equal(cut, logits[..., :101])
    np.testing.assert_array_equal(shares[..., 101:], 0)


def test_the_vocabulary_may_be_the_first_axis():
    x, kernel, bias = given()
    tables = {"kernel": kernel}, {"kernel": kernel.T, "tied": True}

    @jax.jit
    def run(x):
        found = []
        for table in tables:
            projection = Projection(**table, bias=bias, vocab_size=101, soft_cap=3.0)
            found += [[projection(x, padded, vocab_axis=axis) for axis in (0, -1)] for padded in (True, False)]
        return found

    for first, last in run(x):
        np.testing.assert_allclose(np.moveaxis(first, 0, -1), last, rtol=1e-6, atol=1e-6)


def test_outputs_follow_one_another():
    first = Output(jnp.ones(2), layers=jnp.array([[0.0, 0], [1, 1]]), aux={"a": 1})
    second = Output(jnp.ones(2) * 3, layers=jnp.array([[2.0, 2], [3, 3]]), aux={"a": 2, "b": 3})
    both = first.concat(second).with_hidden(jnp.ones(2) * 4)
    assert both.layers[:, 0].tolist() == [0, 2, 4] and both.hidden.tolist() == [4, 4]
    assert both.add_aux({"b": 4}).aux == {"a": 3, "b": 7}


def test_examples_in_the_docstrings():
    assert doctest.testmod(output).failed == 0
