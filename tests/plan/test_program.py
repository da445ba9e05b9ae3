"""Programs that are really compiled: on this machine's eight CPU devices, and for a v5e where libtpu is installed."""

import types
from importlib import metadata

import pytest

from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.plan import collectives, donation, hlo, isolated, memory, operations, program
from jaxpt.plan.memory import packed
from jaxpt.train import corruption, state, step
from tests import families, grids

pytestmark = pytest.mark.slow
MESH = {"data": 2, "fsdp": 4}


@pytest.fixture(scope="module")
def config():
    return families.config("bert", mesh=MESH, train={"steps": 10, "phases": [{"steps": 4}, {}]})


@pytest.fixture(scope="module")
def measured(config):
    return program.measure(config, program.Target(), phase=1)


def test_what_is_measured_is_the_step_that_train_runs(config, measured):
    setup = state.setup(config)
    compiled = step.traced(setup, config.objective).lower().compile()
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    total += packed(hlo.Program(compiled.as_text())) - memory.alias_size_in_bytes
    assert measured.total == pytest.approx(total, rel=0.01)
    parts = measured.memory["parameters"] + measured.memory["optimizer"]
    assert parts == state.per_device_size(setup) - 3 * 4  # the counts of steps
    read, sizes = hlo.Program(compiled.as_text()), program._state(setup)
    assert measured.copied_donated_buffers == donation.faults(read, sizes) == []
    read.aliases.popitem()
    assert [fault.reason for fault in donation.faults(read, sizes)] == ["no alias"]
    assert measured.steps == 6 and measured.mesh == {**MESH, "pipeline": 1, "expert": 1, "context": 1, "tensor": 1}


def test_figures_of_a_small_bert(measured):
    assert 0.99 < measured.program_flops / measured.model_flops < 1.2
    assert measured.fits and measured.memory["temporaries"] > 0 and measured.traffic > measured.total
    assert len(measured.buffers) == 10
    sizes = [buffer["bytes"] for buffer in measured.buffers]
    assert sizes == sorted(sizes, reverse=True)
    assert any(one["axes"] == ["fsdp"] for one in measured.collectives)
    placed = {one["name"]: one for one in measured.placements}
    kernel = placed["model/encoder/segment_0/block_0/feed_forward/up/kernel"]
    assert kernel["placement"] == [None, ["fsdp"], None] and kernel["bytes"] == 2 * 32 * 64 * 4 // 4


def test_a_step_that_is_run_twice_takes_a_second_state(monkeypatch):
    """The run keeps a copy of the state while the step runs; no plan counted it."""
    made_up = {
        memory: {"total": 10**9, "packed": 0, "largest": []}, donation: {"faults": []},
        collectives: {"find": []}, operations: {"regions": []}, hlo: {"Program": types.SimpleNamespace(traffic=int)},
    }  # fmt: skip
    for module, functions in made_up.items():
        for name, answer in functions.items():
            monkeypatch.setattr(module, name, lambda *_, answer=answer: answer)
    texts = dict.fromkeys(isolated._NEEDED, "")
    setups = [state.setup(families.config("bert", train={"recompute_every": every})) for every in (None, 5)]
    once, twice = (program._read(texts, setup, {}) for setup in setups)
    size = state.per_device_size(setups[1])
    assert (once["memory"]["second_state"], twice["memory"]["second_state"]) == (0, size)
    assert twice["total"] - once["total"] == size and twice["memory"]["temporaries"] == once["memory"]["temporaries"]
    assert sum(twice["memory"].values()) == twice["total"]


def test_a_plan_refuses_what_a_run_refuses_to_run_twice(monkeypatch, tmp_path):
    """GPUs want train.deterministic=true."""

    def refuse(setup):
        raise UserError(f"refused: {setup.config.train.recompute_every}")

    monkeypatch.setattr(corruption, "check", refuse)
    yaml = configs.to_yaml(families.config("bert", train={"recompute_every": 5}))
    with pytest.raises(UserError, match="refused: 5"):
        program._setup({"config": yaml, "topology": None, "slices": 1, "phase": 0}, tmp_path)


