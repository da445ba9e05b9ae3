"""Uses of a word in a corpus, the nearest first; senses by their neighbours; words of static vectors."""

import doctest
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import jaxpt
from jaxpt import cli
from jaxpt.inference import neighbours, occurrences
from jaxpt.inference.occurrences import Use
from jaxpt.inference.static_vectors import StaticVectors
from tests.inference.helpers import directory, loaded

SENSES = Path(__file__).parent / "senses.jsonl"
TEXTS = ["the cat sat. The Cat ran!", "a dog ran after the cat", "catalogues of dogs", "the cat sat. Again."]


@pytest.fixture(scope="module")
def model_dir():
    return directory("bert")


def run(capsys, *argv):
    code = cli.main(list(map(str, argv)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_uses_are_found_in_their_sentences():
    text = 'He said "No." The bank, which he knew, was shut… Riverbanks are not BANKS, a bank is.\nBank.'
    assert [use.marked for use in occurrences.find(text, "bank")] == [
        "The *bank*, which he knew, was shut…", "Riverbanks are not BANKS, a *bank* is.", "*Bank*.",
    ]  # fmt: skip
    assert [use.marked for use in occurrences.find("他去银行存钱。河岸很美。", "银行")] == ["他去*银行*存钱。"]
    (use,) = occurrences.find("word " * 200 + "bank" + " more" * 200, "bank")
    assert use.word == "bank" and 500 < len(use.text) <= 604 and use.text.startswith("word ")
    assert use.text.endswith(" more")
    (use,) = occurrences.find("a" * 400 + "+bank", "bank")  # nowhere to cut
    assert use.marked == "*bank*"


def test_a_majority_of_neighbours_decides():
    """Two clouds and a use between them, beside a count by hand."""
    x = np.array([[1, 0], [1, 0.1], [1, 0.2], [0.1, 1], [0, 1], [1, 0.9]], float)
    labels = ["a", "a", "a", "b", "b", "b"]
    assert occurrences.leave_one_out(x, labels, 1) == 5 / 6  # the last is nearer to the third than to any b
    assert occurrences.leave_one_out(x, labels, 2) == 5 / 6  # a tie goes by the nearest
    assert occurrences.leave_one_out(x, labels, 5) == 0  # all others: its own label is always outvoted
    assert occurrences.leave_one_out(x * 7, labels, 1) == 5 / 6


def test_the_nearest_uses_are_printed(capsys, model_dir, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    argv = ("neighbours", model_dir, "the *cat* sat", "--corpus", corpus, "--layer", 1)
    code, out, _ = run(capsys, *argv, "--html", tmp_path / "o.html", "--png", tmp_path / "o.png")
    lines = out.splitlines()
    assert code == 0 and lines[0] == f"cat: nearest of 3 uses in {corpus}, layer 1 of {model_dir}"
    found = [re.fullmatch(r" *(\d)  ( \d\.\d{3})  (.*)", line).groups() for line in lines[1:4]]
    assert {text for *_, text in found} == {"the *cat* sat.", "The *Cat* ran!", "a dog ran after the *cat*"}
    texts = ["the cat sat", *(text.replace("*", "") for *_, text in found)]
    query, *others = loaded("bert").embed_words(texts, layer=1)
    words = [next(v for word, v in zip(one.texts, one.vectors) if word.lower() == "cat") for one in (query, *others)]
    cosines = [w @ words[0] / np.linalg.norm(w) / np.linalg.norm(words[0]) for w in words[1:]]
    np.testing.assert_allclose([float(cosine) for _, cosine, _ in found], cosines, atol=6e-4)
    assert cosines == sorted(cosines, reverse=True)
    assert "<svg" in (tmp_path / "o.html").read_text("utf-8") and (tmp_path / "o.png").stat().st_size > 5000
    code, out, _ = run(capsys, *argv[:2], "a cat", "--word", "cat", "--corpus", corpus, "-k", 1, "--limit", 2)
    assert code == 0 and "nearest of the first 2 uses" in out and out.count("\n") == 2


def test_senses_that_ship_with_the_test(capsys, model_dir):
    """Three words, two senses of each, twelve sentences of each sense. A random model knows none of them."""
    rows = [json.loads(line) for line in SENSES.read_text("utf-8").splitlines()]
    found = [occurrences.marked(row["text"]) for row in rows]
    assert len({use.text for use in found}) == len(found) == 72
    for word in ("bank", "play", "light"):
        of_word = [row["sense"] for row, use in zip(rows, found) if use.word == word]
        assert sorted(map(of_word.count, set(of_word))) == [12, 12]
    code, out, _ = run(capsys, "neighbours", model_dir, "--corpus", SENSES, "--label", "sense", "--layer", "all")
    lines = [line.split() for line in out.splitlines()[1:]]
    assert code == 0 and lines[0] == ["layer", "bank", "play", "light", "all"]
    assert lines[1] == ["majority", *["50.0%"] * 4] and [line[0] for line in lines[2:]] == ["0", "1", "2"]


def test_senses_are_limited_and_embedded_batch_by_batch(capsys, model_dir, monkeypatch):
    """Of the first 24 sentences, which are those of one word; several layers of each batch are put together."""
    argv = ("neighbours", model_dir, "--corpus", SENSES, "--label", "sense", "--layer", "0,2", "--limit", 24)
    whole = run(capsys, *argv)
    vectors, sizes = occurrences.vectors, []
    monkeypatch.setattr(neighbours, "BATCH", 10)
    monkeypatch.setattr(
        occurrences, "vectors", lambda model, found, layer: sizes.append(len(found)) or vectors(model, found, layer)
    )
    code, out, _ = run(capsys, *argv)
    assert code == 0 and out == whole[1] and sizes == [10, 10, 4]
    assert "the first 24 uses in" in out and out.splitlines()[1].split() == ["layer", "bank", "all"]


@pytest.mark.skipif("JAXPT_ENCODER" not in os.environ, reason="JAXPT_ENCODER names no pretrained encoder")
def test_contextual_layers_tell_senses_apart():
    """In a pretrained encoder the words around decide, and layer 0 does not know them."""
    rows = [json.loads(line) for line in SENSES.read_text("utf-8").splitlines()]
    found = [occurrences.marked(row["text"])._replace(label=row["sense"]) for row in rows]
    model = jaxpt.load(os.environ["JAXPT_ENCODER"])
    accuracy = {}
    for word in ("bank", "play", "light"):
        own = [use for use in found if use.word == word]
        for layer, vectors in enumerate(occurrences.vectors(model, own, "all")):
            accuracy.setdefault(layer, []).append(occurrences.leave_one_out(vectors, [use.label for use in own], 3))
    means = [float(np.mean(of_layer)) for of_layer in accuracy.values()]
    print(means)
    assert max(means[1:]) > means[0] + 0.1 and max(means[1:]) > 0.6


GLOVE = "the 1 0 0\nbank 0 1 0\nriver 0 1 0.5\n. . 3 3 3\nmoney 0.1 0.9 -0.4\nbank 9 9 9\n"


def test_static_vectors(capsys, tmp_path):
    (tmp_path / "glove.txt").write_text(GLOVE)
    (tmp_path / "w2v.vec").write_text("6 3\n" + GLOVE.replace("\n", " \n"))
    for name in ("glove.txt", "w2v.vec"):
        model = StaticVectors(tmp_path / name)
        assert model.words == ["the", "bank", "river", ". .", "money"]
        np.testing.assert_allclose(model.embed(["The bank, zzz", "zzz"]), [[0.5, 0.5, 0], [0, 0, 0]])
    code, out, _ = run(capsys, "neighbours", tmp_path / "glove.txt", "bank", "-k", 2, "--png", tmp_path / "o.png")
    assert code == 0 and out.splitlines()[1:3] == ["  1   0.909  money", "  2   0.894  river"]
    for option, value in (("--layer", 7), ("--label", "x"), ("--field", "y"), ("--limit", 1), ("--corpus", "c.txt")):
        code, _, error = run(capsys, "neighbours", tmp_path / "glove.txt", "bank", option, value)
        assert code == 2 and f"the same in every sentence; leave out {option}\n" in error
    code, _, error = run(capsys, "neighbours", tmp_path / "glove.txt", "bank", "--word", "river")
    assert code == 2 and "a query and --word: give one of them" in error
    (tmp_path / "s.csv").write_text("sentence1,sentence2,score\n" + "bank,river,1\nthe,bank,2\nriver,money,3\n")
    code, _, error = run(capsys, "sts", tmp_path / "glove.txt", tmp_path / "s.csv", "--pool", "cls")
    assert code == 2 and "has one vector of each word; leave out --layer and --pool" in error


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("", "v.txt: 0 words, wants a word and its numbers a line"),
        ("bank 1 2\nriver 1", "v.txt: line 2: 1 numbers, wants 2 after a word, separated by spaces"),
        ("bank 1 2\nriver 1 x", "v.txt: line 2: could not convert string to float: 'x'; wants a word and 2 numbers"),
        ("bank 1 nan", "v.txt: line 1, 'bank': a number that is not finite"),
        ("3 2\nbank 1 2", "v.txt: 1 words, wants the 3 words that its first line says"),
        (b"3 2\nbank \xff\xfe", "v.txt: line 2: not UTF-8"),
        ("word\nother", "v.txt: line 1: 0 numbers, wants a word and its numbers, separated by spaces"),
        ("bank 1 2", "v.txt: has no vector of 'river'"),
    ],
)
def test_broken_vectors_are_one_line(capsys, tmp_path, content, answer):
    (tmp_path / "v.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, _, error = run(capsys, "neighbours", tmp_path / "v.txt", "river")
    assert code == 2 and answer in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["the *cat* sat"], "--corpus FILE: give the file in which uses of the word are looked for"),
        (["the cat sat", "--corpus", "c.txt"], "the query: no words are marked, wants one, as in 'the *bank* of"),
        (["*a* *b*", "--corpus", "c.txt"], "the query: 2 words are marked, wants one"),
        (["the cat", "--word", "dog", "--corpus", "c.txt"], "--word dog: is not in the query"),
        (["the party", "--word", "art", "--corpus", "c.txt"], "--word art: is not in the query"),
        (["a *mouse*", "--corpus", "c.txt"], "c.txt: has no use of 'mouse'"),
        (["a *cat*", "--corpus", "c.txt", "--layer", "all"], "--layer: a query wants one layer, or mix"),
        (["a *cat*", "--corpus", "c.txt", "--png", "o.jpg"], "--png: wants a file F.png, got o.jpg"),
        (["--corpus", "c.txt"], "wants a query, such as 'the *bank* of the river', or --label NAME"),
        (["--corpus", "c.txt", "--label", "sense"], "c.txt: line 1: no words are marked"),
        (["a *cat*", "--corpus", "c.jsonl", "--label", "sense"], "c.jsonl: line 1: no column 'sense'; it has text"),
        (["--corpus", "d.jsonl", "--label", "s", "--word", "cat"], "--word: is the word of a query; give a query, or"),
        (["--corpus", "d.jsonl", "--label", "s"], "d.jsonl: wants two labels or more of 'cat'"),
    ],
)
def test_bad_input_is_one_line(capsys, model_dir, tmp_path, monkeypatch, argv, answer):
    monkeypatch.chdir(tmp_path)
    Path("c.txt").write_text("\n".join(TEXTS))
    Path("c.jsonl").write_text('{"text": "a cat"}\n')
    Path("d.jsonl").write_text('{"text": "a *cat*", "s": "x"}\n')
    code, _, error = run(capsys, "neighbours", model_dir, *argv)
    assert code == 2 and answer in error and error.count("\n") == 1


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(occurrences)
    assert tried and not failed
    assert Use("a bank", 2, 6).snippet() == "a bank"


def test_the_word_of_a_query_is_a_whole_word():
    (place,) = occurrences.places("the party of Art", "art")
    assert place.span() == (13, 16)
