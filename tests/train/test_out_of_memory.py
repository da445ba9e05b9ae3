"""A run that does not fit in memory ends with one line that says what to lower. The allocations really fail."""

import doctest
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.train import out_of_memory
from tests import families
from tests.config.helpers import ROOT

TOO_LARGE = 1 << 50
LINE = (
    r"out of memory \(RESOURCE_EXHAUSTED: .*\): raise train\.grad_accum_steps=2 "
    r"\(a device has 2 of 16 rows at a time\), set model\.remat=full \(is none\), raise mesh\.fsdp=2 \(of 8 devices\), "
    r"lower data\.batch_size=16 or data\.length=\d+; `jaxpt plan RECIPE --search` looks for settings that fit"
)


def config(**mesh):
    given = {"data": {"batch_size": 16}, "train": {"grad_accum_steps": 2}, "plan": {"topology": "v5e:2x4"}}
    return families.config("gpt2", mesh=mesh, **given)


def test_examples_in_the_docstrings():
    assert doctest.testmod(out_of_memory).failed == 0


def test_the_line_has_the_values_of_the_run():
    with pytest.raises(UserError, match=f"^{LINE}$"), out_of_memory.explained(config(data=2, fsdp=2, tensor=2)):
        jax.block_until_ready(jax.jit(lambda: jnp.zeros(TOO_LARGE, jnp.int8))())
    with pytest.raises(UserError) as caught, out_of_memory.explained(config(data=-1)):
        np.zeros(TOO_LARGE, np.uint8)
    assert re.fullmatch(
        r"out of memory on the host \(Unable to allocate .*\): lower data\.batch_size=16 or data\.length=\d+",
        str(caught.value),
    )


def test_other_errors_pass():
    for error in (ValueError("out of memory"), jax.errors.JaxRuntimeError("INTERNAL: allocation")):
        with pytest.raises(type(error)), out_of_memory.explained(config(data=-1)):
            raise error


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="an address space is limited on Linux alone")
def test_a_step_that_does_not_fit(tmp_path):
    """36 GB of activations in an address space of 10 GB."""
    words = ["train.phases=[]", "data.batch_size=20000", "train.steps=60", f"run_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "jaxpt", "train", "configs/smoke/gpt2_tiny.yaml"]
    done = subprocess.run(
        ["bash", "-c", f'ulimit -v {10 << 20}; exec "$@"', "-", *command, *words], cwd=ROOT, text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": ""}, capture_output=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if "jaxpt:" in line]
    assert len(said) == 1 and "Traceback" not in done.stderr
    plan = r"`jaxpt plan configs/smoke/gpt2_tiny\.yaml .*data\.batch_size=20000.*` shows what takes the memory"
    assert re.fullmatch(r"jaxpt: out of memory \(.*a device has 20000 of 20000 rows.*" + plan, said[0])
    assert not (tmp_path / "run").exists()  # the next try may have other settings
