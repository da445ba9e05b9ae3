"""`jaxpt eval` without tasks: which sets are scored."""

import contextlib
import types
from pathlib import Path

import pytest

from jaxpt.cli import evaluate as command
from jaxpt.errors import UserError
from jaxpt.train import state, teachers
from jaxpt.train import step as steps
from jaxpt.train.evaluators import Details, Result
from tests import families, fine_tuning


@pytest.fixture
def evaluated(monkeypatch):
    """(configuration, overrides, metrics of the checkpoint) → what is returned, and what the test set was scored by."""

    def evaluate(config, overrides, saved):
        scored = []

        def score(params, measured, stop):
            scored.append((params, measured))
            return Result({"accuracy": 0.5}, ("test: accuracy 0.5000",), lambda *_: Details(("confusions",), ()))

        def run(missing, params):
            evaluators.found["task"] = Result({"temperature": 2.0})
            yield "task", evaluators.found["task"]

        tests = {"test": score}
        evaluators = types.SimpleNamespace(found={}, missing=list, run=run, of_task=tests.get)
        setup = types.SimpleNamespace(teachers=True)
        setup.for_evaluation = lambda: setup
        checkpoints = types.SimpleNamespace(
            restore_params=lambda *_: "params", metrics=lambda step: saved, meta=lambda step: {}
        )
        stubs = (
            (command.recipes, "load", config), (command.processes, "start", None), (steps, "check", None),
            (command.checkpoint, "find", (Path("run"), 4)), (command.checkpoint, "is_primary", True),
            (command.checkpoint, "Checkpoints", contextlib.nullcontext(checkpoints)),
            (command.preparing, "prepare", types.SimpleNamespace(validation=[])), (state, "setup", setup),
            (teachers, "attach_same", setup), (command.evaluation, "Evaluators", evaluators),
        )  # fmt: skip
        for module, name, value in stubs:
            monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
        return command.evaluate("run", overrides), scored

    return evaluate


@pytest.mark.parametrize("saved", [{"task/temperature": 3.0}, {}])
def test_a_test_set_that_is_named_is_scored(tmp_path, evaluated, capsys, saved):
    """By what was chosen on the validation set; that of the recipe is for the end of the run."""
    path = fine_tuning.write(tmp_path / "test.jsonl", fine_tuning.rows(8))
    without, config = (fine_tuning.recipe(tmp_path, data={"test_path": of}) for of in (None, path))
    found, scored = evaluated(config, [f"data.test_path={path}"], saved)
    assert found == {"task/temperature": 2.0, "test/accuracy": 0.5}
    assert scored == [("params", saved or {"task/temperature": 2.0})]
    assert capsys.readouterr().out.endswith("test: accuracy 0.5000\nconfusions\n")
    assert evaluated(config, ["seed=0"], saved) == ({"task/temperature": 2.0}, [])
    assert evaluated(without, ["data.test_path=null"], saved) == ({"task/temperature": 2.0}, [])


def test_a_test_set_wants_a_task(evaluated):
    config = families.config("gpt2", data={"test_path": "b.txt"}, run_dir="run")
    assert evaluated(config, [], {})[1] == []
    with pytest.raises(UserError, match=r"data\.test_path: is for recipes with a task; `jaxpt eval RUN data\.valid"):
        evaluated(config, ["data.test_path=b.txt"], {})