def test_a_compiler_that_ends_the_process_is_one_line(config, monkeypatch):
    said = "E0000 slow\nF0000 a.cc:9] Check failed: a == b (1 vs. 2)\n*** Check failure stack trace: ***\n    @ 0x5\n"
    done = types.SimpleNamespace(returncode=-6, stderr=said)
    monkeypatch.setattr(isolated.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(UserError, match=r"for this machine ended with code -6: F0000 a\.cc:9\] Check failed: a == b"):
        program.measure(config, program.Target())


@pytest.fixture(scope="module")
def for_a_v5e():
    pytest.importorskip("libtpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
        config = families.config("gpt2", model={"dtype": "auto"}, mesh={"data": 2, "fsdp": 2})
        return program.measure(config, program.Target("v5e:2x2"))


def test_a_program_for_a_tpu_with_no_tpu(for_a_v5e):
    assert for_a_v5e.device_kind == "TPU v5 lite" and for_a_v5e.devices == 4 and for_a_v5e.platform == "tpu"
    assert for_a_v5e.dtype == "bfloat16"  # `dtype: auto` goes by the topology, not by what is here
    assert for_a_v5e.fits and for_a_v5e.limit == int(15.75 * 2**30)
    assert any("fsdp" in one["axes"] for one in for_a_v5e.collectives)
    assert for_a_v5e.copied_donated_buffers == []


@pytest.mark.parametrize(("topology", "devices"), grids.cases([("v5e:4x4", 16), ("v5p:4x4x4", 64)], ("v5e:4x4", 16)))
def test_no_device_of_a_slice_sums_up_what_it_keeps_a_part_of(topology, devices):
    """Weights are gathered and gradients scattered; in one collective over all devices both would be all-reduces."""
    pytest.importorskip("libtpu")
    model = {"dtype": "auto", "vocab_size": 512, "embed_dim": 1024, "mlp_dim": 2048, "heads": 8, "layers": 3}
    data = {"length": 128, "batch_size": devices}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
        config = families.config("llama", model=model, data=data, mesh={"data": 1, "fsdp": devices})
        measured = program.measure(config, program.Target(topology))
    sent = dict.fromkeys(("all-gather", "reduce-scatter", "all-reduce"), 0)
    for one in measured.collectives:
        if one["kind"] in sent:
            sent[one["kind"]] += one["sent"]
    weights = measured.parameters * 2  # bfloat16; both passes gather them, in one they are scattered
    assert weights * 0.8 < sent["reduce-scatter"] < weights * 1.3 and weights * 1.5 < sent["all-gather"] < weights * 2.2
    assert sent["all-reduce"] < weights / 20


def test_gradients_of_experts_are_scattered():
    """Those of the down kernels are split along the axis that lies in lanes: unless told, libtpu all-reduces them."""
    pytest.importorskip("libtpu")
    experts = {"experts": 4, "experts_per_token": 1, "mlp_dim": 2048}
    model = {"dtype": "auto", "vocab_size": 512, "embed_dim": 512, "heads": 8} | experts
    data = {"length": 128, "batch_size": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
        config = families.config("t5", model=model, data=data, mesh={"data": 1, "fsdp": 4, "expert": 4})
        measured = program.measure(config, program.Target("v5e:4x4"))
    over_fsdp = {one["kind"]: one["sent"] for one in measured.collectives if one["axes"] == ["fsdp"]}
    assert over_fsdp["reduce-scatter"] > 20 * 2**20 and over_fsdp.get("all-reduce", 0) < 2**20


@pytest.mark.parametrize(
    ("platform", "installed", "name"),
    [
        ("gpu", ("jax-cuda13-plugin", "jaxlib"), "jax-cuda13-plugin"),
        ("gpu", ("jax-cuda12-plugin", "jaxlib"), "jax-cuda12-plugin"),
        ("gpu", ("jaxlib",), "jaxlib"),
        ("tpu", ("libtpu", "jaxlib"), "libtpu"),
        ("cpu", ("libtpu", "jaxlib"), "jaxlib"),
    ],
)
def test_the_compiler_is_named_whichever_plugin_is_installed(monkeypatch, platform, installed, name):
    """With CUDA 12 or ROCm a plan failed after all was compiled."""

    def version(package):
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return "0.10.2"

    monkeypatch.setattr(metadata, "version", version)
    assert program._compiler(platform) == f"{name} 0.10.2"
