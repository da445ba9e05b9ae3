"""The fused kernel beside plain attention: values, gradients, the bias's too; dropout's distribution."""

import functools
import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpt.models import fused, kernels
from jaxpt.models.mask import Mask
from jaxpt.models.position_terms import PositionTerms
from jaxpt.models.positions import LearnedBias

H, K = 2, 64


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


@pytest.mark.parametrize("length, keys", [(1, 1), (7, 130)])
def test_small(length, keys):
    q, k, v = arrays(2, length, keys)
    got = kernels.fused(q, k, v, Mask(), None, 0.2, interpret=True)
    np.testing.assert_allclose(got, kernels.plain(q, k, v, Mask(), None, 0.2), atol=1e-5)


def both(q, k, v, mask, bias, **more):
    """[(values, gradients) of the kernel, of plain attention], of real queries."""
    length = q.shape[1]
    real = jnp.ones((1, length)) if mask.query_segments_BxL is None else mask.query_segments_BxL > 0
    real = real[..., None, None]

    def loss(inputs, is_fused):
        q, k, v, bias = inputs
        if is_fused:
            y = kernels.fused(q, k, v, mask, bias, 0.2, interpret=True, **more)
        else:
            whole = bias
            if isinstance(bias, LearnedBias):
                whole = bias.materialise(length, k.shape[1])
            elif bias is not None:
                whole = 0.2 * bias.materialise(q, k, None)
            y = kernels.plain(q, k, v, mask, whole, 0.2, **more)
        return (jnp.tanh(y) * real).sum(), y * real

    for is_fused in (True, False):
        run = jax.jit(jax.value_and_grad(functools.partial(loss, is_fused=is_fused), has_aux=True))
        (_, y), gradients = run((q, k, v, bias))
        yield y, gradients


def learned(bidirectional=True, heads=H):
    table = jax.random.normal(jax.random.key(3), (32, heads))
    return LearnedBias(table, bidirectional, max_distance=128)


def terms(heads=H):
    """DeBERTa's, with logarithmic buckets."""
    rows = jax.random.normal(jax.random.key(4), (2, 64, heads, K)) / 8
    return PositionTerms(*rows, first=0, span=32, buckets=32, max_positions=128)


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
    "positions, one token": ((2, 1, 1), {"terms": True}, True),
    "positions, packed": ((2, 200, 200), {"terms": True, "packed": True}, True),
    "positions, several blocks": ((1, 500, 500), {"terms": True}, True),
}


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "packed causal")) for x in CASES])
def test_values_and_gradients(name):
    """Of float32 both are sums of some hundred products: 1e-5 of the largest entry."""
    (rows, length, keys), options, is_self = CASES[name]
    options = dict(options)
    own = segments(rows, length, 1)
    ids = (own, own if is_self else segments(rows, keys, 2)) if options.pop("packed", False) else (None, None)
    bias = terms() if options.pop("terms", False) else learned() if is_self else None
    mask = Mask(*ids, **options)
    (y, got), (wanted_y, wanted) = both(*arrays(rows, length, keys), mask, bias)
    sees = jnp.ones((1, length)) if ids[0] is None else mask.materialise(length, keys).any(-1)
    np.testing.assert_allclose(y * sees[..., None, None], wanted_y * sees[..., None, None], atol=1e-5)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_rows_by_distance_become_rows_by_key_and_back():
    x = jnp.arange(8 * 24.0).reshape(8, 24)

    def kernel(x_ref, *found):
        strided, plain, back = found
        strided[...], plain[...] = fused.sheared(x_ref[...], 16), fused.sheared(x_ref[...], 16, strided=False)
        back[...] = fused.unsheared(plain[...])

    shapes = [jax.ShapeDtypeStruct((8, size), jnp.float32) for size in (16, 16, 24)]
    strided, plain, back = pl.pallas_call(kernel, out_shape=shapes, interpret=True)(x)
    wanted = np.stack([x[row, 8 - row : 24 - row] for row in range(8)])
    np.testing.assert_array_equal(strided, wanted)
    np.testing.assert_array_equal(plain, wanted)
    for row in range(8):
        np.testing.assert_array_equal(back[row], np.r_[np.zeros(8 - row), wanted[row], np.zeros(row)])


def kept(seeds_BxH, length, keys, rate):
    """True where the hash keeps a weight: [B, H, L, S]."""
    place = jnp.arange(length)[:, None] << 16 | jnp.arange(keys)
    bits = fused.hashed(place ^ seeds_BxH[..., None, None])
    return jax.lax.shift_right_logical(bits, 8) >= round(rate * (1 << 24))


