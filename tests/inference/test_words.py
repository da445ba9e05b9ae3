"""Vectors of words are means over their pieces' states, at the characters that the text has; files of them."""

import doctest
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from jaxpt import cli
from jaxpt.decode.embed import embed
from jaxpt.errors import UserError
from jaxpt.inference import corpus, words
from tests import families
from tests.decode.helpers import network, texts
from tests.inference.helpers import directory, loaded

TEXTS = ["the cat, sat on the mat", "a dogcat ran", "no one saw the dog run away " * 6]


@pytest.fixture(scope="module")
def directories():
    return {name: directory(name) for name in families.FAMILIES}


@pytest.fixture(scope="module")
def models():
    return {name: loaded(name) for name in families.FAMILIES}


@pytest.mark.slow
def test_several_layers_are_those_one_by_one():
    given, rows = network("bert", layers=1), texts(5, 20, seed=3)
    one_by_one = [embed(*given, rows, layer=layer).vectors for layer in (0, 1)]
    for layer, numbers in (("all", (0, 1)), ((1, 0), (1, 0)), ([-1, -2], (1, 0))):
        for n, found in enumerate(embed(*given, rows, layer=layer).vectors):
            np.testing.assert_allclose(found, [one_by_one[number][n] for number in numbers], atol=1e-6)
    mix = embed(*given, rows, layer="mix", pooling="none").vectors
    every = embed(*given, rows, layer="all", pooling="none").vectors
    for one, layers in zip(mix, every, strict=True):
        np.testing.assert_allclose(one, layers.mean(0), atol=1e-6)
    with pytest.raises(UserError, match="layer: 9 is not one of the model's"):
        embed(*given, rows, layer=(0, 9))
    with pytest.raises(UserError, match="layer: last is not known; a number, several, all or mix are"):
        embed(*given, rows, layer="last")


@pytest.mark.parametrize("family", [pytest.param("t5", marks=pytest.mark.slow), "bert", "gpt2"])
def test_a_word_is_the_mean_of_its_pieces(models, family):
    model = models[family]
    for layer in (-1, "all"):
        states = model.embed(TEXTS[:2], pooling="none", layer=layer)
        for text, found, of_text in zip(TEXTS, model.embed_words(TEXTS[:2], layer), states):
            ids, offsets = model.tokenizer.encode_with_offsets([text])[0]
            first = int(family == "bert")
            assert found.texts == [text[a:b] for a, b in words.words_of(text)] and not found.is_cut
            for vector, (start, end) in zip(np.moveaxis(found.vectors, -2, 0), found.spans):
                # Pieces with a character of the word; a byte-level piece may have one of two words.
                own = [n for n, (a, b) in enumerate(offsets) if max(a, start) < min(b, end)]
                wanted = of_text[..., [first + n for n in own], :].mean(-2)
                # Another batch sums in another order: float32 differs by tens of units in the last place.
                np.testing.assert_allclose(vector, wanted, rtol=5e-6, atol=2e-6)
    (tokens,), ids = model.embed_words(TEXTS[:1], unit="token"), model.tokenizer.encode(TEXTS[0])
    np.testing.assert_allclose(tokens.vectors, model.embed(TEXTS[:1], "none")[0][first : first + len(ids)], atol=1e-6)
    assert tokens.texts == model.tokenizer.tokens(model.tokenizer.encode(TEXTS[0]))


def test_words_beyond_the_positions_are_missing(models):
    model = models["bert"]  # 32 positions
    (found,) = model.embed_words([TEXTS[2]])
    assert found.is_cut and 0 < len(found.texts) < 42 and found.numbers.tolist() == list(range(len(found.texts)))
    (given,) = model.embed_words(["the cat sat"], spans=[[(4, 7), (3, 4), (8, 11)]])
    assert given.texts == ["cat", "sat"] and given.numbers.tolist() == [0, 2]  # no token is white space


