"""The benchmark of decoding: arguments, rounds within a budget, a side that fails, and small models on every side."""

import doctest
import importlib
import json
import sys

import pytest

from tests.config.helpers import ROOT


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("bench_generate")
    sys.modules.pop("bench_generate", None)


class Machine:
    """Sides in the place of models: a clock, and what each run costs."""

    def __init__(self, bench, monkeypatch, **costs):
        self.now, self.runs, self.costs, self.failing = 0.0, [], costs, {}
        monkeypatch.setattr(bench, "clock", lambda: self.now)
        monkeypatch.setattr(bench, "ours", lambda *_: self.prepare("jaxpt"))
        monkeypatch.setattr(bench.Peers, "side", lambda _, side: self.prepare(side))

    def prepare(self, side):
        def run():
            self.runs.append(side)
            self.now += self.costs[side]
            if self.failing.get(side) == self.runs.count(side):
                raise RuntimeError("CUDA error: an illegal memory access\nmore lines")

        return run


def test_rounds_are_in_turn_and_the_best_other_side_is_named(bench, monkeypatch):
    machine = Machine(bench, monkeypatch, **{"jaxpt": 2.0, "transformers": 4.0, "transformers-static": 3.0})
    sides = list(machine.costs)
    found = bench.measured("gpt2", 4, sides, "float32", rounds=3, new=10)
    assert machine.runs == sides * 4  # the first ones warm up
    rates = {side: one["tokens_per_second"] for side, one in found["sides"].items()}
    assert rates == pytest.approx({"jaxpt": 20, "transformers": 10, "transformers-static": 40 / 3})
    assert found["ratio"] == pytest.approx(1.5) and found["rounds_run"] == 3
    assert [one["seconds"] for one in found["sides"].values()] == [[2.0] * 3, [4.0] * 3, [3.0] * 3]
    assert found["wall_seconds"] == 4 * 9 and "1.50 × the tokens per second" in bench.table(found)
    json.dumps(found)


def test_a_side_that_fails_is_recorded_and_the_others_are_measured(bench, monkeypatch):
    machine = Machine(bench, monkeypatch, **{"jaxpt": 1.0, "transformers": 2.0, "transformers-static": 1.0})
    for side, at in (("transformers", 1), ("transformers", 3), ("jaxpt", 3)):
        machine.runs, machine.failing = [], {side: at}
        found = bench.measured("t5", 1, list(machine.costs), "float32", rounds=3)
        assert found["sides"].pop(side) == {"error": "RuntimeError: CUDA error: an illegal memory access"}
        assert all(len(one["seconds"]) == 3 for one in found["sides"].values()) and machine.runs.count(side) == at
        assert (found["ratio"] is None) == (side == "jaxpt")
        found["sides"][side] = {"error": "…"}
        assert f"{side}" in bench.table(found)


def test_a_budget_ends_rounds_and_preparation(bench, monkeypatch):
    machine = Machine(bench, monkeypatch, jaxpt=2.0, transformers=3.0)
    found = bench.measured("gpt2", 1, ["jaxpt", "transformers"], "float32", rounds=9, budget=12)
    assert found["rounds_run"] == 2 and "2 rounds of 9: the budget was used up" in bench.table(found)
    machine.runs = []
    found = bench.measured("gpt2", 1, ["jaxpt", "transformers"], "float32", rounds=9, budget=1)
    assert machine.runs == ["jaxpt"] * 2 and found["rounds_run"] == 1
    assert found["sides"]["transformers"] == {"error": "not prepared: the budget of 1 s was used up before"}


def test_what_is_run_goes_by_the_device(bench, monkeypatch, tmp_path, capsys):
    ran = []

    def measured(case, batch, sides, dtype, rounds, budget, **options):
        ran.append((case, batch, len(sides), dtype))
        sides = {side: {"error": "x"} if case == "llama" else {} for side in sides}
        return {"case": case, "sides": sides}

    monkeypatch.setattr(bench, "measured", measured)
    monkeypatch.setattr(bench, "table", str)
    assert bench.main([]) == 0
    assert ran == [(case, batch, 3, "float32") for case in ("gpt2", "t5") for batch in (1, 8)]
    ran.clear()
    monkeypatch.setattr(bench, "_device", lambda: {"platform": "gpu", "device": "NVIDIA H100 80GB HBM3"})
    assert bench.main(["--out", str(tmp_path / "x.json")]) == 1
    assert ran == [(case, batch, 4, "bfloat16") for case in ("gpt2", "t5", "llama") for batch in (1, 16)]
    assert [one["case"] for one in json.loads((tmp_path / "x.json").read_text())] == [case for case, *_ in ran]
    ran.clear()
    words = ["--cases=t5", "--batches=2,4", "--sides=jaxpt,transformers", "--dtype=float32"]
    assert bench.main(words) == 0 and ran == [("t5", 2, 2, "float32"), ("t5", 4, 2, "float32")]


@pytest.mark.parametrize(
    "word, message",
    [
        (
            "--sides=jaxpt,torch",
            "no side 'torch'; there are jaxpt, transformers, transformers-static, transformers-comp",
        ),
        ("--cases=gpt4", "no case 'gpt4'; there are gpt2, t5, llama"),
        ("--batches=1,0", "expected a positive integer, got '0'"),
        ("--budget=0", "expected a number above 0, got '0'"),
        ("--budget=nan", "expected a number above 0, got 'nan'"),
        ("--layers=few", "expected a positive integer, got 'few'"),
        ("--dtype=float64", "--dtype: 'float64'"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(bench, word, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main([word])
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and message in told and told.count("\n") == 1


def test_cases_are_models_of_configs(bench):
    for case, layers, embed_dim in (("gpt2", 12, 768), ("t5", 12, 768), ("llama", 16, 2048)):
        model = bench.model_config(case, "bfloat16")
        assert (model.layers, model.embed_dim, model.dtype) == (layers, embed_dim, "bfloat16")
    assert bench.model_config("llama", "float32", 1).layers == 1
    assert doctest.testmod(bench).failed == 0


@pytest.mark.parity
def test_transformers_generates_beside_jaxpt(bench):
    sides = ["jaxpt", "transformers", "transformers-static"]
    found = bench.measured("t5", 2, sides, "float32", 1, prompt=8, new=4, layers=1)
    assert found["ratio"] > 0 and not any("error" in one for one in found["sides"].values())
