"""An evaluator of anyone's own: a module outside jaxpt, named in a recipe by its dotted path."""

import json
import re
import shutil
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxpt import cli
from jaxpt.errors import UserError
from jaxpt.evals.heldout import HeldOut
from jaxpt.train.evaluation import checked
from jaxpt.train.evaluators import Result
from tests import families
from tests.runs import assert_bit_equal, final

# F1 is no sum over a sum: all guesses have to be seen before it can be computed.
MODULE = '''
"""F1 of the guesses at masked positions, the mean over the words that occur there."""

from typing import Literal

import jax
import numpy as np

from jaxpt.decode.fill import candidates
from jaxpt.config import PositiveInt
from jaxpt.train.evaluators import Evaluator, Result
from jaxpt.evals.heldout import feeds
from jaxpt.parallel import compiler
from jaxpt.parallel.distributed import rows
from jaxpt.train.step import put


class F1(Evaluator):
    """Settings of the F1 of masked words."""

    kind: Literal["f1_lab.f1"] = "f1_lab.f1"
    words: PositiveInt = 10
    """So many of the most frequent words are looked at."""

    def prepare(self, setup, data):
        config, own = setup.config, rows(setup.mesh, setup.config.data.batch_size)

        def batches():
            return (put(batch, setup) for feed in feeds(config, data, own).values() for batch in feed)

        with setup.use():
            fill = compiler.jit(lambda params, batch: candidates(setup.network.bind(params), batch, 1)[0][..., 0])
            fill = fill.lower(setup.placed_shapes().params, next(batches())).compile()

        def evaluate(params, earlier, stop):
            guesses, truths = [], []
            for batch in batches():
                real = jax.device_get(batch["masked_weights"]) > 0
                guesses.append(jax.device_get(fill(params, batch))[real])
                truths.append(jax.device_get(batch["masked_targets"])[real])
                if stop():
                    return None
            guess, truth = np.concatenate(guesses), np.concatenate(truths)
            return Result(macro_f1(guess, truth, self.words), (f"F1 {macro_f1(guess, truth, self.words):.3f}",))

        return evaluate


def macro_f1(guess, truth, words):
    found, counts = np.unique(truth, return_counts=True)
    chosen = found[np.argsort(-counts, kind="stable")[:words]]
    hits = [((guess == word) & (truth == word)).sum() for word in chosen]
    return float(np.mean([2 * n / ((guess == w).sum() + (truth == w).sum()) for n, w in zip(hits, chosen)]))
'''
TEXT = "\n".join(f"document number {i} says that the cat sat on the mat and the dog ran home" for i in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe that names the module."""
    folder = tmp_path_factory.mktemp("extending")
    (folder / "f1_lab").mkdir()
    (folder / "f1_lab" / "__init__.py").write_text("")
    (folder / "f1_lab" / "f1.py").write_text(MODULE)
    (folder / "text.txt").write_text(TEXT)
    data = {"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.2}
    tree = families.tree(
        "bert", model={"vocab_size": 200, "layers": 1}, data=data | {"length": 16},
        objective={"next_sentence": False}, mesh={"data": 8},
        optimizer={"kind": "adamw", "learning_rate": 1e-2}, train={"steps": 6, "log_every": 1, "eval_every": 3},
        evals=[{"kind": "heldout"}, {"kind": "f1_lab.f1", "every": 2, "words": 3}, {"kind": "baseline"}],
        checkpoint={"every": 1, "keep_last": 1, "best_metric": "f1", "best_mode": "max"}, log={"tensorboard": False},
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for module in [module for module in sys.modules if module.partition(".")[0] == "f1_lab"]:
        del sys.modules[module]


def train(folder, name, *overrides):
    assert cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / name}", *overrides]) == 0
    return folder / name


def measured(run_dir, metric):
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record[metric] for record in records if metric in record}


def saved(run_dir):
    return {int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit()}


@pytest.fixture(scope="module")
def whole(folder):
    """A run of 6 steps."""
    return train(folder, "whole", "log.tensorboard=false")


@pytest.mark.slow
def test_f1_is_measured_and_the_best_checkpoint_by_it_is_kept(whole):
    f1, loss = measured(whole, "f1"), measured(whole, "validation/loss")
    assert list(f1) == [2, 4, 6] and list(loss) == [3, 6]
    assert all(0 <= value <= 1 for value in f1.values())
    receipt = json.loads((whole / "run.json").read_text())
    assert receipt["f1"] == pytest.approx(f1[6]) and receipt["baseline"] > 0 and receipt["validation"]["loss"] > 0
    best = max(reversed(f1), key=f1.get)
    assert saved(whole) == {best, 6}


@pytest.mark.slow
def test_such_a_run_resumes_and_is_evaluated(folder, whole, capsys):
    """Its first half names a metric that is not measured: which there are is not known before, so it is only said."""
    stopped = train(folder, "stopped", "train.steps=3", "checkpoint.best_metric=f1/macro")
    assert "checkpoint.best_metric: f1/macro was not measured" in capsys.readouterr().out
    train(folder, "stopped")
    f1, again = measured(whole, "f1"), measured(stopped, "f1")
    assert again == f1 | {3: again[3]}  # the end of the shorter run was evaluated, too
    assert f"step 4/6  F1 {f1[4]:.3f}" in capsys.readouterr().out
    assert_bit_equal(final(stopped, 6), final(whole, 6))

    assert cli.main(["eval", str(whole)]) == 0
    assert f"F1 {f1[6]:.3f}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_ends_when_its_metric_does_not_improve(folder, capsys):
    """F1 is constant with the learning rate of 1e-30: the second evaluation is no better than the first."""
    settings = ("optimizer.learning_rate=1e-30", "train.patience=1", "train.steps=20")
    run_dir = train(folder, "patience", *settings)
    assert "train.patience: f1 did not improve in 1 evaluations; the run ends" in capsys.readouterr().out
    assert list(measured(run_dir, "f1")) == [2, 4] and json.loads((run_dir / "run.json").read_text())["finished"]
    assert max(saved(run_dir)) == 4
    train(folder, "patience", *settings)  # ended it stays
    said = " ".join(capsys.readouterr().out.split())  # its lines are wrapped
    assert "is finished at step 4; `train.patience=null` continues it" in said
    shutil.rmtree(run_dir)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "must return a jaxpt.train.evaluators.Result, or None if `stop` said so; it returns NoneType"),
        ({"f1": 1.0}, "must return a jaxpt.train.evaluators.Result, or None if `stop` said so; it returns dict"),
        (Result({"f1": "good"}), "Result.metrics: 'f1' must be a number, it is 'good'"),
        (Result({"f1": None}), "Result.metrics: 'f1' must be a number, it is null"),
        (Result({"f1": np.ones(3)}), "Result.metrics: 'f1' must be a number, it is array([1., 1., 1.])"),
        (Result({"f1": {"a": 1.0}}), "Result.metrics: 'f1' must be a number, it is {'a': 1.0}"),
        (Result({1: 1.0}), "Result.metrics: 1 must be a number, it is 1.0"),
        (Result(lines=3), "Result.lines must be lines of text, they are 3"),
    ],
)
def test_what_an_evaluator_returns_is_looked_at(result, said):
    with pytest.raises(UserError, match=re.escape(f"evals: mine (kind: heldout): {said}")):
        checked(HeldOut(name="mine"), result)


def test_metrics_become_numbers_of_python():
    found = checked(HeldOut(), Result({"a": np.float32(0.5), "b": jnp.ones(()), "c": 2}, ("one",)))
    assert json.dumps(found.metrics) == '{"a": 0.5, "b": 1.0, "c": 2.0}' and found.lines == ("one",)
    assert checked(HeldOut(), Result(np.int32(3))).metrics == 3.0
