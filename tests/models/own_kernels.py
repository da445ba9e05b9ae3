"""What is asked of each kernel of our own: values and gradients beside plain attention, dropout, meshes, programs."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxpt.models import kernels, pallas_common
from jaxpt.models.kernels import Inputs
from jaxpt.models.mask import Mask
from jaxpt.models.positions import LearnedBias
from jaxpt.parallel import compiler

H, K = 2, 64
PLATFORMS = {"flash": "gpu", "fused": "tpu", "splash": "tpu"}
"""Where each kernel is a program of its own; elsewhere JAX interprets it."""
CASES = {
    "one token": ((2, 1, 1), {}, True),
    "short": ((2, 29, 29), {"causal": True}, True),
    "packed": ((3, 114, 114), {"packed": True}, True),
    "packed causal": ((2, 200, 200), {"packed": True, "causal": True}, True),
    "cross": ((2, 114, 300), {}, False),
    "cross packed": ((2, 300, 114), {"packed": True}, False),
    "window": ((2, 150, 150), {"window": 9}, True),
    "several blocks": ((1, 700, 700), {"packed": True}, True),
    "larger blocks": ((1, 512, 512), {}, True),
}
"""{name: ((rows, queries, keys), of the mask, whether it is self-attention, with a bias)}."""


def is_interpreted(kernel):
    """Whether a kernel of `jaxpt.models.kernels` has to be interpreted, since the device in use does not compile it."""
    return compiler.platform() != PLATFORMS[kernel.__name__]


def cases(values, *slow):
    """One in the quick suite, those named among the slow tests, the others in the grid."""
    marks = dict.fromkeys(slow, pytest.mark.slow) | {"packed causal": ()}
    return [pytest.param(name, marks=marks.get(name, pytest.mark.grid)) for name in values]


def arrays(rows, length, keys, heads=H, width=K, seed=0):
    rng = np.random.default_rng(seed)
    sizes = ((rows, length, heads, width), (rows, keys, heads, width), (rows, keys, heads, width))
    return [jnp.asarray(rng.normal(size=size), jnp.float32) for size in sizes]


def segments(rows, length, seed):
    """Packed rows with padding at the end."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, length), np.int32)
    for row in ids:
        ends = np.sort(rng.integers(0, length + 1, 3))
        for number, (a, b) in enumerate(zip([0, *ends[:-1]], ends), 1):
            row[a:b] = number
    return jnp.asarray(ids)


def both(q, k, v, mask, bias, kernel, plain=kernels.plain, **more):
    """[(values, gradients) of the kernel, of plain attention], of real queries."""
    length = q.shape[1]
    real = np.ones((1, length)) if mask.query_segments_BxL is None else np.asarray(mask.query_segments_BxL) > 0
    real = real[..., None, None]

    def loss(inputs, is_kernel):
        q, k, v, bias = inputs
        if is_kernel:
            y = kernel(Inputs(q, k, v, mask, bias, 0.2, **more), interpret=is_interpreted(kernel))
        else:
            whole = bias
            if isinstance(bias, LearnedBias):
                whole = bias.materialise(length, k.shape[1])
            elif bias is not None:
                whole = 0.2 * bias.materialise(q, k, None)
            y = plain(Inputs(q, k, v, mask, whole, 0.2, **more))
        return (jnp.tanh(y) * real).sum(), y * real

    def run(inputs, is_kernel):
        (_, y), gradients = jax.value_and_grad(functools.partial(loss, is_kernel=is_kernel), has_aux=True)(inputs)
        return y, gradients

    return jax.jit(lambda *inputs: [run(inputs, is_kernel) for is_kernel in (True, False)])(q, k, v, bias)


def learned(bidirectional=True, heads=H):
    table = np.random.default_rng(3).standard_normal((32, heads)).astype(np.float32)
    return LearnedBias(jnp.asarray(table), bidirectional, max_distance=128)


