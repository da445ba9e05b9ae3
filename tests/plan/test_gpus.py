"""Programs for GPUs, compiled with no GPU, where JAX's CUDA plugin is installed (extra [plan-gpu])."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxpt import config as configs
from jaxpt.models import kernels
from jaxpt.models.mask import Mask
from jaxpt.parallel.chips import GPUS, KINDS
from jaxpt.plan import gpus, program
from jaxpt.train import flops
from tests import families, grids

needs_plugin = pytest.mark.skipif(importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs [plan-gpu]")
MESH = {"data": 2, "fsdp": 2}
FINISHED = """
import json, sys
from jaxpt import config as configs
from jaxpt.models import kernels
from jaxpt.models.mask import Mask
from jaxpt.plan import topologies
from jaxpt.train import state, step

config = configs.load(sys.argv[1])
setup = state.setup(config, topologies.parse("h100:2x2").devices())
memory = step.traced(setup, config.objective).lower().compile().memory_analysis()
sizes = [memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes]
print(json.dumps(sum(sizes) - memory.alias_size_in_bytes))
"""


def test_every_target_is_a_gpu_of_the_table_by_its_own_name():
    for kind, target in gpus.TARGETS.items():
        name = max((name for name in KINDS if target.name.startswith(name)), key=len)
        assert KINDS[name] is GPUS[kind]
        assert f'device_description_str: "{target.name}"' in gpus.description(kind)
        assert f"device_memory_size: {GPUS[kind].memory}\n" in gpus.description(kind)


@pytest.fixture
def cudnn(monkeypatch):
    """cuDNN's attention can be traced, as for a plan."""
    from jax._src.cudnn import fused_attention_stablehlo as attention

    for name in ("check_cudnn_version", "check_compute_capability", "is_cuda_compute_capability_equal"):
        monkeypatch.setattr(attention, name, None)  # as they were, after the test
    gpus._assume_cudnn(9)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("causal", [False, True])
def test_cudnn_takes_every_mask(cudnn, causal, window, segments):
    """A window to both sides was refused: ModernBERT could not be trained on GPUs."""
    ids = jnp.ones((2, 64), jnp.int32) if segments else None
    mask = Mask(ids, ids, causal=causal, window=window)
    q = jnp.zeros((2, 64, 4, 16), jnp.bfloat16)
    assert jax.eval_shape(lambda q: kernels.cudnn(kernels.Inputs(q, q, q, mask, scale=0.25)), q).shape == q.shape


@pytest.mark.parametrize(
    ("causal", "window", "share"), [(False, None, 1), (True, None, 0.5), (True, 16, 1 / 8 - 1 / 128)]
)
def test_flops_of_cudnns_attention(cudnn, causal, window, share):
    options = {"is_causal": causal, "local_window_size": window and (window - 1, 0), "implementation": "cudnn"}
    q, k = jnp.zeros((2, 64, 4, 16), jnp.bfloat16), jnp.zeros((2, 128, 4, 16), jnp.bfloat16)

    def loss(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, **options).sum()

    product = 2 * 2 * 4 * 64 * 128 * 16 * share
    assert flops.count(jax.make_jaxpr(loss)(q, k, k).jaxpr) == 2 * product
    assert flops.count(jax.make_jaxpr(jax.grad(loss))(q, k, k).jaxpr) == (2 + 5) * product


@needs_plugin
@pytest.mark.slow
@pytest.mark.parametrize("family", grids.cases(["bert", "gpt2", "t5"], "t5"))
def test_a_planned_program_takes_what_the_finished_one_does(family, tmp_path):
    config = families.config(family, mesh=MESH, model={"dtype": "bfloat16"})
    measured = program.measure(config, program.Target("h100:2x2"))
    (tmp_path / "config.yaml").write_text(configs.to_yaml(config), "utf-8")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": gpus.XLA_FLAGS}
    words = [sys.executable, "-c", FINISHED, str(tmp_path / "config.yaml")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    finished = json.loads(done.stdout.splitlines()[-1])
    assert 0 <= measured.total - finished < 2048  # the plan counts the program's constants as well
    assert measured.platform == "gpu" and measured.compiler.startswith("jax-cuda13-plugin ")


@needs_plugin
@pytest.mark.slow
def test_machines_are_joined_by_the_network_and_gpus_of_one_by_nvlink():
    measured = program.measure(families.config("bert", mesh=MESH), program.Target("h100:2x2"))
    networks = {tuple(one["axes"]): one["network"] for one in measured.collectives}
    assert networks[("fsdp",)] == "ICI" and networks[("data",)] == "DCN"
