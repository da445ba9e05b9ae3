"""The evaluators of a phase."""

import contextlib
import doctest
import json
from types import SimpleNamespace

import pytest

from jaxpt.data import datasets
from jaxpt.errors import UserError
from jaxpt.train import evaluation, loop, state
from jaxpt.train.evaluators import Result
from tests import fine_tuning


def test_evaluators_that_a_signal_stopped_know_what_the_others_found():
    """In the next process, by what is kept beside the checkpoint."""
    evals = [SimpleNamespace(called=name, kind=name) for name in ("loss", "double")]

    def evaluators():
        new = evaluation.Evaluators(SimpleNamespace(config=SimpleNamespace(evals=evals)), None)
        new._ready = {
            "loss": lambda params, earlier, stop: Result({"mean": 0.1}),
            "double": lambda params, earlier, stop: Result(2 * earlier["loss/mean"]),
        }
        return new

    before, now, added = evaluators(), evaluators(), []
    assert [name for name, _ in before.run(evals[:1], None)] == ["loss"]
    meta = json.loads(json.dumps(before.progress(evals)))
    assert meta == {"missed": ["double"], "measured": {"loss/mean": 0.1}}
    run = SimpleNamespace(
        config=SimpleNamespace(evals=evals), pending_evaluators=meta["missed"],
        phase=SimpleNamespace(evaluators=now, setup=SimpleNamespace(use=contextlib.nullcontext)),
        checkpoints=SimpleNamespace(meta=lambda step: meta, add_figures=lambda *given: added.append(given)),
        _evaluate=lambda current, metrics, pending, stops: dict(now.run(pending, None)),
    )  # fmt: skip
    loop.Run._evaluate_pending(run, SimpleNamespace(step=4), None)
    assert added == [(4, {"loss/mean": 0.1, "double": 0.2})] and list(now.found) == ["double"]
    assert now.progress(evals[1:]) == {"missed": [], "measured": {}}
    now.forget()
    assert now.measured == {}


@pytest.mark.parametrize(
    ("settings", "metrics", "line"),
    [
        ({}, {"classification": 0.5, "target_loss": 0.5, "accuracy": 0.75}, "loss 0.5000  accuracy 0.7500"),
        ({"class_weights": [1, 2]}, {"classification": 0.5, "target_loss": 0.4}, "loss 0.5000  target_loss 0.4000"),
        ({"extract": True, "lm_loss": 0.5}, {"classification": 0.3, "lm": 0.4, "target_loss": 0.3},
         "loss 0.5000  classification 0.3000  lm 0.4000  target_loss 0.3000"),
    ],
)  # fmt: skip
def test_a_loss_that_has_several_names_is_said_once(settings, metrics, line, tmp_path):
    config = fine_tuning.recipe(tmp_path, of="gpt2", objective={"kind": "classification", **settings})
    evaluators = evaluation.Evaluators(SimpleNamespace(config=config), None)
    assert evaluators.lines("validation", Result({"loss": 0.5, **metrics})) == [f"validation: {line}"]


def test_examples_in_docstrings():
    assert doctest.testmod(evaluation).failed == 0


@pytest.mark.slow
def test_a_best_metric_that_the_held_out_loss_has_not_is_refused_before_the_first_step(tmp_path):
    for metric in ("validation/target_loss", "validation/acuracy"):
        config = fine_tuning.recipe(tmp_path, evals=[{"kind": "heldout"}], checkpoint={"best_metric": metric})
        data = datasets.prepare(config, report=lambda line: None)
        evaluators = evaluation.Evaluators(state.setup(config).for_evaluation(), data)
        if metric == "validation/target_loss":
            evaluators.compile()
            continue
        with pytest.raises(UserError) as error:
            evaluators.compile()
        assert str(error.value) == (
            "checkpoint.best_metric: validation/acuracy: validation measures no acuracy; did you mean accuracy?"
        )
