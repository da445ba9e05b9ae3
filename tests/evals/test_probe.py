"""The linear probe reads labels off hidden states alone: no padding, alike for the three families."""

import doctest
import gzip
import json
import re
import types

import numpy as np
import pytest

from jaxpt.config.studies import Probe
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers.base import Encoded
from jaxpt.errors import UserError
from jaxpt.evals import probe
from jaxpt.train import state
from tests import families

SETTINGS = Probe(path="a", test_path="b")


def test_the_classifier_finds_what_is_linear_and_no_more():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(600, 8)), rng.normal(size=(8, 3))
    y = (x @ w).argmax(1)
    guess = probe.classify(x[:400], y[:400], x[400:], 3, 1e-3)
    assert (guess == y[400:]).mean() > 0.95
    parity = (x[:, 0] * x[:, 1] > 0).astype(int)
    guess = probe.classify(x[:400], parity[:400], x[400:], 3, 1e-3)
    assert (guess == parity[400:]).mean() < 0.65


def test_files(tmp_path):
    records = [{"text": "one, two", "label": 1}, {"text": "three", "label": 0}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "a.csv").write_text('text,label\n"one, two",1\nthree,0\n')
    (tmp_path / "a.tsv").write_text("label\ttext\n1\tone, two\n0\tthree\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    for name in ("a.jsonl", "a.csv", "a.tsv", "a.csv.gz"):
        assert probe.read(tmp_path / name, SETTINGS) == (["one, two", "three"], None, [["1"], ["0"]])
    (tmp_path / "a.conllu").write_text("".join(f"{n}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_\n" for n, word, tag in (
        (1, "The", "DET"), (2, "cat", "NOUN")
    )) + "\n1\tGo\t_\tVERB\t_\t_\t0\t_\t_\t_\n")  # fmt: skip
    words = SETTINGS.model_copy(update={"unit": "word", "label": "upos"})
    found = probe.read(tmp_path / "a.conllu", words)
    assert found.texts == ["The cat", "Go"] and found.labels == [["DET", "NOUN"], ["VERB"]]
    assert [spans.tolist() for spans in found.spans] == [[[0, 3], [4, 7]], [[0, 2]]]
    assert len(probe.read(tmp_path / "a.conllu", words, 2).texts) == 1


@pytest.mark.parametrize(
    ("name", "content", "answer"),
    [
        ("a.dat", b"x", "the suffix says nothing of the format"),
        ("a.csv", b"text,category\nx,1\n", "line 2: no column 'label'; it has text, category"),
        ("a.csv", b"text,label\nx,\n", "line 2: column 'label': empty label"),
        ("a.csv", b"text,label\n", "no rows"),
        ("a.jsonl", b'{"text": "x", "label": 1}\n{', "line 2: not JSON"),
        ("a.jsonl", b"\xff", "not UTF-8"),
        ("a.csv.gz", b"text", "truncated or damaged gzip file"),
    ],
)
def test_broken_files(tmp_path, name, content, answer):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{re.escape(name)}: .*{re.escape(answer)}"):
        probe.read(tmp_path / name, SETTINGS)


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(probe)
    assert tried and not failed


WORDS = [("the", "DET"), ("cat", "NOUN"), ("sat", "VERB"), ("a", "DET"), ("dog", "NOUN"), ("ran", "VERB")]


class Letters:
    """A token for each letter."""

    vocabulary = Vocabulary(200, cls=2, sep=3)

    def tokens(self, ids):
        return [chr(i) for i in ids]

    def special_tokens(self, declared=None):
        return {}

    def encode_with_offsets(self, texts):
        places = [[(n, n + 1) for n, letter in enumerate(text) if letter != " "] for text in texts]
        return [
            Encoded([ord(text[n]) for n, _ in of_text], np.array(of_text).reshape(-1, 2))
            for text, of_text in zip(texts, places)
        ]


def tagging(tmp_path):
    """Settings of a probe of words."""
    rng = np.random.default_rng(0)
    for name, extra in (("train", ()), ("test", (("zebra", "NOUN"),))):
        rows = [[WORDS[n] for n in rng.permutation(6)[:4]] + list(extra) for _ in range(12)]
        (tmp_path / f"{name}.jsonl").write_text("".join(
            json.dumps({"tokens": [word for word, _ in row], "tags": [tag for _, tag in row]}) + "\n" for row in rows
        ))  # fmt: skip
    paths = {"path": str(tmp_path / "train.jsonl"), "test_path": str(tmp_path / "test.jsonl")}
    return {**paths, "unit": "word", "label": "tags", "layer": "all"}


def test_words_have_labels_and_a_baseline_of_their_own(tmp_path):
    """A word that was not trained on gets the most frequent label."""
    settings = Probe(**tagging(tmp_path))
    task = probe.task_of(settings, Letters(), state.setup(families.config("bert")))
    assert task.classes == 3 and len(task.labels[0]) == 48 and len(task.labels[1]) == 60
    assert task.baseline in (0.8, 1.0)  # all but the zebra, which is what is most frequent
    lines = probe.lines("run", settings, task, [0.5, 0.6, 0.7], [0.1, 0.2, 0.3])
    assert len(lines) == 5 and lines[1].split() == ["layer", "accuracy", "untrained"]
    assert lines[4].split() == ["2", "70.0%", "30.0%"]


@pytest.mark.slow
def test_the_probe_of_each_layer_reads_tags(tmp_path):
    """Those of all words that were trained on; the last layer's accuracy is the probe's."""
    setup = state.setup(families.config("bert"))
    params = setup.to_model(setup.init())
    evaluate = probe.LinearProbe(**tagging(tmp_path)).prepare(setup, types.SimpleNamespace(tokenizer=Letters()))
    found = evaluate(params, {}, lambda: False).metrics
    assert found.keys() == {"accuracy", "most_frequent", "layer_0", "layer_1", "layer_2"}
    assert min(found.values()) >= 0.8 and found["accuracy"] == found["layer_2"]
    assert evaluate(params, {}, lambda: True) is None


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"tokens": ["a"], "tags": ["X", "Y"]}, "1 words in 'tokens', 2 labels in 'tags'"),
        ({"tokens": "a", "tags": ["X"]}, "column 'tokens' wants a list, one for each word, got 'a'"),
        ({"tokens": ["a"], "tags": [None]}, "column 'tags': empty label"),
    ],
)
def test_broken_words(tmp_path, row, answer):
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=f"a.jsonl: line 1: {re.escape(answer)}"):
        probe.read(tmp_path / "a.jsonl", SETTINGS.model_copy(update={"unit": "word", "label": "tags"}))
