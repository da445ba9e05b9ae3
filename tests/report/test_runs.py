"""Runs are listed and compared from their directories alone."""

import json
import sys

import pytest
import yaml

from jaxpt import cli
from jaxpt.errors import UserError
from jaxpt.report.recipes import recipes
from jaxpt.report.runs import compare, runs
from jaxpt.runtime import terminal
from jaxpt.train.lock import hold
from tests import families


def write(path, rate=1e-3, lines=(), **receipt):
    path.mkdir(parents=True)
    tree = families.tree("gpt2", optimizer={"learning_rate": rate})
    (path / "config.yaml").write_text(yaml.safe_dump(tree))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if receipt:
        (path / "run.json").write_text(json.dumps(receipt))


@pytest.fixture
def made(tmp_path):
    lines = [{"step": step, "time": 1e9 + step, "validation/loss": 3 - step / 10} for step in (5, 10)]
    write(tmp_path / "a", lines=lines, finished=True, step=10, parameters=7, test={"accuracy": 0.5})
    write(tmp_path / "of" / "b", rate=1e-2, lines=[*lines[:1], {"step": 7, "time": 2e9, "train/loss": 2.0}])
    return tmp_path


def test_runs_are_found_at_any_depth(made):
    with hold(made / "of" / "b"):
        second, first = runs(made)
    assert (first.path, first.status, first.step, first.loss) == (str(made / "a"), "finished", 10, 2.0)
    assert (first.metric, first.value) == ("test accuracy", 0.5)
    assert (second.status, second.step, second.loss, second.value) == ("running", 7, 2.5, 2.5)
    assert runs(made / "of")[0].status == "stopped"
    (made / "none").mkdir()
    with pytest.raises(UserError, match="no runs in it"):
        runs(made / "none")


def test_a_damaged_run_is_listed(made):
    (made / "a" / "run.json").write_text("{")
    assert {run.status.partition(":")[0] for run in runs(made)} == {"damaged", "stopped"}


def test_damaged_metrics_are_counted(made, capsys):
    with (made / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1\n{"step": 2, "crc32": "0"}\n')
    assert {run.path: run.damaged_lines for run in runs(made)} == {str(made / "a"): 2, str(made / "of" / "b"): 0}
    assert cli.main(["runs", str(made)]) == 0
    assert "lines of metrics: 2" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["compare", str(made / "a"), str(made / "of" / "b")]) == 0
    assert f"{made / 'a' / 'metrics.jsonl'}: 2 damaged lines are left out" in capsys.readouterr().err