@pytest.mark.slow
def test_a_file_of_vectors(directories, models, tmp_path, capsys, monkeypatch):
    """Its rows are in the file's order whatever the chunks, and equal what `embed` gives."""
    source, path = tmp_path / "in.txt", str(directories["bert"])
    source.write_text("\n\n".join(TEXTS))
    monkeypatch.setattr("jaxpt.inference.embed_file.CHARACTERS", 30)
    monkeypatch.setattr("jaxpt.inference.embed_file.CHARACTERS_OF_UNITS", 30)

    def run(name, *options):
        code = cli.main(["embed", path, str(source), "--out", str(tmp_path / name), *options])
        assert code == 0
        return pq.read_table(tmp_path / name).to_pydict(), capsys.readouterr().out

    found, out = run("mean.parquet")
    assert "mean.parquet: 3 rows, vectors of 32 numbers\n1 of 3 texts were truncated to the model's positions\n" in out
    assert found["text"] == [0, 1, 2]
    with pytest.warns(UserWarning, match="truncated"):
        np.testing.assert_allclose(found["vector"], models["bert"].embed(TEXTS), atol=1e-6)
    found, _ = run("layers.parquet", "--layer", "0,-1", "--pool", "cls", "--normalize")
    with pytest.warns(UserWarning, match="truncated"):
        wanted = models["bert"].embed(TEXTS, "cls", layer=0, normalize=True)
    np.testing.assert_allclose(found["layer_0"], wanted, atol=1e-6)
    assert list(found) == ["text", "layer_0", "layer_-1"]
    found, _ = run("words.parquet", "--pool", "word", "--layer", "mix")
    wanted = models["bert"].embed_words(TEXTS, "mix")
    assert found["word"] == [word for one in wanted for word in one.texts]
    assert found["text"] == [n for n, one in enumerate(wanted) for _ in one.texts]
    assert all(
        TEXTS[n][a:b] == word for n, word, a, b in zip(found["text"], found["word"], found["start"], found["end"])
    )
    # Batches have other shapes: float32 adds in another order.
    np.testing.assert_allclose(found["vector"], np.concatenate([one.vectors for one in wanted]), rtol=1e-5, atol=2e-6)
    assert pq.read_schema(tmp_path / "words.parquet").field("vector").type.list_size == 32
    assert not list(tmp_path.glob("*.partial"))


def test_texts_of_files(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"words": ["a", "b  c"]}) + "\n")
    (found,) = corpus.texts(str(tmp_path / "a.jsonl"), "words")
    assert (found.text, found.spans) == ("a b  c", [(0, 1), (2, 6)])
    (tmp_path / "a.conllu").write_text("1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tcat\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n")
    (found,) = corpus.texts(str(tmp_path / "a.conllu"))
    assert found.text == "The cat" and found.values["upos"] == ["DET", "NOUN"]


@pytest.mark.parametrize(
    ("name", "content", "options", "answer"),
    [
        ("a.txt", "", [], "a.txt: is empty; wants a text a line"),
        ("a.txt", "x", ["--field", "y"], "--field is the column of a .jsonl"),
        ("a.jsonl", '{"text": "x"}\n{"txt": "y"}', [], "a.jsonl: line 2: no column 'text'; it has txt"),
        ("a.jsonl", '{"text": " "}', [], "a.jsonl: line 1: column 'text' is empty; wants a text"),
        ("a.jsonl", '{"text": 3}', [], "column 'text' wants a text, or a list of words, got 3"),
        ("a.txt", "x", ["--layer", "x"], "--layer: wants a number, several as 0,6,12, all or mix, got 'x'"),
        ("a.txt", "x", ["--layer", "9"], "layer: 9 is not one of the model's; 0 (embeddings) to 2 are"),
        ("a.dat", "x", [], "the suffix says nothing of the format"),
    ],
)
def test_bad_input_is_one_line(directories, tmp_path, capsys, name, content, options, answer):
    (tmp_path / name).write_text(content)
    argv = ["embed", str(directories["bert"]), str(tmp_path / name), "--out", str(tmp_path / "o.parquet"), *options]
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert answer in error and error.count("\n") == 1
    assert not (tmp_path / "o.parquet").exists() and not list(tmp_path.glob("*.partial"))


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(words)
    assert tried and not failed
