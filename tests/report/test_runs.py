"""Runs are listed and compared from their directories alone."""

import json

import pytest
import yaml

from jaxpt import cli
from jaxpt.errors import UserError
from jaxpt.report.recipes import recipes
from jaxpt.report.runs import compare, runs
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


def test_what_differs(made, capsys):
    settings, metrics = compare([str(made / "a"), str(made / "of" / "b")])
    assert settings == {"optimizer.learning_rate": ["0.001", "0.01"]}
    assert metrics["validation/loss"] == [2.0, 2.5] and metrics["step"] == [10, 7]
    assert metrics["test/accuracy"] == [0.5, None]
    assert cli.main(["compare", str(made / "a"), str(made / "of" / "b")]) == 0
    assert "+0.5" in capsys.readouterr().out
    assert cli.main(["compare", str(made / "a"), str(made)]) == 2
    assert "is no run" in capsys.readouterr().err


def test_recipes_by_a_word(capsys):
    assert {"configs/smoke/t5_tiny.yaml"} <= {one.path for one in recipes("t5_tiny")}
    assert all(one.line for one in recipes()), "each recipe says what it is"
    assert cli.main(["recipes", "bert_tny"]) == 2
    assert "bert_tiny" in capsys.readouterr().err
