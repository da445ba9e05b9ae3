"""The softmax that the backward pass keeps once: values and gradients, and what is kept."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import kernels
from jaxpt.models.mask import MASKED, Mask
from tests import grids


def test_docstrings():
    assert doctest.testmod(kernels).failed == 0


def usual(scores, v, allowed, keep, rate):
    """As JAX would have it."""
    scores = jnp.where(allowed[:, None], scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    weights = weights if keep is None else jnp.where(keep, weights / (1 - rate), 0)
    return jnp.einsum("BHLS,BHSK->BHLK", weights, jnp.repeat(v, scores.shape[1] // v.shape[1], axis=1))


CASES = [(rate, heads, dtype) for rate in (0.0, 0.3) for heads in (2, 4) for dtype in ("float32", "bfloat16")]
KEPT = [(0.3, 4, "float32"), (0.0, 2, "float32"), (0.0, 4, "bfloat16"), (0.3, 2, "bfloat16")]


@pytest.mark.gpu
@pytest.mark.parametrize(("rate", "heads", "dtype"), grids.cases(CASES, *KEPT))
def test_values_and_gradients(rate, heads, dtype):
    """In float32 both do the same operations; in bfloat16 the gradient's weights are rounded to 2⁻⁹ first."""
    rng, apart = np.random.default_rng(0), {"float32": 1e-6, "bfloat16": 0.01}[dtype]
    scores, v = 3 * rng.standard_normal((2, heads, 5, 40), np.float32), rng.standard_normal((2, 2, 40, 6), np.float32)
    allowed, keep = rng.random((2, 5, 40)) < 0.7, rng.random(scores.shape) < 1 - rate if rate else None
    allowed[0, 0] = np.arange(40) == 3  # all on one key

    def loss(scores, v, run):
        y = run(scores, v, allowed, keep, rate)
        return jnp.tanh(y.astype(jnp.float32)).sum(), y

    @jax.jit
    def both(scores, v):
        return [
            jax.value_and_grad(loss, (0, 1), has_aux=True)(scores, v, run) for run in (kernels.weighted_values, usual)
        ]

    ((_, y), got), ((_, wanted_y), wanted) = both(scores, jnp.asarray(v, dtype))
    for a, b in zip((y, *got), (wanted_y, *wanted)):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=apart * np.abs(b).max())


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_one_array_of_scores_is_kept(rate):
    """In bfloat16: 2 bytes for each score, and none in float32 or of booleans."""
    q = jax.ShapeDtypeStruct((2, 64, 4, 16), jnp.bfloat16)

    def run(q, k, v):
        return kernels.plain(kernels.Inputs(q, k, v, Mask(causal=True), None, 0.25, rate, jax.random.key(0)))

    backward = jax.eval_shape(lambda q: jax.vjp(run, q, q, q)[1], q)
    kept = [x for x in jax.tree.leaves(backward) if x.size >= 2 * 4 * 64 * 64]
    assert [(x.dtype, x.shape) for x in kept] == [(jnp.bfloat16, (2, 4, 64, 64))], kept
