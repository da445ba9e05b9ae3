"""The projection to the vocabulary, and outputs put together."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.models import output
from jaxpt.models.output import Output, Projection


def test_a_projection_by_hand():
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel, bias = (jax.random.normal(key, shape) for key, shape in zip(keys, ((2, 3, 8), (8, 128), (128,))))
    want = np.asarray(x @ kernel)
    np.testing.assert_allclose(Projection(kernel)(x), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(Projection(kernel.T, tied=True)(x), want, rtol=1e-5, atol=1e-5)
    got = Projection(kernel, bias, scale=0.5, soft_cap=2.0)(x)
    np.testing.assert_allclose(got, 2 * np.tanh((0.5 * want + bias) / 2), rtol=1e-5, atol=1e-5)
    low = Projection(kernel, dtype=jnp.bfloat16)(x)
    assert low.dtype == jnp.float32 and 0 < np.abs(low - want).max() < 0.1


def test_columns_that_exist_in_storage_alone():
    x, kernel = jax.random.normal(jax.random.key(0), (2, 3, 8)), jax.random.normal(jax.random.key(1), (8, 128))
    logits = Projection(kernel)(x)
    projection = Projection(kernel, vocab_size=101)
    assert projection.columns == 128 and projection(x, padded=False).shape == (2, 3, 101)
    np.testing.assert_array_equal(projection(x)[..., :101], logits[..., :101])
    np.testing.assert_array_equal(jax.nn.softmax(projection(x))[..., 101:], 0)


def test_the_vocabulary_may_be_the_first_axis():
    x, kernel, bias = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(2, 3, 8), (8, 128), (128,)])
    )
    for table in ({"kernel": kernel}, {"kernel": kernel.T, "tied": True}):
        projection = Projection(**table, bias=bias, vocab_size=101, soft_cap=3.0)
        for padded in (True, False):
            first = projection(x, padded, vocab_axis=0)
            np.testing.assert_allclose(jnp.moveaxis(first, 0, -1), projection(x, padded), rtol=1e-6, atol=1e-6)


def test_outputs_follow_one_another():
    first = Output(jnp.ones(2), layers=jnp.array([[0.0, 0], [1, 1]]), aux={"a": 1})
    second = Output(jnp.ones(2) * 3, layers=jnp.array([[2.0, 2], [3, 3]]), aux={"a": 2, "b": 3})
    both = first.concat(second).with_hidden(jnp.ones(2) * 4)
    assert both.layers[:, 0].tolist() == [0, 2, 4] and both.hidden.tolist() == [4, 4]
    assert both.add_aux({"b": 4}).aux == {"a": 3, "b": 7}


def test_examples_in_the_docstrings():
    assert doctest.testmod(output).failed == 0
