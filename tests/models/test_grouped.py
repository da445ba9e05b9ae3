"""Products of rows with the weights of their group: a loop as oracle, both implementations, and their gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import grouped

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("sizes", [(3, 0, 9, 4), (0, 0, 0, 0), (21, 0, 0, 0)])
def test_product_and_gradients(sizes):
    """Rows of no group, groups of no row, blocks that are partly filled."""
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(21, 5)).astype(np.float32), rng.normal(size=(4, 5, 7)).astype(np.float32)
    cotangent, sizes = rng.normal(size=(21, 7)).astype(np.float32), np.array(sizes, np.int32)
    groups = np.repeat(np.arange(4), sizes)
    rows = len(groups)
    wanted = np.zeros((21, 7), np.float32)
    wanted[:rows] = np.einsum("md,mdf->mf", x[:rows], kernel[groups])
    to_x, to_kernel = np.zeros_like(x), np.zeros_like(kernel)
    to_x[:rows] = np.einsum("mf,mdf->md", cotangent[:rows], kernel[groups])
    np.add.at(to_kernel, groups, np.einsum("md,mf->mdf", x[:rows], cotangent[:rows]))
    for implementation in ("ragged", "blocks"):
        run = functools.partial(grouped.product, implementation=implementation)
        y, pull = jax.vjp(lambda x, kernel, run=run: run(x, kernel, sizes), x, kernel)
        for found, exact in zip((y, *pull(cotangent)), (wanted, to_x, to_kernel), strict=True):
            np.testing.assert_allclose(found, exact, atol=1e-5, rtol=1e-5)


def test_the_gradient_of_many_blocks_is_summed_in_float32():
    """256 blocks of 8 rows: each adds 10 to 2,560, where bfloat16 has every 16th number."""
    x, dy = np.ones((2048, 1), jnp.bfloat16), np.ones((2048, 1), jnp.bfloat16)
    x[::2] = 1.5
    sizes = jnp.array([2048] + [0] * 255)
    kernel = np.ones((256, 1, 1), jnp.bfloat16)
    pull = jax.jit(lambda dy: jax.vjp(lambda kernel: grouped.product(x, kernel, sizes, "blocks"), kernel)[1](dy)[0])
    assert pull(dy)[0] == 2560


def test_a_permutation_has_the_gradient_of_a_gather():
    rng = np.random.default_rng(0)
    x, cotangent, order = rng.normal(size=(6, 2)), rng.normal(size=(6, 2)), rng.permutation(6)
    y, pull = jax.vjp(lambda x: grouped.permute(x, order, np.argsort(order)), x.astype(np.float32))
    np.testing.assert_allclose(y, x[order], rtol=1e-6)
    np.testing.assert_allclose(pull(cotangent.astype(np.float32))[0], cotangent[np.argsort(order)], rtol=1e-6)
