"""Similarity of sentences: cosine against scores, beside SciPy by hand; files; the command and the evaluator agree."""

import dataclasses
import doctest
import re
import types

import jax
import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.evals import probe, sts
from jaxpt.train import checkpoint, state, weights
from tests import families
from tests.evals.test_probe import Letters
from tests.inference.helpers import made, run_of

ROWS = "sentence1\tsentence2\tscore\n" + "".join(
    f"the cat sat {'on the mat ' * n}\ta dog ran\t{score}\n" for n, score in enumerate((5, 1.5, 3, 0, 2.25))
)


def test_correlations_are_those_of_cosines():
    rng = np.random.default_rng(0)
    x, y, scores = rng.normal(size=(30, 8)), rng.normal(size=(30, 8)), rng.random(30).tolist()
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(x, y)]
    found = sts.correlations(x * rng.random((30, 1)), y, scores)
    assert found["pearson"] == pytest.approx(pearsonr(cosines, scores)[0])
    assert found["spearman"] == pytest.approx(spearmanr(cosines, scores)[0])
    assert sts.correlations(0 * x, y, scores) == {"spearman": 0, "pearson": 0}


@pytest.mark.slow
def test_the_evaluator(tmp_path):
    (tmp_path / "pairs.tsv").write_text(ROWS)

    class Texts(Letters):
        def encode_batch(self, texts):
            return [one.ids for one in self.encode_with_offsets(texts)]

    setup, data = state.setup(families.config("bert")), types.SimpleNamespace(tokenizer=Texts())
    params = setup.to_model(families.begin(setup))
    every = sts.SentenceSimilarity(path=str(tmp_path / "pairs.tsv"), layer="all")
    metrics = every.prepare(setup, data)(params, {}, lambda: False).metrics
    assert set(metrics) == {"spearman", "pearson", "layer_0", "layer_1", "layer_2"}
    assert metrics["spearman"] == metrics["layer_2"]
    one = every.model_copy(update={"layer": 1}).prepare(setup, data)(params, {}, lambda: False).metrics
    assert one["spearman"] == pytest.approx(metrics["layer_1"], abs=1e-6)
    assert every.prepare(setup, data)(params, {}, lambda: True) is None
    shorter = dataclasses.replace(setup, config=setup.config.model_copy(
        update={"data": setup.config.data.model_copy(update={"length": 8})}
    ))  # fmt: skip
    assert every.prepare(shorter, data)(params, {}, lambda: False).metrics == metrics, "positions are the limit"
    with pytest.raises(UserError, match="layer: 9 is not one of the model's"):
        every.model_copy(update={"layer": 9}).prepare(setup, data)


@pytest.mark.parametrize("kind", ["sts", "probe"])
def test_evaluators_embed_with_the_word_vectors_that_a_run_gives_away(tmp_path, monkeypatch, kind):
    """Of GloVe w + u: those that the loaded model has."""
    model = run_of(tmp_path / "run", {"kind": "word_vectors", "embed_dim": 8}, "words", "glove")
    setup, data = state.setup(configs.load(tmp_path / "run")), types.SimpleNamespace(tokenizer=model.tokenizer)
    stored = weights.read(*checkpoint.find(tmp_path / "run"))
    params = jax.tree.map(weights.placed, stored, setup.shardings.params)
    (tmp_path / "pairs.tsv").write_text(ROWS)
    pairs, path = sts.read(str(tmp_path / "pairs.tsv")), str(tmp_path / "pairs.tsv")
    expected = model.embed(pairs.first)
    if kind == "sts":
        found = sts.SentenceSimilarity(path=path).prepare(setup, data)(params, {}, lambda: False).metrics
        assert found == pytest.approx(sts.correlations(expected, model.embed(pairs.second), pairs.scores), abs=1e-5)
        return
    features = []
    monkeypatch.setattr(probe, "classify", lambda train, labels, *rest: features.append(train) or labels)
    settings = probe.LinearProbe(path=path, test_path=path, text="sentence1", label="score")
    settings.prepare(setup, data)(params, {}, lambda: False)
    np.testing.assert_allclose(features[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text(ROWS)
    argv = ["sts", str(made(tmp_path / "bert", "bert")), str(tmp_path / "pairs.tsv")]
    assert cli.main([*argv, "--pool", "mean,cls", "--layer", "0,-1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["layer", "pool"], ["0", "mean"], ["-1", "mean"], ["0", "cls"], ["-1", "cls"],
    ]  # fmt: skip
    assert cli.main([*argv, "--pool", "max"]) == 2
    assert "--pool: 'max' is none of mean, cls, last" in capsys.readouterr().err
    assert cli.main([*argv, "--columns", "a,b"]) == 2
    assert "--columns: wants three names" in capsys.readouterr().err
    (tmp_path / "v.txt").write_text("cat 1 0\ndog 1 0.5\nmat 0 1\n")
    assert cli.main([argv[0], str(tmp_path / "v.txt"), argv[2]]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == ["words", "mean"]


@pytest.mark.slow
def test_of_a_model_whose_layers_differ_in_width_the_last_is_compared(tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text(ROWS)
    run_of(tmp_path / "run", {"kind": "awd_lstm", "embed_dim": 8, "hidden_dim": 12}, "words", "recurrent_lm")
    argv = ["sts", str(tmp_path / "run"), str(tmp_path / "pairs.tsv")]
    assert cli.main(argv) == 0
    _, _, line = capsys.readouterr().out.splitlines()
    assert line.split()[:2] == ["-1", "mean"]
    assert cli.main([*argv, "--layer", "all"]) == 2
    assert "layer: of an awd_lstm only the last one, -1, is given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (ROWS.replace("1.5", "high"), "line 3: column 'score' wants a number, got 'high'"),
        (ROWS.replace("sentence2", "other"), "line 2: no column 'sentence2'; it has sentence1, other, score"),
        ("\n".join(ROWS.splitlines()[:3]), "2 pairs; a correlation wants three or more"),
    ],
)
def test_broken_files(tmp_path, content, answer):
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(UserError, match=f"a.tsv: {re.escape(answer)}"):
        sts.read(str(tmp_path / "a.tsv"))


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(sts)
    assert tried and not failed
