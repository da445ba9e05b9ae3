"""`import jaxpt`: what a notebook needs, and its errors, which are exceptions."""

import doctest
from pathlib import Path

import numpy as np
import pytest

import jaxpt
from jaxpt import config as configs
from jaxpt import errors
from jaxpt.errors import UserError
from jaxpt.inference import run as python_runs
from jaxpt.train import loop, preflight
from tests import fine_tuning

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "smoke" / "bert_tiny.yaml"


def test_a_configuration_with_overrides():
    config = jaxpt.Config.load(
        RECIPE, **{"train.steps": 30, "optimizer.learning_rate": 1e-5, "run_dir": Path("runs/x")}
    )
    assert config.train.steps == 30 and config.optimizer.learning_rate == 1e-5 and config.run_dir == "runs/x"
    assert jaxpt.Config.load(RECIPE, train={"steps": np.int64(30)}, seed=3).train.steps == 30
    assert isinstance(config, jaxpt.Config)


def test_a_mapping_with_another_kind_starts_afresh(capsys):
    """As on the command line: what all kinds share is kept, the other kind's keys are dropped and said."""
    model = {"kind": "gpt2", "layers": 1, "embed_dim": 8, "heads": 1}
    config = jaxpt.Config.load(RECIPE, model=model, objective={"kind": "causal_lm"}, seed=3)
    words = ["model={kind: gpt2, layers: 1, embed_dim: 8, heads: 1}", "objective={kind: causal_lm}", "seed=3"]
    assert config == configs.load(RECIPE, words)
    said = " ".join(capsys.readouterr().out.split())
    assert "overrides: objective.kind: causal_lm drops masked_lm's dupe_factor: 3" in said
    same = {"kind": "muon", "schedule.warmup_steps": 7, "clip_norm": np.float32(2.0)}
    config = jaxpt.Config.load(RECIPE, optimizer=same)
    assert config == configs.load(RECIPE, ["optimizer.schedule.warmup_steps=7", "optimizer.clip_norm=2.0"])


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(python_runs)
    assert tried and not failed


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"train.stepz": 30}, "train.stepz.*train.steps"),
        ({"train.steps": "many"}, "train.steps.*many"),
        ({"train": {"steps": 0}}, "train.steps.*0"),
        ({"seed": {1, 2}}, "seed: wants a number, a text, a list or a dict, got set"),
        ({"model.kind": "brt"}, "did you mean bert"),
    ],
)
def test_a_wrong_override_is_an_exception(overrides, words):
    with pytest.raises(UserError, match=words):
        jaxpt.fit(RECIPE, **overrides)