@pytest.mark.slow
def test_dropout_is_that_of_its_hash_in_both_passes(monkeypatch):
    """Plain attention with the same weights dropped gives the same values and gradients."""
    key, rate, (q, k, v) = jax.random.key(5), 0.3, arrays(2, 140, 200)
    seeds = jax.random.bits(key, (2, H), jnp.uint32).astype(jnp.int32)
    monkeypatch.setattr(kernels, "_kept", lambda *_: kept(seeds, 140, 200, rate))
    (y, got), (wanted_y, wanted) = both(q, k, v, Mask(), None, dropout=rate, dropout_key=key)
    np.testing.assert_allclose(y, wanted_y, atol=1e-5)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropped_weights_are_as_if_drawn(rate):
    """Of n draws of rate p a share differs from p by less than 4 √(p(1-p)/n), and one says nothing of another."""
    keep = np.asarray(kept(jnp.array([[1, 2], [-7, 1 << 30]], jnp.int32), 256, 256, rate)).astype(float) - (1 - rate)
    spread = np.sqrt(rate * (1 - rate))

    def is_small(x):
        """The mean of the last axes, in standard errors."""
        return np.abs(x).max() * np.sqrt(256 * 256) < 4.5

    assert is_small(keep.mean((2, 3)) / spread)
    assert np.abs(keep.mean(2)).max() / spread * 16 < 4.8 and np.abs(keep.mean(3)).max() / spread * 16 < 4.8
    for axis in (2, 3):  # neighbours, and those 128 apart
        for apart in (1, 2, 128):
            assert is_small((keep * np.roll(keep, apart, axis)).mean((2, 3)) / spread**2)
    assert is_small((keep[0, 0] * keep[0, 1]).mean() / spread**2)  # heads
    assert is_small((keep[0] * keep[1]).mean((1, 2)) / spread**2)  # rows


@pytest.mark.slow
def test_dropout_goes_by_row_head_and_place_on_any_mesh():
    """Two devices for rows and two for heads drop what one device drops, and sum the bias's gradient."""
    key, bias = jax.random.key(5), learned(heads=4)
    q, k, v = arrays(4, 60, 60, heads=4)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def loss(q, bias):
        y = kernels.fused(q, k, v, Mask(causal=True), bias, 0.2, 0.2, key, interpret=True)
        return jnp.tanh(y).sum(), y

    run = jax.value_and_grad(loss, (0, 1), has_aux=True)
    (_, y), wanted = jax.jit(run)(q, bias)
    rules = (("batch", "data"), ("act_heads", "tensor"))
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        (_, got_y), got = jax.jit(run)(q, bias)
    np.testing.assert_allclose(got_y, y, atol=1e-6)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def for_a_tpu(length, keys, causal, bias, dropout, sharding=None):
    """The gradient with packed rows in bfloat16, lowered for a TPU."""
    q, k = (jax.ShapeDtypeStruct((2, size, 4, K), jnp.bfloat16, sharding=sharding) for size in (length, keys))
    ids = [jax.ShapeDtypeStruct((2, size), jnp.int32, sharding=sharding) for size in (length, keys)]

    def loss(q, k, v, ids):
        key = jax.random.key(0) if dropout else None
        y = kernels.fused(q, k, v, Mask(*ids, causal=causal), bias and bias(heads=4), 0.3, dropout, key)
        return jnp.tanh(y.astype(jnp.float32)).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, k, k, ids).lower(lowering_platforms=("tpu",))


FORMS = [
    (512, 512, False, learned, 0.1), (114, 512, False, None, 0.1), (700, 700, True, learned, 0.0),
    (512, 512, False, terms, 0.1),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_it_is_in_the_program_for_a_tpu(form):
    text = for_a_tpu(*form).as_text()
    assert text.count("tpu_custom_call") == 2  # forward and backward
    assert f"x{form[0]}x{form[1]}x" not in text  # no array of all scores


def compiled_for_a_tpu(topology, form):
    """The gradient's program, with no TPU there."""
    chips = topologies.get_topology_desc(topology, platform="tpu").devices
    mesh = Mesh(np.array(chips[:1]), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):  # whose device says how a register can be turned
        return for_a_tpu(*form, NamedSharding(mesh, PartitionSpec())).compile().as_text()


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_it_compiles_for_each_tpu(topology):
    """`pip install libtpu` brings the compiler, which ends the process at a flag of XLA's that it does not know."""
    pytest.importorskip("libtpu")
    code = "from tests.models.test_fused import *\n"
    code += f"for form in FORMS: print(compiled_for_a_tpu({topology!r}, form).count('tpu_custom_call'))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment |= {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert min(map(int, done.stdout.split())) >= 2
