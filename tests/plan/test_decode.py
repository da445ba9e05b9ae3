import dataclasses
import json

import jax
import pytest
import yaml
from jax.experimental.compilation_cache import compilation_cache

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.plan import command, decode, hlo, isolated, loop, topologies
from jaxpt.plan.decode import Shape
from jaxpt.plan.program import Target
from tests import families, grids


def measured(config, directory, text, axes=None):
    """In this process, on the eight CPU devices; a program that was kept on disk would say nothing of itself."""
    job = {"config": configs.to_yaml(config), "topology": None, "slices": 1, "axes": axes or {}}
    job["shape"] = dataclasses.asdict(Shape.parse(text, config))
    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        return decode.DecodeResult(**loop.measured(job, directory))
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return measured(families.config("gpt2"), tmp_path_factory.mktemp("gpt2"), "8x16")


def test_bytes_of_a_small_gpt2_by_hand(gpt2):
    """Layers 2, width 32, 4 heads, 32 positions, vocabulary 200 in 256 rows: tensor 4 × data 2."""
    assert gpt2.mesh == {"data": 2, "pipeline": 1, "fsdp": 1, "expert": 1, "context": 1, "tensor": 4}
    norms, biases, kernels = 2 * 64, (3 * 32 + 128) // 4 + 2 * 32, (4 * 32 * 32 + 2 * 32 * 128) // 4
    assert gpt2.weights == gpt2.weights_read == 4 * (2 * (norms + biases + kernels) + 64 + 32 * 32 + 256 // 4 * 32)
    assert gpt2.cache == 4 * 2 * 2 * (8 // 2) * (4 // 4) * 16 * 8  # float32, layers, keys and values, B, G, S, K
    products, attention = 2 * (4 * 32 * 32 + 2 * 32 * 128), 2 * 2 * 32 * 16
    assert gpt2.program_flops == 8 * 2 * (2 * products // 2 + attention) + 8 * 2 * 32 * 256
    assert gpt2.traffic == gpt2.traffic_padded > gpt2.weights_read  # a CPU pads nothing
    assert gpt2.token_bytes == gpt2.traffic  # 8 devices, 8 rows
    assert gpt2.fits and gpt2.total > gpt2.weights + gpt2.cache and not gpt2.gathered_tables


def test_the_loop_of_an_encoder_decoder_is_given_no_encoder(tmp_path):
    t5 = measured(families.config("t5"), tmp_path, "8x32/16", {"tensor": 1})
    assert t5.mesh["data"] == 8 and t5.mesh["tensor"] == 1
    assert t5.cache == 4 * 2 * 2 * 1 * 4 * (32 + 16) * 8
    assert 0.3 * t5.weights < t5.weights_read < 0.8 * t5.weights


@pytest.mark.slow
def test_layers_with_a_window_have_a_smaller_cache(tmp_path):
    """Two layers of 8 slots and two of 32, a head of 16 on each of two devices."""
    gemma = measured(families.config("gemma"), tmp_path, "8x32")
    assert gemma.mesh["data"] == 4 and gemma.mesh["tensor"] == 2
    assert gemma.cache == 4 * 2 * (2 * 8 + 2 * 32) * (8 // 4) * 16


@pytest.mark.parametrize(
    ("family", "text", "answer"),
    [
        ("gpt2", "0x4", r"--decode 0x4: gpt2 wants BATCHxLENGTH, such as 32x4096"),
        ("gpt2", "32", "--decode 32: gpt2 wants BATCHxLENGTH"),
        ("gpt2", "2x8/4", "gpt2 wants BATCHxLENGTH"),
        ("gpt2", "2x33", "--decode 2x33: length 33, but the model has 32 positions"),
        ("t5", "2x8", "--decode 2x8: t5 wants BATCHxENCODER/DECODER, such as 32x512/128"),
        ("bert", "2x8", "--decode: bert is an encoder: it fills masks, but does not generate"),
        ("awd_lstm", "2x8", "--decode: awd_lstm has no cache of what it has read, and does not generate"),
    ],
)
def test_a_batch_that_is_none_is_one_line(family, text, answer):
    with pytest.raises(UserError, match=answer):
        Shape.parse(text, families.config(family))


def test_a_batch_is_read():
    assert Shape.parse("8x32", families.config("gpt2")) == Shape(8, 32)
    assert str(Shape.parse("8x32/16", families.config("t5"))) == "8x32/16"


def test_mesh_axes_of_the_command_line():
    config = families.config("gpt2", mesh={"tensor": 4, "fsdp": 2})
    assert decode.axes_of(config, ["mesh.tensor=4", "train.steps=1"]) == {"tensor": 4}
    assert decode.axes_of(config, []) == {}
    whole = "mesh={tensor: 4, fsdp: 2, preset: megatron}"
    assert decode.axes_of(config, ["data.path=*.txt", "mesh.data=1", whole]) == {"tensor": 4, "fsdp": 2}
    assert decode.axes_of(config, [whole, "mesh.data=-1"]) == {"data": -1, "tensor": 4, "fsdp": 2}
    assert loop.mesh_config(config, 8, {}).tensor == 4 and loop.mesh_config(config, 6, {}).tensor == 2
    assert loop.mesh_config(config, 8, {"fsdp": 8}).data == -1 and loop.mesh_config(config, 8, {"tensor": -1}).data == 1
    grouped = families.config("llama", model={"kv_heads": 2})
    assert loop.mesh_config(grouped, 8, {}).tensor == 2


def test_other_options_do_not_go_with_decoding(tmp_path, capsys):
    recipe = tmp_path / "gpt2.yaml"
    recipe.write_text(configs.to_yaml(families.config("gpt2")), "utf-8")
    assert cli.main(["plan", str(recipe), "--decode", "2x8", "--save", "x"]) == 2
    assert "--decode goes with --topology, --slices and --json" in capsys.readouterr().err


def test_the_largest_batch_is_compiled(gpt2):
    """50 bytes of weights, 10 for a row and 5 more from 16 rows on: 13 rows fit in 180."""
    first = dataclasses.replace(gpt2, rows=4, cache_padded=40, limit=180, mesh=dict.fromkeys(gpt2.mesh, 1), total=90)
    tried = []

    def compile_(rows):
        tried.append(rows)
        return dataclasses.replace(first, rows=rows, total=50 + 10 * rows)

    found, compiled = decode.largest(first, compile_)
    assert (found.rows, tried, compiled) == (13, [13], 2)
    found, _ = decode.largest(dataclasses.replace(first, cache_padded=20), compile_)  # it takes more than its cache
    assert found.rows == 13 and tried == [13, 22, 13]
    assert decode.largest(dataclasses.replace(first, limit=40), compile_) == (None, 1)
    cut = dataclasses.replace(first, mesh={**first.mesh, "data": 4})
    assert decode.largest(cut, compile_)[0].rows == 12  # a multiple of 4


PROGRAM = """HloModule jit_run

%body (p: (s32[], bf16[2,8,4,16])) -> (s32[], bf16[2,8,4,16]) {
  %p = (s32[], bf16[2,8,4,16]{3,2,1,0}) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %cache = bf16[2,8,4,16]{3,2,1,0} get-tuple-element(%p), index=1
  %slice = bf16[1,8,4,16]{3,2,1,0} dynamic-slice(%cache, %n, %n, %n, %n), dynamic_slice_sizes={1,8,4,16}
  %fast = bf16[1,8,4,16]{3,2,1,0:S(1)} dynamic-slice(%cache, %n, %n, %n, %n), dynamic_slice_sizes={1,8,4,16}
  %new = bf16[1,8,1,16]{3,2,1,0} slice(%slice), slice={[0:1], [0:8], [0:1], [0:16]}
  %put = bf16[2,8,4,16]{3,2,1,0} dynamic-update-slice(%cache, %new, %n, %n, %n, %n)
  %table = bf16[100,32]{1,0} all-gather(%shard), dimensions={0}
  %rows = bf16[4,32]{1,0} all-gather(%own), dimensions={0}
  ROOT %t = (s32[], bf16[2,8,4,16]{3,2,1,0}) tuple(%n, %put)
}

%condition (p: (s32[], bf16[2,8,4,16])) -> pred[] {
  %p = (s32[], bf16[2,8,4,16]{3,2,1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (a: bf16[2,8,4,16]) -> bf16[2,8,4,16] {
  %a = bf16[2,8,4,16]{3,2,1,0} parameter(0), metadata={op_name="state.cache.layers[0][0]['attention'].keys"}
  %c = bf16[2,8,4,16]{2,3,1,0} copy(%a)
  %zero = s32[] constant(0)
  %s = (s32[], bf16[2,8,4,16]{3,2,1,0}) tuple(%zero, %c)
  %w = (s32[], bf16[2,8,4,16]{3,2,1,0}) while(%s), condition=%condition, body=%body
  ROOT %r = bf16[2,8,4,16]{3,2,1,0} get-tuple-element(%w), index=1
}
"""


def test_copies_of_the_cache_are_named():
    """A copy of the array, and a layer that is written to main memory; not what is read to VMEM or updated."""
    copies = loop.cache_copies(hlo.Program(PROGRAM))
    assert [(one["name"], one["bytes"]) for one in copies] == [("c", 2048), ("slice", 1024)]


def test_a_gathered_table_is_named():
    found = loop.gathered_tables(hlo.Program(PROGRAM), {"embed": (200, 32)}, 4)
    assert [(one["by"], one["shape"]) for one in found] == [("table", [100, 32])]
    assert not loop.gathered_tables(hlo.Program(PROGRAM), {"embed": (200, 32)}, 2)  # a half is a device's own


def test_one_turn_of_the_loop_counts():
    program = hlo.Program(PROGRAM)
    assert loop.turn(program).entry == "body"
    assert program.traffic() - loop.turn(program).traffic() == 2 * 2048  # the copy before the loop


@pytest.fixture
def compiling(monkeypatch):
    """`compiling(figures)`: what the process that compiles answers; → the jobs that it got."""
    jobs = []

    def answers(figures):
        def ask(module, job, where):
            jobs.append(job)
            return dataclasses.asdict(figures) | {"rows": job["shape"]["rows"]}

        monkeypatch.setattr(isolated, "ask", ask)
        monkeypatch.setattr(topologies.Topology, "check_compiler", lambda self: None)
        return jobs

    return answers


def test_what_is_printed(gpt2, compiling, capsys):
    jobs = compiling(gpt2)
    command.plan_decode(families.config("gpt2"), "8x16", overrides=["mesh.tensor=1"], as_json=True)
    figures = json.loads(capsys.readouterr().out)
    assert figures["ratio"] == gpt2.ratio and figures["fits"] and figures["largest"] is None
    (job,) = jobs
    assert job["topology"] is None and job["shape"] == {"rows": 8, "length": 16, "encoder": None}
    assert configs.build(yaml.safe_load(job["config"])) == families.config("gpt2") and job["axes"] == {"tensor": 1}
    fault = {"name": "copy.1", "path": "while/body", "bytes": 4096, "count": 3}
    tpu = dataclasses.replace(gpt2, platform="tpu", cache_copies=[fault], limit=gpt2.total, cache_padded=8 * gpt2.limit)
    compiling(tpu)
    command.plan_decode(families.config("gpt2"), "8x16", "v5e:2x4")
    out = capsys.readouterr().out
    assert "8 rows: copy.1 copies the cache: 3 × 4.00 KiB (while/body)" in out and "tokens/s at the most" in out
    assert "largest batch: 8 rows" in out and jobs[-1]["topology"] == "v5e:2x4"
    compiling(dataclasses.replace(tpu, total=tpu.total + 2**30, cache_padded=2**40))
    with pytest.raises(UserError, match=r"--decode 8x16 does not fit: 1\.00 GiB too much; no batch"):
        command.plan_decode(families.config("gpt2"), "8x16", "v5e:2x4")


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "tensor"), grids.cases([("v5e:1x1", 1), ("v5e:2x2", 4)], ("v5e:2x2", 4)))
def test_a_program_for_a_tpu_with_no_tpu(topology, tensor):
    pytest.importorskip("libtpu")
    sizes = {"dtype": "auto", "vocab_size": 2048, "embed_dim": 512, "mlp_dim": 1024, "heads": 4, "layers": 3}
    config = families.config("llama", model=sizes)
    found = decode.measure(config, Target(topology), Shape(32, 512), {})
    assert found.mesh["tensor"] == tensor and found.dtype == "bfloat16" and found.platform == "tpu"
    assert found.cache == 2 * 2 * 3 * 32 * 4 * 512 * 128 // tensor == found.cache_padded
    assert found.cache_copies == [] and found.gathered_tables == []
    assert 0.5 < found.ratio < 1.15 and found.traffic <= found.traffic_padded
