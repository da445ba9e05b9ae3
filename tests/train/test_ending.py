"""What is said at the end of a run."""

import doctest
import types
from pathlib import Path

import pytest

from jaxpt import config as configs
from jaxpt.runtime import progress
from jaxpt.train import ending
from jaxpt.train.display import console
from jaxpt.train.evaluators import Details, Result
from tests import families, fine_tuning


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (4, "best checkpoint by task/accuracy: step 4; predict"),
        (None, "no checkpoint has task/accuracy; the last checkpoint: step 8; predict"),
    ],
)
def test_the_checkpoint_that_is_used_is_named(best, words, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(ending, "say", said.append)
    run = types.SimpleNamespace(
        config=fine_tuning.recipe(tmp_path),
        checkpoints=types.SimpleNamespace(best=lambda: best),
        phase=types.SimpleNamespace(evaluators=types.SimpleNamespace(of_task=lambda split: None)),
    )
    assert ending._best(run, types.SimpleNamespace(step=8)) == {"best_step": best or 8}
    (line,) = said
    assert line.startswith(words)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_quiet_run_says_what_it_reached(split, tmp_path, monkeypatch, capsys):
    """And no more: not the confusions, which with other lines are left out."""
    monkeypatch.setattr(progress.display, "quiet", True)
    monkeypatch.setattr(console, "quiet", True)
    has_test = {"test_fraction": 0.25} if split == "test" else {}
    details = Details(("confusions",), ({"id": 0},))
    result = Result({"accuracy": 0.5}, details=lambda *_: details, majority_baseline={"accuracy": 0.625})
    run = types.SimpleNamespace(
        config=fine_tuning.recipe(tmp_path, data=has_test),
        checkpoints=types.SimpleNamespace(
            best=lambda: 4, restore_params=lambda *_: None, metrics=lambda _: {"task/accuracy": 0.5}
        ),
        setup=types.SimpleNamespace(for_evaluation=lambda: None),
        phase=types.SimpleNamespace(evaluators=types.SimpleNamespace(of_task=lambda split: lambda *_: result)),
        run_dir=tmp_path,
    )
    assert ending._best(run, types.SimpleNamespace(step=8))["best_step"] == 4
    assert capsys.readouterr().out.splitlines() == [
        "best checkpoint by task/accuracy: step 4; predict, export and evaluation use it",
        f"{split}: accuracy 0.5000",
        "accuracy 0.5000 is no better than 0.6250, that of a trivial prediction; train longer",
    ]


@pytest.mark.parametrize(("best", "split", "evaluations"), [(8, "validation", 0), (4, "validation", 1), (8, "test", 1)])
def test_the_last_step_is_not_evaluated_twice(best, split, evaluations, tmp_path, monkeypatch):
    """Its outputs are there; what is chosen on the validation set counts for them."""
    monkeypatch.setattr(ending, "say", lambda line: None)
    of_test = {"test_path": fine_tuning.write(tmp_path / "test.jsonl", fine_tuning.rows(8))}
    config = fine_tuning.recipe(tmp_path, data=of_test if split == "test" else {})
    told, evaluated = [], []

    def result(params, measured):
        def details(params, measured):
            told.append(params)
            return Details((), ({"id": 1},))

        return Result({"accuracy": measured["task/accuracy"] + 1}, details=details)

    evaluators = types.SimpleNamespace(
        of_task=lambda split: lambda params, measured, stop: evaluated.append(params) or result(params, measured),
        rescored_task=lambda measured: result(None, measured),
    )
    run = types.SimpleNamespace(
        config=config, run_dir=tmp_path,
        checkpoints=types.SimpleNamespace(
            best=lambda: best, metrics=lambda step: {"task/accuracy": 0.5}, restore_params=lambda setup, step: step
        ),
        setup=types.SimpleNamespace(for_evaluation=lambda: None),
        phase=types.SimpleNamespace(evaluators=evaluators, setup=types.SimpleNamespace(to_model=lambda state: "now")),
    )  # fmt: skip
    (tmp_path / "evaluations").mkdir()
    found = ending._best(run, types.SimpleNamespace(step=8))
    assert found["test" if split == "test" else "best"] == {"accuracy": 1.5} and found["best_value"] == 0.5
    assert evaluated == [best] * evaluations and told == (evaluated or ["now"])
    assert (tmp_path / "evaluations" / f"predictions_{split}.jsonl").exists()


def test_examples_in_docstrings():
    assert doctest.testmod(ending).failed == 0


def test_a_run_from_prepared_batches_is_not_extended(monkeypatch):
    monkeypatch.setattr(ending, "_generates", lambda config, data: False)
    monkeypatch.setattr(ending, "example_prompt", lambda config, data: "The")

    def commands(source):
        config = types.SimpleNamespace(data=types.SimpleNamespace(source=source), task=None)
        return ending.next_commands(config, None, Path("r"), "train.steps=6")

    assert commands("text").splitlines() == [
        "to evaluate it: jaxpt eval r", "to see its data: jaxpt inspect r", "to extend it: jaxpt train r train.steps=6",
    ]  # fmt: skip
    assert commands("batches") == "to evaluate it: jaxpt eval r", "it has the batches of its steps alone"


@pytest.mark.parametrize(
    ("phases", "done", "is_over", "wanted"),
    [
        ([], 10, False, "train.steps=20"),
        ([{"steps": 4}, {}], 10, False, "train.steps=20"),
        ([{"steps": 4}, {"steps": 6}], 10, False, "train.steps=20 train.phases.1.steps=null"),
        ([{"steps": 10}], 10, False, "train.steps=20 train.phases.0.steps=null"),
        ([{"steps": 4}, {"steps": 6}], 7, True, "train.patience=null"),
        ([], 10, True, "train.patience=null train.steps=20"),
    ],
)
def test_the_command_that_extends_a_run_is_taken(tmp_path, phases, done, is_over, wanted):
    """Of the same run: its phases are those that it had."""
    config = families.config("gpt2", train={"phases": phases, "patience": 3}, run_dir=str(tmp_path))
    found = ending._extension(
        types.SimpleNamespace(config=config, patience=types.SimpleNamespace(is_over=is_over)), done
    )
    assert found == wanted
    (tmp_path / "config.yaml").write_text(configs.to_yaml(config))
    extended = configs.load(tmp_path, found.split())
    assert configs.differences(config, extended) == []
    assert (extended.train.steps, extended.train.patience) == (10 if done < 10 else 20, None if is_over else 3)


def test_a_model_that_is_better_than_a_trivial_prediction_has_no_line():
    for mode, value in (("max", 0.7), ("min", 0.5)):
        result = Result({"x": value}, majority_baseline={"x": 0.6})
        assert ending.trivial_lines(result, "x", mode) == []
        assert ending.trivial_lines(result, "x", {"max": "min", "min": "max"}[mode])
    assert ending.trivial_lines(Result({"x": 0.5}), "x", "max") == [], "no trivial prediction is known"