def assert_near(got, wanted, floor=0.0):
    """Of float32 both are sums of some hundred products: 1e-5 of the largest entry."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(float(np.abs(b).max()), floor))


def check_values_and_gradients(kernel, case, bias=None, floor=0.0):
    """A case, with T5's bias or another one in self-attention; `floor` as what is 0 by arithmetic may be rounded."""
    (rows, length, keys), options, is_self = case
    options = dict(options)
    own = segments(rows, length, 1)
    ids = (own, own if is_self else segments(rows, keys, 2)) if options.pop("packed", False) else (None, None)
    mask = Mask(*ids, **options)
    bias = (bias or learned()) if is_self else None
    (y, got), (wanted_y, wanted) = both(*arrays(rows, length, keys), mask, bias, kernel)
    allowed = jax.jit(lambda mask: mask.materialise(length, keys))(mask)
    sees = np.ones((1, length)) if allowed is None else np.asarray(allowed).any(-1)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y * sees[..., None, None], wanted_y * sees[..., None, None], atol=1e-5)
    if bool(sees.all()) or ids[0] is not None:  # a query that sees nothing gives some gradient or other
        assert_near(got, wanted, floor)


def check_dropout(kernel):
    """Plain attention with the same weights dropped gives the same values and gradients."""
    key, rate = jax.random.key(5), 0.3

    def plain(inputs):
        q, k, v, _, bias, scale, dropout, dropout_key, _ = inputs
        seeds_BxHx1x1 = jax.random.bits(dropout_key, (2, H), jnp.uint32).astype(jnp.int32)[..., None, None]
        keep = pallas_common.kept(seeds_BxHx1x1, jnp.arange(140)[:, None], jnp.arange(200), dropout)
        weights = jax.nn.softmax(scale * jnp.einsum("BLHK,BSHK->BHLS", q, k) + bias)
        return jnp.einsum("BHLS,BSHK->BLHK", jnp.where(keep, weights / (1 - dropout), 0), v)

    (y, got), (wanted_y, wanted) = both(
        *arrays(2, 140, 200), Mask(), learned(), kernel, plain, dropout=rate, dropout_key=key
    )
    np.testing.assert_allclose(y, wanted_y, atol=1e-5)
    assert_near(got, wanted)


def check_devices(kernel):
    """Two devices for rows and two for heads drop what one device drops, and sum the bias's gradient."""
    key, bias = jax.random.key(5), learned(heads=4)
    q, k, v = arrays(4, 60, 60, heads=4)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def loss(q, bias):
        y = kernel(Inputs(q, k, v, Mask(causal=True), bias, 0.2, 0.2, key), interpret=is_interpreted(kernel))
        return jnp.tanh(y).sum(), y

    run = jax.value_and_grad(loss, (0, 1), has_aux=True)
    (_, y), wanted = jax.jit(run)(q, bias)
    with jax.set_mesh(mesh), nn.logical_axis_rules((("batch", "data"), ("act_heads", "tensor"))):
        (_, got_y), got = jax.jit(run)(q, bias)
    np.testing.assert_allclose(got_y, y, atol=1e-6)
    assert_near(got, wanted)


def lowered(kernel, platform, length, keys, causal, bias, dropout, sharding=None):
    """All gradients with packed rows in bfloat16, lowered for a platform."""

    def shape(sizes, dtype):
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)

    q, k = (shape((2, size, 4, K), jnp.bfloat16) for size in (length, keys))
    ids = [shape((2, size), jnp.int32) for size in (length, keys)]
    bias = jax.tree.map(lambda x: shape(x.shape, x.dtype), bias and jax.eval_shape(lambda: bias(heads=4)))

    def loss(q, k, v, bias, ids):
        key = jax.random.key(0) if dropout else None
        y = kernel(Inputs(q, k, v, Mask(*ids, causal=causal), bias, 0.3, dropout, key))
        return jnp.tanh(y.astype(jnp.float32)).sum()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    return gradient.trace(q, k, k, bias, ids).lower(lowering_platforms=(platform,))
