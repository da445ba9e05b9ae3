"""Early stopping through stops: the evaluation at the step of a stop is made up for, and counts like any other."""

import json
import shutil
import signal

import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.train import evaluation, evaluators, loop
from jaxpt.train.evaluators import Result
from tests import families, grids
from tests.train.test_trainable import TEXT

SETTINGS = ("optimizer.learning_rate=1e-30", "train.patience=2")


def seen(given, meta, values):
    """(Is it over after each of some evaluations?, what is saved at the end)"""
    patience = evaluation.Patience(given, meta)
    over = []
    for value in values:
        patience.see({"validation": Result({"loss": value, "accuracy": 0.0})}, 0)
        over.append(patience.is_over)
    return over, json.loads(json.dumps(patience.saved()))


@pytest.mark.parametrize(
    ("steps", "every", "wanted"), [(990, None, 99), (100, None, 10), (19, None, 1), (9, None, 1), (100, 7, 7)]
)
def test_a_tenth_of_the_run_lies_between_evaluations(steps, every, wanted):
    config = families.config("bert", train={"steps": steps, "eval_every": every})
    assert evaluators.default_every(config) == wanted


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_count_goes_on_where_it_was_saved(mode):
    """Whatever the evaluation between which the run is stopped."""
    sign = 1 if mode == "min" else -1
    values = [sign * x for x in (3.0, 2.0, 2.5, float("nan"), 1.9, 1.9, 2.0, 2.1)]
    given = families.config("gpt2", train={"patience": 3}, checkpoint={"best_mode": mode})
    whole, saved = seen(given, None, values)
    assert whole == [False] * 7 + [True] and saved == {"patience": [sign * 1.9, 3, "validation/loss", mode, 0]}
    for at in range(len(values)):
        first, kept = seen(given, None, values[:at])
        later, last = seen(given, kept, values[at:])
        assert first + later == whole and last == saved


def test_a_count_of_another_metric_or_mode_is_left_out():
    """Of an earlier version, the settings beside the checkpoint say which one it is of."""
    given = families.config("gpt2", train={"patience": 3}, checkpoint={"best_mode": "min"})
    _, saved = seen(given, None, (3.0, 3.5, 3.5))
    earlier = {"patience": saved["patience"][:2], "config": configs.dump(given)}
    assert seen(given, earlier, (3.5,))[0] == seen(given, {"patience": [3.0, 2]}, (3.5,))[0] == [True]
    assert seen(given, {"patience": saved["patience"][:4]}, (3.5,))[0] == [True]
    for settings in ({"best_mode": "max"}, {"best_metric": "validation/accuracy", "best_mode": "max"}):
        other = families.config("gpt2", train={"patience": 3}, checkpoint=settings)
        for meta in (saved, earlier):
            assert seen(other, meta, (3.5,))[0] == [False]