def test_a_narrow_terminal_has_two_lines_for_a_run(made, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "FILE_WIDTH", 60)
    monkeypatch.chdir(made)
    assert cli.main(["runs", "."]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["of/b", "a"]
    assert all(len(line) <= 60 for line in lines)
    text = " ".join(lines[-2:])
    assert "causal_lm, finished, step 10" in text and "loss 2.0000, test accuracy 0.5000" in " ".join(text.split())


def test_names_are_no_codes_for_the_terminal(made, capsys):
    (made / "a").rename(made / "a\x1b[31m\nred\x9b")
    assert cli.main(["runs", str(made)]) == 0
    said = capsys.readouterr().out
    assert r"a\x1b[31m\nred\x9b" in said and all(line.isprintable() for line in said.splitlines())
    names = sorted(str(path.parent) for path in made.rglob("config.yaml"))
    assert cli.main(["compare", *names]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_what_differs(made, capsys):
    settings, metrics = compare([str(made / "a"), str(made / "of" / "b")])
    assert settings == {"optimizer.learning_rate": ["0.001", "0.01"]}
    assert metrics["validation/loss"] == [2.0, 2.5] and metrics["step"] == [10, 7]
    assert metrics["test/accuracy"] == [0.5, None]
    assert cli.main(["compare", str(made / "a"), str(made / "of" / "b")]) == 0
    assert "+0.5" in capsys.readouterr().out
    assert cli.main(["compare", str(made / "a"), str(made)]) == 2
    assert "is no run" in capsys.readouterr().err


OWN = "lab_not_to_run.mine"
"""A module that ends the process that imports it."""
PARTS = {
    "model": {"model": {"kind": OWN, "depth": 3}},
    "objective": {"objective": {"kind": OWN, "gamma": 0.5}},
    "objective in another": {"objective": {"kind": "distillation", "of": {"kind": OWN}, "teacher": "runs/a"}},
    "task of a mixture": {
        "task": {"kind": "mixture", "tasks": [{"kind": OWN, "name": "a"}, {"kind": OWN, "name": "b"}]},
        "objective": {"kind": "mixture"}, "evals": [{"kind": "heldout"}],
        "checkpoint": {"best_metric": "validation/loss"},
    },
    "optimizer": {"optimizer": {"kind": OWN, "power": [1, 2]}},
    "schedule": {"optimizer": {"schedule": {"kind": OWN}}},
    "evaluator": {"evals": [{"kind": "heldout"}, {"kind": OWN}]},
    "tokenizer": {"data": {"tokenizer": {"kind": OWN}}},
    "source": {"data": {"source": OWN}},
    "modules": {"data": {"modules": [OWN]}},
    "task": {
        "task": {"kind": OWN, "text": "text"}, "objective": {"kind": "classification"},
        "checkpoint": {"best_metric": "validation/loss"}, "evals": [{"kind": "heldout"}],
    },
    "class": {"model": {"kind": f"{OWN}.MyModel"}},
}  # fmt: skip


@pytest.fixture
def foreign(made, monkeypatch):
    """A function that gives run `a` other sections; what they name must not be imported."""
    (made / "code" / "lab_not_to_run").mkdir(parents=True)
    (made / "code" / "lab_not_to_run" / "__init__.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(made / "code")

    def make(sections):
        for path in (made / "a", made / "of" / "b"):
            tree = families.tree("gpt2", **sections)
            (path / "config.yaml").write_text(yaml.safe_dump(tree))
        return made / "a", made / "of" / "b"

    return make


@pytest.mark.parametrize("part", PARTS)
def test_what_reads_runs_imports_nothing_that_they_name(foreign, made, part, capsys):
    a, b = foreign(PARTS[part])
    (a / "checkpoints").mkdir()
    assert {run.status for run in runs(made)} == {"finished", "stopped"}
    assert cli.main(["compare", str(a), str(b)]) == 0
    assert cli.main(["verify", str(a)]) == 0
    assert cli.main(["report", str(a), str(b), "--out", str(made / "page.html")]) == 0
    assert "lab_not_to_run" not in sys.modules and "importing" not in capsys.readouterr().err


def test_values_of_a_part_that_is_not_run_are_compared(foreign):
    a, b = foreign(PARTS["model"])
    text = (b / "config.yaml").read_text()
    (b / "config.yaml").write_text(text.replace("depth: 3", "depth: 4"))
    assert compare([str(a), str(b)])[0] == {"model.depth": ["3", "4"]}
    assert {run.what for run in runs(a)} == {f"{OWN} · causal_lm"}


def test_what_runs_a_run_imports_what_it_names(foreign, made):
    a, _ = foreign(PARTS["model"])
    with pytest.raises(SystemExit, match="was imported"):
        cli.main(["eval", str(a)])


def test_one_run_that_cannot_be_read_does_not_end_the_list(made):
    (made / "a" / "metrics.jsonl").unlink()
    (made / "a" / "metrics.jsonl").mkdir()
    assert {run.status.partition(":")[0] for run in runs(made)} == {"damaged", "stopped"}


def test_recipes_by_a_word(capsys):
    assert {"configs/smoke/t5_tiny.yaml"} <= {one.path for one in recipes("t5_tiny")}
    assert all(one.line for one in recipes()), "each recipe says what it is"
    assert cli.main(["recipes", "bert_tny"]) == 2
    assert "bert_tiny" in capsys.readouterr().err
