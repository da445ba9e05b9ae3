"""Every implementation of attention gives what the plain one gives, values and gradients, for every kind of mask."""

import doctest
import functools
import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpt.config import MeshConfig
from jaxpt.errors import UserError
from jaxpt.models import attention, kernels
from jaxpt.models.kernels import Inputs
from jaxpt.models.mask import Mask
from jaxpt.parallel import compiler
from jaxpt.parallel import mesh as meshes
from tests import grids
from tests.models.own_kernels import is_interpreted

B, L, H, K = 2, 128, 4, 8
SEGMENTS = jnp.asarray(np.repeat([[1, 2, 0], [1, 2, 3]], [50, 60, 18], axis=1))
REAL = jnp.asarray(np.minimum(SEGMENTS, 1))
AT = np.arange(L)[None]
BRANCHES, RANKS, PREFIX = (jnp.asarray(x) for x in (AT // 20 % 3, AT * 37 % L, np.less(AT, [[20], [3]])))
MASKS = {
    "causal": Mask(causal=True),
    "bidirectional": Mask(),
    "padding": Mask(REAL, REAL),
    "packed": Mask(SEGMENTS, SEGMENTS, causal=True),
    "prefix": Mask(prefix_BxS=PREFIX, causal=True),
    "sliding": Mask(causal=True, window=7),
    "window": Mask(SEGMENTS, SEGMENTS, window=9),
    "branches": Mask(SEGMENTS, SEGMENTS, query_branches_BxL=BRANCHES, key_branches_BxS=BRANCHES, causal=True),
    "ranks": Mask(query_ranks_BxL=jnp.asarray(AT * 37 % L + 1), key_ranks_BxS=RANKS),
}
SHARED_HEADS = {"causal", "packed", "window"}
CAPS = {"sliding": 0.5}
"""c of scores z that become c · tanh(z / c); the library has none."""
RUNS = {
    "chunked": functools.partial(kernels.chunked, chunk=50),
    "library": functools.partial(kernels.cudnn, implementation="xla"),
    "splash": lambda inputs: kernels.splash(inputs, is_interpreted(kernels.splash)),
}


PAIRS = [(name, mask) for name in RUNS for mask in MASKS]
PAIRS = [pair for pair in PAIRS if pair not in [("splash", mask) for mask in ("prefix", "branches", "ranks")]]
"""Splash does not have these, and `choose` knows."""
KEPT = [("chunked", mask) for mask in ("packed", "prefix", "branches", "ranks")]
KEPT += [("library", "packed"), ("library", "window"), ("splash", "packed"), ("splash", "sliding")]


def inputs(name, mask):
    rng, kv_heads = np.random.default_rng(0), 2 if mask in SHARED_HEADS else H
    q, k, v = (jnp.asarray(rng.standard_normal((B, L, h, K)), jnp.float32) for h in (H, kv_heads, kv_heads))
    bias = None if name == "splash" else jnp.asarray(rng.standard_normal((H, L, L)), jnp.float32)
    return (q, k, v), bias


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("name", "mask"), grids.cases(PAIRS, *KEPT))
def test_equals_plain(name, mask):
    qkv, bias = inputs(name, mask)
    real = np.ones((B, L)) if MASKS[mask].query_segments_BxL is None else MASKS[mask].query_segments_BxL > 0

    cap = None if name == "library" else CAPS.get(mask)

    def loss(qkv, run):
        y = run(Inputs(*qkv, MASKS[mask], bias, 0.3, soft_cap=cap))
        return jnp.tanh(y * real[..., None, None]).sum(), y * real[..., None, None]

    @jax.jit
    def both(qkv):
        return [jax.value_and_grad(loss, has_aux=True)(qkv, run) for run in (kernels.plain, RUNS[name])]

    ((_, want), grad_want), ((_, got), grad_got) = both(qkv)
    np.testing.assert_allclose(got, want, atol=2e-5)
    for a, b in zip(grad_got, grad_want):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_doctests():
    assert doctest.testmod(kernels).failed == 0


def test_the_library_counts_from_the_offset_of_a_cache():
    """Two new tokens after four, in a ring of eight keys."""
    (q, k, v), _ = inputs("library", "causal")
    order = (jnp.arange(8) - 6) % 8
    mask = Mask(None, jnp.array([[1] * 6 + [0] * 2]), offset=jnp.int32(6), key_index_S=order, causal=True)
    given = Inputs(q[:1, :2], k[:1, :8], v[:1, :8], mask, None, 0.3)
    want, got = jax.jit(lambda: [kernels.plain(given), RUNS["library"](given)])()
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_chunks_never_hold_all_scores():
    q = jax.ShapeDtypeStruct((1, 2048, 1, 8), jnp.float32)

    def loss(q, run):
        return run(Inputs(q, q, q, Mask(causal=True))).sum()

    def largest(run):
        compiled = jax.jit(jax.grad(functools.partial(loss, run=run))).lower(q).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert largest(functools.partial(kernels.chunked, chunk=64)) < 0.1 * largest(kernels.plain)


@pytest.mark.slow
@pytest.mark.parametrize("mask", grids.cases(["causal", "packed", "prefix", "ranks", "window"], "packed", "ranks"))
def test_each_device_does_its_part_of_the_queries(mask):
    """Values, gradients and dropped weights are those of one device, whose chunks are others."""
    qkv, bias = inputs("chunked", mask)
    mesh = jax.make_mesh((2, 2, 2), ("data", "context", "tensor"), axis_types=(AxisType.Auto,) * 3)

    def loss(qkv, chunk):
        y = kernels.chunked(Inputs(*qkv, MASKS[mask], bias, 0.3, 0.25, jax.random.key(1)), chunk)
        return jnp.tanh(y).sum(), y

    run = functools.partial(jax.value_and_grad(loss, has_aux=True), qkv)
    (_, want), grad_want = jax.jit(lambda: run(chunk=50))()
    with jax.set_mesh(mesh), nn.logical_axis_rules((("length", "context"),)):
        (_, got), grad_got = jax.jit(lambda: run(chunk=17))()
    np.testing.assert_allclose(got, want, atol=1e-6)
    for a, b in zip(grad_want, grad_got):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.gpu
def test_dropout_in_chunks_keeps_the_rate():
    (q, k, _), _ = inputs("chunked", "bidirectional")
    run = jax.jit(lambda key: kernels.chunked(Inputs(q, k, np.ones_like(k), Mask(), None, 0.3, 0.25, key), chunk=50))
    y = np.asarray(run(jax.random.key(1)))
    assert abs(y.mean() - 1) < 0.02 and y.std() > 0.01


def splash_for_a_tpu(mask, sharding=None):
    """The gradient of splash attention over 2 · L tokens, lowered for a TPU."""
    x = jax.ShapeDtypeStruct((B, 2 * L, H, K), jnp.bfloat16, sharding=sharding)

    def loss(q, k, v):
        segments = np.tile(SEGMENTS, 2)
        parts = {"query_segments_BxL": segments, "key_segments_BxS": segments} if mask == "packed" else {}
        inputs = Inputs(q, k, v, MASKS[mask].replace(**parts), scale=0.3, soft_cap=CAPS.get(mask))
        return kernels.splash(inputs).astype(jnp.float32).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(x, x, x).lower(lowering_platforms=("tpu",))


@pytest.mark.parametrize("mask", ["causal", "packed", "sliding"])
def test_the_kernel_is_in_the_program_for_a_tpu(mask):
    text = splash_for_a_tpu(mask).as_text()
    assert text.count("tpu_custom_call") >= 2
    assert f"{2 * L}x{2 * L}x" not in text  # no array of all scores, nor a mask of that size


def compiled_for_a_tpu(mask):
    """The gradient's program for a v5e, with no TPU there."""
    chips = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    one = NamedSharding(Mesh(np.array(chips[:1]), ("data",)), PartitionSpec())
    return splash_for_a_tpu(mask, one).compile().as_text()


@pytest.mark.slow
@pytest.mark.parametrize("mask", grids.cases(["causal", "packed", "sliding"], "packed"))
def test_the_kernel_compiles_for_a_tpu(mask):
    """`pip install libtpu` brings the compiler, which ends the process at a flag of XLA's that it does not know."""
    pytest.importorskip("libtpu")
    code = f"from tests.models.test_kernels import *; print(compiled_for_a_tpu({mask!r}).count('tpu_custom_call'))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment |= {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2  # forward and backward


def choose(length=256, dtype=jnp.bfloat16, mask=None, bias=None, dropping=False, heads=4, **settings):
    shape = (1, length, heads, 64)
    return attention.choose(shape, shape, dtype, mask or Mask(causal=True), bias, dropping, **settings)


def test_the_choice_on_a_tpu(monkeypatch):
    assert choose() == "xla" and choose(length=4096) == "chunked", "on a CPU"
    with pytest.raises(UserError, match=r"model\.attention: splash requires a TPU; set model\.attention=auto"):
        choose(implementation="splash")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert choose() == "splash" and choose(mask=Mask()) == "fused", "splash skips what a causal mask hides"
    assert choose(length=100) == choose(bias="learned") == choose(dropping=True) == "fused"
    assert choose(mask=MASKS["prefix"]) == choose(bias="array") == choose(length=100, heads=3) == "xla"
    assert choose(length=2049, dropping=True) == "chunked"
    assert choose(implementation="chunked") == "chunked"
    assert choose(soft_cap=2.0) == "splash" and choose(soft_cap=2.0, mask=Mask()) == "splash"
    with pytest.raises(UserError, match=r"fused requires scores without a cap \(model\.score_cap\); set model"):
        choose(implementation="fused", soft_cap=5.0)


def test_segments_stay_one_array_in_a_rematerialised_scan(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")

    @jax.jit
    @jax.checkpoint
    def inside(segments):  # a scan of rematerialised layers is handed one array as two
        mask = Mask(segments, segments, causal=True)
        return jax.lax.scan(jax.checkpoint(lambda mask, _: (mask, chosen.append(choose(mask=mask)))), mask, None, 2)[0]

    chosen = []
    inside(jnp.ones((1, 256), jnp.int32))
    assert set(chosen) == {"splash"}
    assert choose(mask=Mask(jnp.ones((1, 256)), jnp.zeros((1, 256)))) == "fused", "of other tokens"


def test_the_choice_on_a_mesh_of_tpus(monkeypatch):
    monkeypatch.setattr(attention.compiler, "platform", lambda: "tpu")
    with meshes.use(meshes.make(MeshConfig(data=2, tensor=4), jax.devices()[:8])):
        assert choose(length=4096, heads=8) == "splash" and choose(heads=6) == "xla", "heads are whole on a device"
        assert choose(heads=4, mask=Mask()) == "splash" and choose(heads=8, mask=Mask()) == "fused", (
            "and so are registers"
        )
        with pytest.raises(
            UserError, match=r"splash requires heads that mesh\.tensor divides; set model\.attention=auto"
        ):
            choose(heads=6, implementation="splash")


def test_the_choice_on_a_gpu(monkeypatch):
    monkeypatch.setattr(attention.compiler, "platform", lambda: "gpu")
    assert choose(dropping=True) == "xla", "a GPU of another kind"
    monkeypatch.setattr(attention.compiler, "device_kind", lambda: "NVIDIA H100 80GB HBM3")
    assert choose() == "cudnn" and choose(dtype=jnp.float32) == "xla" and choose(length=4095) == "flash"
    packed = Mask(jnp.ones((1, 256)), causal=True)
    assert choose(mask=packed) == "flash" and choose(length=2048, mask=packed) == "cudnn"
    with compiler.deterministic(True):
        assert choose() == "flash"
        with pytest.raises(UserError, match=r"^model\.attention: cudnn requires train\.deterministic=false; set "):
            choose(implementation="cudnn")
    assert choose(bias="learned") == choose(dropping=True) == "flash" and choose(bias="terms") == "xla"
    assert choose(mask=MASKS["prefix"], length=4095) == "chunked"
    assert choose(soft_cap=2.0) == "xla" and choose(soft_cap=2.0, length=4096) == "chunked"
    with pytest.raises(
        UserError,
        match=r"^model\.attention: cudnn requires scores without a cap \(model\.score_cap\); set model\.attention=auto",
    ):
        choose(soft_cap=2.0, implementation="cudnn")
