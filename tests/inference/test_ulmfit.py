"""ULMFiT's stages by its recipes, at toy size: language model, another vocabulary, two classifiers and their mean."""

import doctest
import json
import re
import types

import jax
import numpy as np
import pytest

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.errors import UserError
from jaxpt.inference import predict
from jaxpt.study import recipes
from jaxpt.train import initial, state, vocabularies, weights
from tests import fine_tuning
from tests.config.helpers import ROOT

RECIPES = ROOT / "configs"
TINY = ("model.layers=2", "model.embed_dim=8", "model.hidden_dim=12", "model.vocab_size=40")
SHORT = ("data.validation_fraction=0.25", "data.batch_size=8", "train.log_every=10", "log.tensorboard=false")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Language models of two steps, `lm` and `lm_backward`, and classifiers of both, `forward` and `backward`."""
    folder = tmp_path_factory.mktemp("ulmfit")
    rows = fine_tuning.rows(48)
    fine_tuning.write(folder / "train.jsonl", rows)
    fine_tuning.write(folder / "test.jsonl", fine_tuning.rows(20, seed=1))
    tokenizers.publish(words([row["text"] for row in rows]), folder / "words")
    data = (f"data.path={folder / 'train.jsonl'}", f"data.cache_dir={folder / 'cache'}", *SHORT)
    pretrain = (
        "data.length=12",
        "objective.bptt=8",
        f"data.tokenizer.path={folder / 'words'}",
        "train.steps=2",
        "evals=[]",
    )
    run(RECIPES / "pretrain/ulmfit.yaml", folder / "lm", *data, *TINY, *pretrain)
    backward = "objective.direction=backward"
    run(RECIPES / "pretrain/ulmfit.yaml", folder / "lm_backward", *data, *TINY, *pretrain, backward)
    classify = (
        "task.text=text", "task.labels=[bad,good]", "task.names=null",
        "data.length=20", "objective.bptt=7", "train.steps=4", "train.eval_every=4",
    )  # fmt: skip
    for direction, unfreeze in (("forward", "train.unfreeze.steps=[0,2]"), ("backward", "train.unfreeze=null")):
        lm = folder / ("lm" if direction == "forward" else "lm_backward")
        overrides = (f"init_from.path={lm}", *data, *classify, f"objective.direction={direction}", unfreeze)
        run(RECIPES / "finetune/ulmfit/sst2.yaml", folder / direction, *overrides)
    return folder


def words(texts):
    return tokenizers.train(texts, TokenizerConfig(kind="words", min_count=1), 40)


def run(recipe, run_dir, *overrides):
    assert cli.main(["train", str(recipe), f"run_dir={run_dir}", *overrides]) == 0


@pytest.mark.slow
def test_rows_of_another_vocabulary_are_found_by_their_tokens(folder, tmp_path):
    """The second stage; a word that the first has not gets the mean of all rows, in the table and in the bias."""
    lm = configs.load(folder / "lm")
    tokenizers.publish(words(["dull plot, the zebra ate the plot"]), tmp_path / "words")
    recipe = recipes.load(
        RECIPES / "finetune/ulmfit/target_lm.yaml",
        [f"init_from.path={folder / 'lm'}", f"data.path={folder / 'train.jsonl'}", f"run_dir={tmp_path / 'run'}",
         f"data.tokenizer.path={tmp_path / 'words'}", "init_from.vocabulary=tokens", "model.vocab_size=12"],
    )  # fmt: skip
    said = []
    begun = initial.start(state.setup(recipe, jax.devices()[:1]), recipe.init_from, said.append).params["model"]
    old, new = (tokenizers.load(path) for path in (folder / "words", tmp_path / "words"))
    source = dict(weights.open_weights(folder / "lm", None, True, lm.checkpoint)[0])
    rows, bias = source["model/token_embed/table"], source["model/output_bias"]
    size, known = old.vocabulary.size, 0
    for i, word in enumerate(new.words):
        place = old.ids.get(word)
        known += place is not None
        expected = (rows[place], bias[place]) if place is not None else (rows[:40].mean(0), bias[:40].mean())
        np.testing.assert_allclose(begun["token_embed"]["table"][i], expected[0], rtol=1e-6)
        np.testing.assert_allclose(begun["output_bias"][i], expected[1], rtol=1e-5, atol=1e-9)
    assert known == 6 and size > known, "plot, the, dull and the special tokens"
    assert f"  vocabulary: {known} of {len(new.words)} tokens have their rows, the others the mean of all rows" in said
    nameless = lm.data.model_copy(update={"tokenizer": TokenizerConfig(kind="words")})
    with pytest.raises(UserError, match=r"init_from\.vocabulary: tokens needs data\.tokenizer\.path"):
        vocabularies.rows_by_token(lm.model_copy(update={"data": nameless}), recipe.init_from)


@pytest.mark.slow
def test_predictions_of_both_directions_are_averaged(folder, tmp_path, capsys):
    command = ["predict", str(folder / "forward"), str(folder / "test.jsonl")]
    found = {}
    for name, path, more in (
        ("forward", "forward", []), ("backward", "backward", []),
        ("both", "forward", ["--average", str(folder / "backward")]),
    ):  # fmt: skip
        command[1] = str(folder / path)
        capsys.readouterr()
        assert cli.main([*command, *more, "--out", str(tmp_path / f"{name}.jsonl")]) == 0
        found[name] = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").open()]
    said = capsys.readouterr().out
    for row, (one, other) in zip(found["both"], zip(found["forward"], found["backward"]), strict=True):
        for label, p in row["probabilities"].items():
            assert p == pytest.approx((one["probabilities"][label] + other["probabilities"][label]) / 2, abs=1e-5)
        assert row["predicted_label"] == max(row["probabilities"], key=row["probabilities"].get)
    accuracy = np.mean([row["predicted_label"] == row["label"] for row in found["both"]])
    assert f"mean of 2: accuracy {accuracy:.4f}" in said and f"{folder / 'backward'}: accuracy" in said


def test_examples_in_docstrings():
    assert doctest.testmod(predict).failed == 0


def test_runs_of_other_labels_are_not_averaged():
    def config(labels, kind="classification", decide_by="likelihood"):
        task = types.SimpleNamespace(kind=kind, shown=labels)
        return types.SimpleNamespace(task=task, objective=types.SimpleNamespace(decide_by=decide_by))

    first = config(("a", "b"))
    predict.check_runs([first, first], ["one", "two"])
    for second, message in (
        (config(("c", "d")), "two has the labels c, d, one has a, b"),
        (config(None, "regression"), "is for task.kind: classification; two has regression"),
        (
            config(("a", "b"), decide_by="generation"),
            "two writes its labels as text and has no probabilities; objective",
        ),
    ):
        with pytest.raises(UserError, match=re.escape(f"--average: {message}")):
            predict.check_runs([first, second], ["one", "two"])
