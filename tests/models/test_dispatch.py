"""Rows that are taken in turns give what all of them give at once, however uneven the routing."""

import functools

import jax
import numpy as np
import pytest

from jaxpt.models import dispatch

T, D, F, K, OWN, EXPERTS = 24, 6, 5, 2, 3, 12
ROUTINGS = {
    "balanced": lambda rng: np.argsort(rng.random((T, EXPERTS)))[:, :K],
    "all here": lambda rng: np.argsort(rng.random((T, OWN)))[:, :K],
    "one expert": lambda rng: np.tile([1, OWN], (T, 1)),
    "none here": lambda rng: np.full((T, K), OWN),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_turns_have_the_values_and_gradients_of_all_rows_at_once(name):
    """This device has 3 of 12 experts: a turn has a quarter of the rows, and there are from none to four turns."""
    rng = np.random.default_rng(0)
    ids = np.minimum(ROUTINGS[name](rng), OWN).astype(np.int32)
    shapes = {"gate": (OWN, D, F), "up": (OWN, D, F), "down": (OWN, F, D)}
    kernels = {kernel: rng.normal(size=shape).astype(np.float32) for kernel, shape in shapes.items()}
    shapes = (T, D), (T, K), (T, K, F), (T, D)
    given = (ids, *(rng.normal(size=shape).astype(np.float32) for shape in shapes), kernels)
    feed_forward = functools.partial(dispatch._feed_forward, "silu", "blocks")

    def run(function, ids, x, weights, keep, cotangent, kernels):
        y, pull = jax.vjp(lambda x, w, kernels: function(x, ids, w, kernels, keep), x, weights, kernels)
        return y, pull(cotangent)

    wanted, found = (
        jax.jit(functools.partial(run, functools.partial(*how)))(*given)
        for how in ((dispatch._at_once, feed_forward), (dispatch._in_turns, feed_forward, EXPERTS // OWN))
    )
    assert name == "none here" or np.abs(wanted[0]).max() > 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, wanted)
