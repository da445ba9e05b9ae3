"""The fused kernel beside plain attention: values, gradients, the bias's too; dropout's distribution."""

import os
import subprocess
import sys

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpt.models import fused, kernels
from jaxpt.models.kernels import Inputs
from jaxpt.models.mask import Mask
from jaxpt.models.position_terms import PositionTerms
from tests import grids
from tests.models.own_kernels import (
    CASES,
    H,
    K,
    arrays,
    cases,
    check_devices,
    check_dropout,
    check_values_and_gradients,
    learned,
    lowered,
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("length, keys", [(1, 1), (7, 130)])
def test_small(length, keys):
    @jax.jit
    def both(q, k, v):
        return [
            kernels.fused(Inputs(q, k, v, Mask(), None, 0.2), interpret=True),
            kernels.plain(Inputs(q, k, v, Mask(), None, 0.2)),
        ]  # fmt: skip

    np.testing.assert_allclose(*both(*arrays(2, length, keys)), atol=1e-5)


def terms(heads=H):
    """DeBERTa's, with logarithmic buckets."""
    rows = np.random.default_rng(4).standard_normal((2, 64, heads, K)).astype(np.float32) / 8
    return PositionTerms(*map(jnp.asarray, rows), first=0, span=32, buckets=32, max_positions=128)


MORE = {
    "positions, one token": ((2, 1, 1), {}, True),
    "positions, packed": ((2, 200, 200), {"packed": True}, True),
    "positions, several blocks": ((1, 500, 500), {}, True),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", cases(CASES, "cross packed", "window", "several blocks"))
def test_values_and_gradients(name):
    check_values_and_gradients(kernels.fused, CASES[name])


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(MORE, "positions, packed"))
def test_values_and_gradients_of_position_terms(name):
    check_values_and_gradients(kernels.fused, MORE[name], terms())


@pytest.mark.gpu
@pytest.mark.slow
def test_dropout_is_that_of_its_hash_in_both_passes():
    check_dropout(kernels.fused)


@pytest.mark.slow
def test_dropout_goes_by_row_head_and_place_on_any_mesh():
    check_devices(kernels.fused)


@pytest.mark.parametrize(
    ("length", "keys", "block"),
    [(1024, 512, 512), (1024, 640, 256), (768, 512, 256), (640, 128, 128), (512, 128, 512)],
)
def test_a_block_of_queries_is_the_largest_whose_scores_fit(length, keys, block):
    def forward(q, k, v):
        return kernels.fused(Inputs(q, k, v, Mask(), None, 0.2), interpret=True)

    assert block * keys <= fused.TILE
    grids_of = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                grids_of.append(equation.params["grid_mapping"].grid)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                visit(inner)

    visit(jax.make_jaxpr(forward)(*arrays(1, length, keys)).jaxpr)
    assert {grid[-1] for grid in grids_of} == {length // block}


@pytest.mark.gpu
def test_rows_by_distance_become_rows_by_key_and_back():
    x = np.arange(8 * 24, dtype=np.float32).reshape(8, 24)

    def kernel(x_ref, *found):
        strided, plain, back = found
        strided[...], plain[...] = fused.sheared(x_ref[...], 16), fused.sheared(x_ref[...], 16, strided=False)
        back[...] = fused.unsheared(plain[...])

    shapes = [jax.ShapeDtypeStruct((8, size), jnp.float32) for size in (16, 16, 24)]
    strided, plain, back = jax.jit(pl.pallas_call(kernel, out_shape=shapes, interpret=True))(x)
    wanted = np.stack([x[row, 8 - row : 24 - row] for row in range(8)])
    np.testing.assert_array_equal(strided, wanted)
    np.testing.assert_array_equal(plain, wanted)
    for row in range(8):
        np.testing.assert_array_equal(back[row], np.r_[np.zeros(8 - row), wanted[row], np.zeros(row)])


FORMS = [
    (512, 512, False, learned, 0.1), (114, 512, False, None, 0.1), (700, 700, True, learned, 0.0),
    (512, 512, False, terms, 0.1),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_it_is_in_the_program_for_a_tpu(form):
    text = lowered(kernels.fused, "tpu", *form).as_text()
    assert text.count("tpu_custom_call") == 2  # forward and backward
    assert f"x{form[0]}x{form[1]}x" not in text  # no array of all scores


def compiled_for_a_tpu(topology, form):
    """The gradient's program, with no TPU there."""
    chips = topologies.get_topology_desc(topology, platform="tpu").devices
    mesh = Mesh(np.array(chips[:1]), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):  # whose device says how a register can be turned
        return lowered(kernels.fused, "tpu", *form, NamedSharding(mesh, PartitionSpec())).compile().as_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology", grids.cases(["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"], "v4:2x2x1", "v5e:2x2")
)
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
