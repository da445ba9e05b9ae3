"""The linear probe reads labels off hidden states alone: no padding, alike for the three families."""

import doctest
import gzip
import json
import re

import numpy as np
import pytest

from jaxpt.config.studies import Probe
from jaxpt.errors import UserError
from jaxpt.evals import probe
from jaxpt.objectives.base import Vocabulary
from tests import families
from tests.models.helpers import drawn

SETTINGS = Probe(path="a", test_path="b")


@pytest.mark.parametrize("family", families.FAMILIES)
def test_padding_does_not_count(family):
    network = families.network(families.config(family))
    config, params = network.config, drawn(network)
    tokens = np.full((3, 12), -1, np.int32)
    tokens[0, :5], tokens[1, :12], tokens[2, :5] = [7, 8, 9, 10, 11], range(20, 32), [7, 8, 9, 10, 12]
    pooled = probe.pooled(network, params, config.family, tokens)
    bound = network.bind(params)
    alone = (bound.decode if family == "gpt2" else bound.encode)(tokens[:1, :5]).hidden
    np.testing.assert_allclose(pooled[0], np.asarray(alone)[0].mean(0), atol=1e-5)
    assert pooled.shape == (3, 32) and np.abs(pooled[0] - pooled[2]).max() > 1e-3


def test_the_classifier_finds_what_is_linear_and_no_more():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(600, 8)), rng.normal(size=(8, 3))
    y = (x @ w).argmax(1)
    guess = probe.classify(x[:400], y[:400], x[400:], 3, 1e-3)
    assert (guess == y[400:]).mean() > 0.95
    parity = (x[:, 0] * x[:, 1] > 0).astype(int)
    guess = probe.classify(x[:400], parity[:400], x[400:], 3, 1e-3)
    assert (guess == parity[400:]).mean() < 0.65


def test_rows_are_laid_as_in_pretraining():
    bert, t5, gpt2 = Vocabulary(50, cls=2, sep=3), Vocabulary(50, eos=1), Vocabulary(50, eos=49, bos=49)
    texts = [[5, 6, 7, 8], []]
    assert probe._rows(texts, bert, "encoder", 5).tolist() == [[2, 5, 6, 7, 3], [2, 3, -1, -1, -1]]
    assert probe._rows(texts, t5, "encoder_decoder", 6).tolist() == [[5, 6, 7, 8, 1, -1], [1, -1, -1, -1, -1, -1]]
    assert probe._rows(texts, gpt2, "decoder", 3).tolist() == [[5, 6, 7], [-1, -1, -1]]


def test_files(tmp_path):
    records = [{"text": "one, two", "label": 1}, {"text": "three", "label": 0}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "a.csv").write_text('text,label\n"one, two",1\nthree,0\n')
    (tmp_path / "a.tsv").write_text("label\ttext\n1\tone, two\n0\tthree\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    for name in ("a.jsonl", "a.csv", "a.tsv", "a.csv.gz"):
        assert probe._read(tmp_path / name, SETTINGS) == (["one, two", "three"], ["1", "0"])


@pytest.mark.parametrize(
    ("name", "content", "answer"),
    [
        ("a.txt", b"x", "expected a .jsonl, .csv or .tsv file"),
        ("a.csv", b"text,category\nx,1\n", "record 1 has no field 'label', only text, category"),
        ("a.csv", b"text,label\n", "contains no texts"),
        ("a.jsonl", b'{"text": "x", "label": 1}\n{', "not valid JSON"),
        ("a.jsonl", b"\xff", "not valid UTF-8"),
        ("a.csv.gz", b"text", "not valid UTF-8 or gzip"),
    ],
)
def test_broken_files(tmp_path, name, content, answer):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{re.escape(name)}: .*{re.escape(answer)}"):
        probe._read(tmp_path / name, SETTINGS)


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(probe)
    assert tried and not failed
