"""The recipes' slices, and what their heads say of them."""

import dataclasses
import math
import re

import pytest

from jaxpt.config import AXES, at_phase, load, phase_starts
from jaxpt.errors import UserError
from jaxpt.plan import program, topologies
from tests.config.helpers import ROOT
from tests.plan.test_roofline import MEASURED
from tools import plan_recipes

PRETRAIN = ROOT / "configs" / "pretrain"
RECIPES = sorted(PRETRAIN.glob("*.yaml"))
OWN_DEVICES = {"distilbert", "elmo", "fasttext", "glove", "ulmfit", "word2vec"}
"""Made for no slice: a teacher is wanted to plan it, or it is trained on CPUs or one accelerator."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_a_slice_that_its_batch_and_width_divide_over(path):
    config = load(path)
    if path.stem in OWN_DEVICES:
        assert config.plan.topology is None
        return
    head = re.search(
        r"^# Plan: +(\S+), .* GiB: a step \S+ m?s \(\w+, MFU \d+%\).* at best; .* days, \$", path.read_text(), re.M
    )
    assert head and head[1] == config.plan.topology
    mesh = {axis: getattr(config.mesh, axis) for axis in AXES}
    rest = topologies.parse(config.plan.topology).size / math.prod(size for size in mesh.values() if size > 0)
    mesh = {axis: rest if size == -1 else size for axis, size in mesh.items()}
    for phase in range(len(phase_starts(config))):
        rows = at_phase(config, phase).data.batch_size
        assert rows % (mesh["data"] * mesh["fsdp"] * config.train.grad_accum_steps) == 0
    assert config.model.embed_dim % mesh["fsdp"] == 0


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe of two phases, and the phases that were compiled, under a made-up compiler."""
    path = tmp_path / "recipe.yaml"
    phases = "train: {steps: 10, phases: [{steps: 4}, {}]}\nplan: {topology: 'v5e:4x8'}"
    path.write_text(f"# A recipe.\n# Expected: nothing.\nbase: {ROOT}/configs/smoke/bert_tiny.yaml\n{phases}\n")
    seen = []

    def measure(config, where, phase):
        seen.append(phase)
        return dataclasses.replace(MEASURED, phase=phase, collectives=MEASURED.collectives[1:])

    monkeypatch.setattr(program, "measure", measure)
    return path, seen


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["plan_recipes.py", *map(str, words)])
    return plan_recipes.main()


def test_a_table_and_the_heads_of_the_recipes(recipe, monkeypatch, capsys):
    path, seen = recipe
    out = path.parent / "plans"
    assert run(monkeypatch, path, "--out", out, "--check") == 1  # its head says nothing yet
    assert run(monkeypatch, path, "--out", out, "--write") == 0
    assert (
        "# Plan:     v5e:4x8, 7.0 of 15.8 GiB: a step 11 ms (ICI, MFU 9%) and 11 ms (ICI, MFU 9%) at best; "
        in path.read_text()
    )
    assert re.search(r"^# Plan: .* days, \$\d+ \(libtpu 0\.0\.52\)$", path.read_text(), re.M)
    assert run(monkeypatch, path, "--out", out, "--check") == 0
    assert seen == [0, 1]  # what is the same is not compiled again
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| recipe")]
    assert "| recipe, phase 2 | v5e:4x8 | data 8 × fsdp 4 | 1 M | yes | 7.00 |" in rows[-1]
    assert "reduce 0.7, gather 0.4" in rows[-1] and rows[-1].endswith("| none | yes |")


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": 2**40},
        {"large_replicated_params": ["token_embed/table"]},
        {"copied_donated_buffers": [{"name": "state.params/up", "bytes": 2**20, "reason": "copy"}]},
    ],
)
def test_what_fails_a_gate_ends_with_code_1(recipe, monkeypatch, wrong):
    path, _ = recipe
    monkeypatch.setattr(program, "measure", lambda *_: dataclasses.replace(MEASURED, **wrong))
    assert run(monkeypatch, path, "--out", path.parent) == 1


def test_one_failure_does_not_lose_the_rest(recipe, monkeypatch, capsys):
    path, _ = recipe
    assert run(monkeypatch, path.parent / "none.yaml", path, "--out", path.parent / "plans") == 1
    assert "| none | " in (out := capsys.readouterr().out) and "| recipe | v5e:4x8" in out


def test_the_fewest_machines_that_a_recipe_fits_are_found(recipe, monkeypatch, capsys):
    path, _ = recipe
    tried = []

    def measure(config, where, phase):
        tried.append(where.topology)
        if where.topology == "h100:8":
            raise UserError("data.batch_size: does not divide")
        return dataclasses.replace(
            MEASURED, phase=phase, total=MEASURED.total << (8 if where.topology == "h100:2x8" else 0)
        )

    monkeypatch.setattr(program, "measure", measure)
    assert run(monkeypatch, path, "--least", "h100", "--out", path.parent / "plans") == 0
    assert tried == ["h100:8", "h100:2x8", "h100:2x8", "h100:4x8", "h100:4x8"]
    assert "| recipe | h100:4x8 |" in capsys.readouterr().out
    monkeypatch.setattr(plan_recipes, "MACHINES", (1,))
    assert run(monkeypatch, path, "--least", "h100", "--out", path.parent / "others") == 1
    assert "does not divide" in capsys.readouterr().out


def heads(path, report):
    """What the plan says, and what the recipe's head says of it."""
    return plan_recipes.line(report), re.search(r"^# Plan:.*$", path.read_text(), re.M)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["electra_small", "t5_small"])
def test_small_recipes_compiled_for_their_slices(name, tmp_path, monkeypatch):
    pytest.importorskip("libtpu")
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
    path = PRETRAIN / f"{name}.yaml"
    report = plan_recipes.planned(load(path), tmp_path / "report.json")
    assert all(map(plan_recipes.good, report["phases"]))
    planned, said = ([float(x) for x in re.findall(r"[\d.]+(?= of| ms)", text)] for text in heads(path, report))
    assert said == pytest.approx(planned, rel=0.1)  # libtpu's versions differ a little