@pytest.mark.parametrize("stop", [None, 1, 2, 3, 4])
def test_each_phase_counts_anew(stop):
    """Its figures are of other texts; wherever the run is stopped."""
    given = families.config("gpt2", train={"patience": 3})
    patience, over = evaluation.Patience(given, None), []
    for number, (loss, start) in enumerate([(1.0, 0), (1.1, 0), (2.0, 4), (2.1, 4), (2.1, 4), (2.1, 4)]):
        if number == stop:
            patience = evaluation.Patience(given, json.loads(json.dumps(patience.saved())))
        patience.see({"validation": Result({"loss": loss})}, start)
        over.append(patience.is_over)
    assert over == [False] * 5 + [True]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe whose run ends after two evaluations without a better one: at step 6 of 20."""
    folder = tmp_path_factory.mktemp("patience")
    (folder / "text.txt").write_text(TEXT)
    tree = families.tree(
        "gpt2",
        model={"vocab_size": 300},
        data={"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.2,
              "length": 16},
        train={"steps": 20, "log_every": 1, "eval_every": 2},
        checkpoint={"keep_last": 9, "every": 1},
        log={"tensorboard": False},
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder


def run(folder, name, *overrides):
    return cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / name}", *SETTINGS, *overrides])


def losses(run_dir):
    found = map(json.loads, (run_dir / "metrics.jsonl").open())
    return [(x["step"], x["validation/loss"]) for x in found if "validation/loss" in x]


def stop(folder, name, at, *overrides):
    """A run that a signal stops when evaluators have forgotten `at` times, which they do after a step has asked."""
    calls, plain = [], evaluation.Evaluators.forget

    def counted(evaluators):
        calls.append(None)
        plain(evaluators)

    def leave(number):
        raise SystemExit(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation.Evaluators, "forget", counted)
        patch.setattr(loop.signals, "received", lambda: signal.SIGTERM if len(calls) >= at else None)
        patch.setattr(loop.signals, "leave", leave)
        with pytest.raises(SystemExit):
            run(folder, name, *overrides)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "steps"), grids.cases([("before", 20), ("during", 20), ("during", 4)], ("before", 20), ("during", 4))
)
def test_a_stop_at_an_evaluation_changes_nothing(folder, when, steps, capsys):
    """At a step in the middle, and at the last one."""
    if not (folder / "whole").exists():
        assert run(folder, "whole") == 0
    whole = losses(folder / "whole")
    assert [at for at, _ in whole] == [2, 4, 6]

    # Step 4 asks before it evaluates, and between batches.
    stop(folder, when, {"before": 3, "during": 4}[when], f"train.steps={steps}")
    assert [at for at, _ in losses(folder / when)] == [2]
    assert "stopped by a signal after step 4" in capsys.readouterr().out
    assert steps > 4 or run(folder, when, "train.steps=4", "evals=[]") == 0  # who was stopped may be gone
    assert run(folder, when, f"train.steps={steps}") == 0
    assert losses(folder / when) == [(at, loss) for at, loss in whole if at <= steps]
    ended = "train.patience: validation/loss did not improve in 2 evaluations" in capsys.readouterr().out
    assert ended == (steps == 20)
    assert run(folder, when, f"train.steps={steps}") == 0  # a finished run stays as it is
    assert losses(folder / when) == [(at, loss) for at, loss in whole if at <= steps]
    figures = [json.loads((folder / x / "checkpoints" / "4" / "metrics" / "metrics").read_text())
               for x in ("whole", when)]  # fmt: skip
    assert figures[0] == figures[1] and configs.load(folder / when).train.patience == 2
    shutil.rmtree(folder / when)


@pytest.mark.slow
def test_an_evaluation_that_was_stopped_at_the_end_of_a_phase_is_of_that_phase(folder):
    """Its texts have that phase's length."""
    options = ("train.phases=[{steps: 4}, {set: {data.length: 24}}]", "train.steps=6", "train.eval_every=4")
    assert run(folder, "phases", *options) == 0
    stop(folder, "stopped", 4, *options)
    assert losses(folder / "stopped") == []
    assert run(folder, "stopped", *options) == 0
    assert losses(folder / "stopped") == losses(folder / "phases")
    assert [at for at, _ in losses(folder / "phases")] == [4, 6]
    figures = [(folder / name / "checkpoints/4/metrics/metrics").read_text() for name in ("phases", "stopped")]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_a_run_has_patience_in_each_phase(folder):
    """Of the same texts here, so that no loss is a better one."""
    assert run(folder, "anew", "train.phases=[{steps: 4}, {}]") == 0
    assert [at for at, _ in losses(folder / "anew")] == [2, 4, 6, 8, 10]


@pytest.mark.slow
def test_an_evaluation_that_was_stopped_where_a_branch_begins_is_made_up_for(folder):
    """It is due at no such step."""
    if not (folder / "whole").exists():
        assert run(folder, "whole") == 0
    source = f"init_from={{path: {folder / 'whole'}, step: 3, state: true}}"
    options = (source, "train.eval_on_start=true", "train.steps=4")
    stop(folder, "branch", 0, *options)
    assert losses(folder / "branch") == []
    assert run(folder, "branch", *options) == 0
    assert [at for at, _ in losses(folder / "branch")] == [3, 4]


@pytest.mark.slow
def test_the_last_steps_are_logged_where_the_run_ends_between_two_log_lines(folder):
    assert run(folder, "between", "train.log_every=4") == 0
    found = [json.loads(line) for line in (folder / "between/metrics.jsonl").open()]
    assert [x["step"] for x in found if "train/loss" in x] == [1, 4, 6]
    receipt = json.loads((folder / "between/run.json").read_text())
    assert receipt["step"] == 6
    if not (folder / "whole").exists():
        assert run(folder, "whole") == 0
    assert receipt["train_loss"] == json.loads((folder / "whole/run.json").read_text())["train_loss"]
