"""The GPU kernels beside plain attention: values, gradients, the bias's too; dropout; the programs for GPUs."""

import doctest
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpt.models import flash, kernels
from jaxpt.models.kernels import Inputs
from jaxpt.models.mask import Mask
from jaxpt.plan import gpus
from jaxpt.train import flops
from tests import grids
from tests.models.own_kernels import (
    CASES,
    arrays,
    cases,
    check_devices,
    check_dropout,
    check_values_and_gradients,
    is_interpreted,
    learned,
    lowered,
)

MORE = {
    "causal window": ((1, 300, 300), {"window": 70, "causal": True}, True),
    "causal, fewer keys": ((1, 300, 100), {"causal": True, "window": 30}, False),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", cases(CASES | MORE, "causal window", "cross packed", "several blocks"))
def test_values_and_gradients(name):
    """What is 0 by arithmetic is rounded to 3e-6: the weights are divided by their sum after the product."""
    check_values_and_gradients(kernels.flash, (CASES | MORE)[name], floor=0.3)


@pytest.mark.gpu
@pytest.mark.parametrize("width", grids.cases([8, 24, 128], 24))
def test_heads_of_any_width(width):
    @jax.jit
    def both(q, k, v):
        return [
            kernels.flash(Inputs(q, k, v, Mask(), None, 0.2), interpret=is_interpreted(kernels.flash)),
            kernels.plain(Inputs(q, k, v, Mask(), None, 0.2)),
        ]

    np.testing.assert_allclose(*both(*arrays(1, 40, 70, width=width)), atol=1e-5)


def test_blocks_that_a_mask_hides_are_left_out():
    """Each mask's count, against the mask itself: the forward kernel declares the FLOPs of its blocks."""
    q = jax.ShapeDtypeStruct((1, 320, 1, 64), np.float32)
    for causal in (False, True):
        for window in (None, 1, 2, 64, 65, 66, 200):
            mask = Mask(causal=causal, window=window)
            seen = np.ones((1, 320, 320), bool) if not causal and window is None else mask.materialise(320, 320)
            blocks = np.asarray(seen).reshape(5, 64, 5, 64).any((1, 3)).sum()
            jaxpr = jax.make_jaxpr(lambda q, mask=mask: kernels.flash(Inputs(q, q, q, mask, None, 0.2)))(q).jaxpr
            assert flops.count(jaxpr) == blocks * 64 * 64 * 64 * 2 * 2, (causal, window)


@pytest.mark.gpu
@pytest.mark.slow
def test_dropout_is_that_of_its_hash_in_both_passes():
    check_dropout(kernels.flash)


@pytest.mark.slow
def test_rows_and_heads_on_several_devices():
    check_devices(kernels.flash)


FORMS = [(512, 512, False, learned, 0.1), (114, 512, False, None, 0.1), (700, 700, True, learned, 0.0)]


@pytest.mark.parametrize("form", FORMS)
def test_they_are_in_the_program_for_a_gpu(form):
    """One forward, one for queries and one for keys, and one for the bias: no other array has all scores."""
    device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=device)):
        text = lowered(kernels.flash, "cuda", *form).as_text()
    assert text.count("xla.gpu.triton") == (4 if form[3] else 3)
    assert f"x{form[0]}x{form[1]}x" not in text.replace(f"tensor<4x{form[0]}x{form[1]}xf32>", "")


def compiled_for_a_gpu(kind, form):
    """The gradient's program, with no GPU there."""
    mesh = Mesh(np.array(gpus.devices(kind, 1, 1)), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):  # whose device says for what kind of GPU
        return lowered(kernels.flash, "cuda", *form, NamedSharding(mesh, PartitionSpec())).compile().as_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", grids.cases(["a100-80", "h100", "b200"], "h100"))
def test_they_compile_for_each_gpu(kind):
    """`pip install -e '.[plan-gpu]'` brings the compiler."""
    pytest.importorskip("jax_cuda13_plugin")
    code = "from tests.models.test_flash import *\n"
    code += f"for form in FORMS: print(compiled_for_a_gpu({kind!r}, form).count('__gpu$xla.gpu.triton'))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert min(map(int, done.stdout.split())) >= 3


def test_docstrings():
    assert doctest.testmod(flash)[0] == 0
