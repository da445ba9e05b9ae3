import jax
import jax.numpy as jnp
import pytest

from jaxpt.plan import flops


def test_product_counts_two_per_multiply_add():
    assert flops.matmul_flops(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 5))) == 60


def test_batched_product():
    a, b = jnp.ones((7, 2, 3)), jnp.ones((7, 3, 5))
    assert flops.matmul_flops(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), a, b) == 420


def test_scan_counts_as_often_as_it_runs():
    def f(w, x):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0]

    assert flops.matmul_flops(f, jnp.ones((6, 4, 4)), jnp.ones((2, 4))) == 6 * 2 * 2 * 4 * 4


def test_inside_remat_jit_and_custom_derivatives():
    @jax.custom_vjp
    def double(x):
        return 2 * (x @ x)

    double.defvjp(lambda x: (double(x), x), lambda x, g: (g @ x,))
    f = jax.checkpoint(jax.jit(lambda x: double(x) @ x))
    assert flops.matmul_flops(f, jnp.ones((4, 4))) == 2 * 2 * 4**3


@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v5p", "NVIDIA H200"])
def test_longest_name_wins(kind):
    class Device:
        device_kind = kind

    assert flops.peak(Device()) == flops.PEAKS[kind]


def test_unknown_device_has_no_peak():
    assert flops.peak(jax.devices("cpu")[0]) is None