def test_notes_are_said_once(monkeypatch, tmp_path, capsys):
    """By `fit`, which reads a run's config.yaml several times, as by `Config.load`."""
    settings = {"run_dir": str(tmp_path), "optimizer.schedule.warmup_steps": 99999, "log.tensorboard": False}
    text = configs.to_yaml(jaxpt.Config.load(RECIPE, **settings))
    (tmp_path / "config.yaml").write_text(configs.with_checksum(text) + "# by hand\n")
    assert "note: " not in capsys.readouterr().out
    changed = "note: {}: was changed since the run wrote it"
    jaxpt.Config.load(tmp_path)
    assert changed.format(tmp_path / "config.yaml") in (said := " ".join(capsys.readouterr().out.split()))
    assert said.count("note: ") == 1
    monkeypatch.setattr(loop, "train", preflight.check)  # which looks again
    jaxpt.fit(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "note: optimizer.schedule.warmup_steps: 99999 is longer than the run" in said and said.count("note: ") == 2
    errors.note("of nobody")
    assert capsys.readouterr() == ("", "")


def test_a_wrong_name_gets_the_nearest():
    with pytest.raises(AttributeError, match="did you mean load"):
        _ = jaxpt.laod
    with pytest.raises(UserError, match=r"bert_tinny.yaml.*did you mean .*bert_tiny.yaml"):
        jaxpt.fit(RECIPE.with_name("bert_tinny.yaml"))
    with pytest.raises(UserError, match="a Config has them already"):
        jaxpt.fit(jaxpt.Config.load(RECIPE), seed=3)


def test_a_configuration_is_read_by_load():
    with pytest.raises(UserError, match=r"takes no path; jaxpt\.Config\.load\('tick\.yaml'\) reads a recipe"):
        jaxpt.Config("tick.yaml")


def test_a_configuration_is_frozen():
    with pytest.raises(AttributeError, match=r"^TrainConfig\.steps: a configuration is frozen; [^\n]*$"):
        jaxpt.Config.load(RECIPE).train.steps = 3


def test_a_model_is_a_directory():
    with pytest.raises(UserError, match="path: expected a run or a Hugging Face directory, got 3"):
        jaxpt.load(3)


def test_an_interruption_is_a_keyboard_interrupt(monkeypatch):
    def interrupted(config):
        raise SystemExit(130)

    monkeypatch.setattr(loop, "train", interrupted)
    with pytest.raises(KeyboardInterrupt, match="the same call continues it"):
        jaxpt.fit(RECIPE)


def test_a_run_is_shown_with_its_losses(tmp_path):
    """That of the last step, and the one that tells."""
    (tmp_path / "config.yaml").write_text(configs.to_yaml(configs.load(RECIPE)))
    (tmp_path / "run.json").write_text('{"step": 6, "train_loss": 2.5, "validation": {"loss": 2.75}}')
    assert "step 6 of 1000, train loss 2.5000, validation loss 2.7500\n" in repr(jaxpt.Run(tmp_path))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A fine-tuned classifier."""
    directory = tmp_path_factory.mktemp("python")
    sections = {"train": {"steps": 6, "eval_every": 3, "log_every": 2}, "checkpoint": {"every": 3}}
    return jaxpt.fit(fine_tuning.recipe(directory, **sections))


@pytest.mark.slow
def test_a_run_has_metrics_checkpoints_and_a_model(run, tmp_path):
    pytest.importorskip("pandas")
    assert set(run.checkpoints) == {3, 6} and all(path.is_dir() for path in run.checkpoints.values())
    metrics = run.metrics
    assert metrics.index.name == "step" and metrics["train/loss"].dropna().index[-1] == 6
    assert run.summary["finished"] and f"jaxpt.Run({str(run.run_dir)!r})" in repr(run)
    axes = run.plot()
    axes.figure.savefig(tmp_path / "loss.png")
    assert "train/loss" in [line.get_label() for line in axes.lines] and (tmp_path / "loss.png").stat().st_size
    with pytest.raises(UserError, match="has no metric train/los; did you mean train/loss"):
        run.plot("train/los")
    with pytest.raises(UserError, match="has no checkpoint of step 4; there are: 3, 6"):
        run.model(4)


@pytest.mark.slow
def test_a_classifier_predicts_as_the_command(run, tmp_path):
    from jaxpt.inference.predict import predict

    rows = fine_tuning.rows(5, seed=1)
    model = run.model()
    answers = model.predict([row["text"] for row in rows])
    assert answers == model.predict([{"text": row["text"]} for row in rows])
    file = fine_tuning.write(tmp_path / "rows.jsonl", rows)
    predict(str(model.path), file, str(tmp_path / "p.jsonl"))
    import json

    written = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    for row, answer, record in zip(rows, answers, written, strict=True):
        assert {name: record[name] for name in row} == row and record["predicted_label"] == answer["label"]
        assert record["probabilities"] == pytest.approx(answer["probabilities"], rel=1e-5)
        assert record["probability"] == pytest.approx(answer["probability"], rel=1e-5)
    for answer, likeliest in zip(answers, model.predict([row["text"] for row in rows], top_k=1), strict=True):
        assert likeliest["probabilities"] == {answer["label"]: answer["probability"]}
    with pytest.raises(UserError, match="top_k: expected a number of labels from 1 on, or None for all, got 0"):
        model.predict(["a film"], top_k=0)
    assert model("a good film", attentions=True).attentions.shape[:2] == (2, 4)
    with pytest.raises(UserError, match=r"inputs: expected a list with an entry for each row, got 'a film'"):
        model.predict("a film")
    with pytest.raises(UserError, match="inputs: has no texts"):
        model.predict([])
    with pytest.raises(UserError, match="row 0"):
        model.predict([{"texts": "a film"}])
