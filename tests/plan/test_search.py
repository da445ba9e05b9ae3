"""Search and advice under a made-up compiler: temporaries shrink with the rows at a time and with what is kept."""

import dataclasses
import json
import re

import pytest

from jaxpt import config as configs
from jaxpt.config import AXES
from jaxpt.errors import UserError
from jaxpt.parallel import mesh as meshes
from jaxpt.plan import command, program, search, show, topologies
from jaxpt.plan.program import Target
from tests import families
from tests.plan.test_roofline import MEASURED

GIB = 2**30
KEPT = {"none": 1.0, "dots": 0.7, "names": 0.5, "full": 0.2}


@pytest.fixture
def compiler(monkeypatch):
    """`compiler(state, temporaries)` in GiB, on one device and for all rows; → the settings that were compiled."""

    def put(state, temporaries):
        seen = []

        def measure(config, where, phase=0):
            mesh, of_phase = {axis: getattr(config.mesh, axis) for axis in AXES}, configs.at_phase(config, phase).data
            devices = topologies.parse(where.topology, where.slices).size
            known = mesh["fsdp"] * mesh["tensor"]
            mesh["data"] = devices // known if mesh["data"] == -1 else mesh["data"]
            if known * mesh["data"] != devices:
                raise UserError("mesh.data: must multiply")
            meshes.between(mesh, where.slices)
            seen.append((mesh["data"], mesh["fsdp"], mesh["tensor"], config.model.remat, config.train.grad_accum_steps))
            rows = mesh["data"] * mesh["fsdp"] * config.train.grad_accum_steps
            parts = dict.fromkeys(show.PARTS, 0) | {"parameters": int(state * GIB / known)}
            share = of_phase.batch_size * of_phase.length / (config.data.batch_size * config.data.length)
            parts["temporaries"] = int(temporaries * share * GIB / rows / mesh["tensor"] * KEPT[config.model.remat])
            flops = int(1e15 * (1 + (1 - KEPT[config.model.remat]) / 3))
            return dataclasses.replace(
                MEASURED, phase=phase, rows=of_phase.batch_size, mesh=mesh, devices=devices, memory=parts,
                total=sum(parts.values()), model_flops=int(1e15), program_flops=flops, collectives=[],
                buffers=[{"name": "forward: scores", "shape": "f32[64,64]", "bytes": 3 * GIB}],
            )  # fmt: skip

        monkeypatch.setattr(program, "measure", measure)
        monkeypatch.setattr(topologies.Topology, "check_compiler", lambda self: None)
        return seen

    return put


def config(**sections):
    return families.config("bert", data={"batch_size": 512}, **sections)


def test_fewer_rows_at_a_time_are_the_first_advice(compiler):
    seen = compiler(state=2, temporaries=16 * 40)
    with pytest.raises(UserError) as error:
        command.plan(config(), "v5e:4x4")
    assert "42.00 GiB a device, 15.75 GiB there are, 26.25 GiB too much" in str(error.value)
    assert "forward: scores f32[64,64] of 3.00 GiB; train.grad_accum_steps=4 fits, with 3.75 GiB to spare" in str(
        error.value
    )
    assert len(seen) == 2  # the estimate was right at once


def test_a_state_that_is_too_large_is_cut_over_the_devices(compiler):
    compiler(state=40, temporaries=16 * 2)
    with pytest.raises(UserError, match=r"mesh\.data=1 mesh\.fsdp=16 fits, with 11\.25 GiB to spare"):
        command.plan(config(), "v5e:4x4")


def test_a_state_that_is_too_large_is_cut_inside_of_each_slice(compiler):
    compiler(state=40, temporaries=32 * 2)
    with pytest.raises(UserError, match=r"mesh\.data=2 mesh\.fsdp=16 fits, with 11\.25 GiB to spare"):
        command.plan(config(), "v5e:4x4", 2)


def test_fewer_rows_beside_a_state_that_is_cut_over_the_devices(compiler):
    """What a device has left for the rows is counted after the cut."""
    compiler(state=40, temporaries=16 * 200)
    with pytest.raises(UserError, match=r"mesh\.data=1 mesh\.fsdp=16 train\.grad_accum_steps=4 fits, with 3\.25 GiB"):
        command.plan(config(model={"remat": "full"}), "v5e:4x4")


def test_one_row_at_a_time_is_tried_where_nothing_else_can_be_lowered(compiler):
    compiler(state=2, temporaries=16 * 2500)
    with pytest.raises(UserError, match=r"tried without help: train\.grad_accum_steps=32; the nearest miss is"):
        command.plan(config(model={"remat": "full"}), "v5e:4x4")


def test_the_advice_holds_in_all_phases(compiler):
    """Eight microbatches fit the 512 rows of phase 1; the 64 of phase 2 do not divide by 16 × 8."""
    seen = compiler(state=2, temporaries=16 * 96)
    recipe = config(train={"phases": [{"steps": 5}, {"set": {"data.batch_size": 64}}]})
    answer = r"^phase 1 does not fit: .*; model\.remat=full train\.grad_accum_steps=4 fits, with 8\.95 GiB"
    with pytest.raises(UserError, match=answer):
        command.plan(recipe, "v5e:4x4")
    assert {accumulation for *_, accumulation in seen} == {1, 4}


def test_where_nothing_helps_it_says_so(compiler):
    seen = compiler(state=900, temporaries=16)
    with pytest.raises(UserError) as error:
        command.plan(config(), "v5e:4x4")
    assert "tried without help: mesh.data=1 mesh.fsdp=16; " in str(error.value)
    assert re.search(
        r"the nearest miss is mesh.data=1 mesh.fsdp=16 .*, 40\.\d+ GiB too much; it needs", str(error.value)
    )
    assert len(seen) <= 1 + search.NEAREST


def test_json_has_all_figures_and_the_advice(compiler, capsys):
    compiler(state=2, temporaries=16)
    command.plan(config(train={"phases": [{"steps": 5}, {}]}), "v5e:4x4", as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["fits"] and report["advice"] is None and len(report["phases"]) == 2
    assert report["phases"][1]["bound"]["by"] == "FLOPs"
    assert report["cost"]["dollars"] == pytest.approx(report["cost"]["chip_hours"] * 1.2)


def test_what_does_not_fit_costs_nothing(compiler, capsys):
    compiler(state=900, temporaries=16)
    with pytest.raises(UserError):
        command.plan(config(), "v5e:4x4")
    out = capsys.readouterr().out
    assert "DOES NOT FIT" in out and "chip-hours" not in out and "libtpu 0.0.52" in out


def test_tables_name_what_was_assumed(compiler, capsys):
    compiler(state=2, temporaries=16)
    command.plan(config(), "v5e:4x4", shardings=True, price=9.5)
    out = capsys.readouterr().out
    assert "bounded by FLOPs" in out and "$9.50 a chip-hour (--price)" in out and "forward: scores" in out


def test_a_large_parameter_left_whole_is_a_warning_that_says_what_to_change(capsys):
    placed = {
        "name": "embed/table",
        "shape": [512, 64],
        "axes": ["vocab", "embed"],
        "placement": [None, None],
        "bytes": 9,
    }
    report = {"model": "bert", "objective": "masked_lm", "where": "v5e:4x4", "remat": "none", "grad_accum_steps": 1}
    changed = dataclasses.replace(MEASURED, placements=[placed], large_replicated_params=["embed/table"])
    phase = dataclasses.asdict(changed)
    show.plan({**report, "phases": [phase]}, shardings=True)
    out = capsys.readouterr().out
    assert "warning: embed/table is fully replicated" in out
    assert "mesh.rules.vocab=[fsdp] would shard it" in out and "512×64" in out


def test_a_model_without_matrix_products_has_no_share_of_them(capsys):
    """GloVe: FLOPs are not counted, and the rest is shown."""
    report = {"model": "glove", "objective": "glove", "where": "v5e:4x4", "remat": "none", "grad_accum_steps": 1}
    bound = {"by": "HBM", "seconds": 1.0, "mfu": 0.0, "estimate": None}
    bound |= {part: {"FLOPs": 0.0, "HBM": 1.0, "ICI": 0.0, "DCN": 0.0} for part in ("times", "shares")}
    phase = dataclasses.asdict(dataclasses.replace(MEASURED, model_flops=0)) | {"bound": bound}
    show.plan({**report, "phases": [phase]})
    out = capsys.readouterr().out
    assert "taken / needed" not in out and "MFU" not in out and "memory of a device" in out


def test_a_mixture_says_what_tokens_cost_and_which_imbalance_fits(capsys):
    report = {"model": "t5", "objective": "span_corruption", "where": "v5e:4x4", "remat": "none", "grad_accum_steps": 1}
    sent = [{**one, "has_tokens": one["network"] == "DCN"} for one in MEASURED.collectives]
    phase = dataclasses.asdict(dataclasses.replace(MEASURED, imbalance=64.0, collectives=sent))
    show.plan({**report, "phases": [phase]})
    out = capsys.readouterr().out
    assert re.search(r"tokens to experts and back +95\.37 MiB", out)
    assert re.search(r"imbalance of experts that fits +any, up to 64 × the mean", out)


def test_a_recipe_names_its_slice(compiler, capsys):
    seen = compiler(state=2, temporaries=16)
    recipe = config(plan={"topology": "v5e:4x4", "slices": 2})
    for given in ((None, None), ("v5e:2x2", None), (None, 4)):
        command.plan(recipe, *given)
    assert [data for data, *_ in seen] == [32, 4, 64]


def test_search_ranks_what_fits_by_the_least_time_of_a_step(compiler, capsys):
    seen = compiler(state=2, temporaries=16 * 40)
    found = search.search(config(), Target("v5e:4x4"), topologies.parse("v5e:4x4"), limit=12)
    assert len(found) == len(seen) <= 12
    assert found[0].measured.fits and "bounds it" in found[0].reason
    assert [t.seconds for t in found] == sorted(t.seconds for t in found)
    assert {(fsdp, tensor) for _, fsdp, tensor, *_ in seen} >= {(1, 1), (16, 1), (8, 2)}


@pytest.mark.parametrize(
    ("mesh", "tried"),
    [
        ({"tensor": 4}, True),
        ({"tensor": 4, "preset": "megatron"}, False),
        ({"tensor": 4, "preset": "replicated"}, False),
        ({"tensor": 4, "rules": {"residual_length": ["context"]}}, False),
    ],
)
def test_search_tries_the_megatron_preset_once_where_it_changes_something(compiler, mesh, tried):
    compiler(state=2, temporaries=16 * 40)
    found = search.search(config(mesh=mesh), Target("v5e:4x4"), topologies.parse("v5e:4x4"), limit=12)
    of_preset = [t for t in found if t.settings.get("mesh.preset") == "megatron" and "model.remat" not in t.settings]
    assert len({t.settings["mesh.fsdp"] for t in of_preset}) == tried
    assert all(t.settings["mesh.tensor"] > 1 for t in of_preset)


def test_search_tries_half_of_a_slice_for_widths_that_all_devices_do_not_divide(compiler):
    seen = compiler(state=2, temporaries=16)
    search.search(config(), Target("v5e:8x8"), topologies.parse("v5e:8x8"), limit=30)
    assert {data for data, fsdp, tensor, *_ in seen if fsdp == 32 and tensor == 1} == {2}


def test_search_goes_by_the_batch_of_the_last_phase(compiler):
    """It compiles that one: 8 rows do not divide over 16 devices, 64 do."""
    seen = compiler(state=2, temporaries=16)
    phases = {"phases": [{"steps": 1}, {"set": {"data.batch_size": 64}}]}
    recipe = families.config("bert", data={"batch_size": 8}, train=phases)
    search.search(recipe, Target("v5e:4x4"), topologies.parse("v5e:4x4"), limit=30)
    assert any(data * fsdp == 16 for data, fsdp, *_ in seen)


def test_what_a_search_finds_is_compiled_in_the_other_phases(compiler, capsys):
    """It exited with 0 where phase 1, with longer rows, did not fit."""
    recipe = config(train={"phases": [{"steps": 5}, {"set": {"data.length": 16}}]})
    seen = compiler(state=2, temporaries=16 * 12)
    command.plan(recipe, "v5e:4x4", searching=1)
    assert "step of phase 2" in capsys.readouterr().out and len(seen) == 2
    compiler(state=2, temporaries=16 * 24)
    with pytest.raises(UserError, match=r"^mesh\.data=16 .* fits phase 2, but not phase 1: 10\.25 GiB too much; plan"):
        command.plan(recipe, "v5e:4x4", searching=1)


def test_search_prints_what_differs_from_the_recipe(compiler, capsys):
    compiler(state=2, temporaries=16)
    command.plan(config(mesh={"data": 1, "fsdp": 16}), "v5e:4x4", searching=3)
    out = capsys.readouterr().out
    assert "mesh.data=16 mesh.fsdp=1" in out  # not hidden: the recipe has others
    assert "rows a device" in out and "bounds it" in out


def test_targets_beyond_a_position_table_are_refused(compiler, tmp_path):
    """As by a run: they would be clipped to its last row."""
    seen = compiler(state=2, temporaries=16)
    sizes = {"vocab_size": 200, "layers": 1, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "max_positions": 32}
    objective = {"kind": "salient_spans", "targets_length": 64}
    tree = families.tree("t5", run_dir=str(tmp_path / "run"))
    recipe = configs.build(tree | {"model": {"kind": "bart", **sizes}, "objective": objective})
    with pytest.raises(UserError, match="targets of 64 tokens are beyond the position table"):
        command.plan(recipe, "v5e:4x4")
    assert not seen


def test_search_wants_a_topology():
    with pytest.raises(UserError, match="want a --topology"):
        command.plan(config(), searching=3)
