"""Files of word vectors beside gensim's, a run from text to vectors and a classifier, analogies and similarity."""

import gzip
import json
import tracemalloc

import numpy as np
import pytest

from jaxpt import cli, errors
from jaxpt.errors import UserError
from jaxpt.inference import static_vectors, vector_files, vector_tests
from jaxpt.inference.static_vectors import SPECIAL, StaticVectors, Words
from tests.runs import assert_bit_equal, final

WORDS = ["the", "naïve", "cat", "今日"]
VECTORS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize("name", ["v.txt", "v.vec.gz", "v.glove", "v.bin", "v.bin.gz"])
def test_what_is_written_is_read(tmp_path, name):
    vector_files.write(tmp_path / name, WORDS, VECTORS)
    words, vectors = vector_files.read(tmp_path / name)
    assert words == WORDS and vectors.tobytes() == VECTORS.tobytes() and vector_files.is_vectors(tmp_path / name)
    with pytest.raises(UserError, match="already exists"):
        vector_files.write(tmp_path / name, WORDS, VECTORS)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.bin.gz"])
def test_gensim_reads_and_writes_the_same(tmp_path, name):
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    is_binary = ".bin" in name
    vector_files.write(tmp_path / name, WORDS, VECTORS)
    theirs = keyed.load_word2vec_format(str(tmp_path / name), binary=is_binary)
    assert theirs.index_to_key == WORDS and theirs.vectors.tobytes() == VECTORS.tobytes()
    theirs.save_word2vec_format(str(tmp_path / f"again_{name}"), binary=is_binary)
    words, vectors = vector_files.read(tmp_path / f"again_{name}")
    assert words == WORDS and vectors.tobytes() == VECTORS.tobytes()


@pytest.mark.parametrize(
    ("name", "content", "answer"),
    [
        ("v.bin", b"2 2\ncat 12345678", "v.bin: ends at word 2 of the 2 words that its first line says"),
        ("v.bin", b"1 2\ncat 12345678 more", "v.bin: goes on after the 1 words that its first line says"),
        ("v.bin", b"cat 12345678", "v.bin: wants a first line with the number of words"),
        ("v.bin", b"1 1\ncat \x00\x00\xc0\x7f", "v.bin: word 1, 'cat': a number that is not finite"),
        ("v.txt.gz", gzip.compress(b"cat 1 2\ndog 1", mtime=0), "v.txt.gz: line 2: 1 numbers, wants 2 after a word"),
        ("v.txt", b"2 2\ncat 1 2\ndog 1 2 3", "v.txt: line 3: 3 numbers, wants 2 after a word, separated by spaces"),
        ("v.txt", b"cat 1 2\na\rb 1 2", "v.txt: line 2, 'a\\rb': has an end of a line in the word"),
        ("v.bin", b"2 1\nthe 1234\na\r 5678\n", "v.bin: word 2, 'a\\r': has an end of a line in the word"),
        ("v.bin", b"1 1\na\nb 1234\n", "v.bin: word 1, 'a\\nb': has an end of a line in the word"),
        ("v.txt", b"cat 1 1e39", "v.txt: line 1, 'cat': a number that is not finite"),  # as float32
        ("v.txt", b"cat 1 2\n 1 2", "v.txt: line 2: has no word before its numbers"),
        ("v.bin", b"1 1\n 1234", "v.bin: word 1: has no word before its numbers"),
        ("v.bin", b"0 5\n", "v.bin: its first line says 0 words of 5 numbers"),
        ("v.bin", b"9" * 5000 + b" 1\n", "v.bin: wants a first line with the number of words"),
        ("v.bin.gz", gzip.compress(bytes(99), mtime=0)[:10] + b"\xff" * 20, "v.bin.gz: Error -3 while decompressing"),
    ],
)
def test_damaged_files_are_one_line(tmp_path, name, content, answer):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        vector_files.read(tmp_path / name)
    assert answer in str(error.value)


def test_words_with_spaces_are_read_and_those_that_are_left_out_are_counted(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(errors, "note", said.append)
    (tmp_path / "v.txt").write_text("the 1 2\n. . . 3 4\nat name@x 5 6\n")
    assert vector_files.read(tmp_path / "v.txt")[0] == ["the", ". . .", "at name@x"]
    assert not said
    (tmp_path / "v.bin").write_bytes(b"3 1\na\xff 1234\na\xfe 1234\nthe 5678\n")
    assert vector_files.read(tmp_path / "v.bin")[0] == ["a\ufffd", "the"]
    (line,) = said
    assert "v.bin: 1 of 3 words left out: an earlier one is spelled the same (bytes that are not UTF-8" in line


def test_a_file_that_would_fill_memory_is_not_read_to_its_end(tmp_path):
    (tmp_path / "v.bin.gz").write_bytes(gzip.compress(b"9 5\n" + bytes(1 << 25), 1))
    tracemalloc.start()
    with pytest.raises(UserError, match="ends at word 1 of the 9 words"):
        vector_files.read(tmp_path / "v.bin.gz")
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


def test_words_and_suffixes_that_a_file_does_not_hold(tmp_path):
    with pytest.raises(UserError, match="the word 'a b' has white space"):
        vector_files.write(tmp_path / "v.txt", ["a b"], VECTORS[:1])
    with pytest.raises(UserError, match=r"wants a file with the suffix .txt, .vec, .glove, .bin"):
        vector_files.write(tmp_path / "v.npy", WORDS, VECTORS)
    assert not list(tmp_path.iterdir())
    (tmp_path / "llama.bin").write_bytes(np.arange(7, dtype=np.int32).tobytes())
    assert not vector_files.is_vectors(tmp_path / "llama.bin")


def model():
    """Royal is the first number, woman the second."""
    vectors = [[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1.1], [0.3, -1, 0.2]]
    return StaticVectors("v.txt", ["man", "woman", "king", "queen", "bank"], np.array(vectors, np.float32))


def test_analogies_and_similarity(tmp_path):
    vectors = model()
    assert vectors.analogy("man", "king", "Woman", 2)[0][0] == "queen"
    (tmp_path / "a.txt").write_text(": family\nman king woman queen\nman woman king bank\nman king wizard witch\n")
    assert vector_tests.accuracy(vectors, vector_tests.read_tests(tmp_path / "a.txt").analogies) == (0.5, 2)
    (tmp_path / "p.tsv").write_text(
        "# words\nword1\tword2\tscore\nking\tqueen\t9\nman\tbank\t1\nMan\tking\t5\nman\txx\t3\n"
    )
    pairs = vector_tests.read_tests(tmp_path / "p.tsv").pairs
    assert len(pairs) == 4 and vector_tests.similarity(vectors, pairs) == (pytest.approx(1.0), 3)
    # A word that is made of its pieces counts as any other.
    composed = StaticVectors("run", vectors.words, vectors.vectors_VxD, lambda word: vectors.vector("king"))
    assert vector_tests.similarity(composed, pairs)[1] == 4
    np.testing.assert_array_equal(composed.embed(["xx"])[0], vectors.vector("king"))
    (tmp_path / "p.tsv").write_text("king queen 9\nman bank\n")
    with pytest.raises(UserError, match=r"line 2: wants two words and a score, or four words, got 'man bank\\n'"):
        vector_tests.read_tests(tmp_path / "p.tsv")


PAIRS = [("man", "bank", 1.58), ("king", "queen", 9.2), ("man", "king", 5.0)]


@pytest.mark.parametrize(
    ("content", "pairs"),
    [
        ("word1\tword2\tPOS\tSimLex999\tx\nman\tbank\tA\t1.58\t2\nking\tqueen\tN\t9.2\t3\nman\tking\tN\t5\t3\n", PAIRS),
        ("Word 1,Word 2,Human (mean)\nman,bank,1.58\nking,queen,9.20\nman,king,5\n", PAIRS),
        ("Word 1,Word 2,Human (mean),1,2\nman,bank,1.58,1,2\nking,queen,9.20,9,9\nman,king,5,5,5\n", PAIRS),
        ("one two human score\nman bank A 1.58\nking queen N 9.2\nman king N 5\n", PAIRS),
        ("man bank\t1.58\r\nking queen\t9.2\r\nman king\t5\r\n", PAIRS),
    ],
)  # fmt: skip
def test_published_files_of_pairs_are_read_as_they_are(tmp_path, content, pairs):
    (tmp_path / "p.txt").write_text(content)
    assert vector_tests.read_tests(tmp_path / "p.txt") == (pairs, [])


def test_too_few_known_words_are_a_message(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    vector_files.write("v.txt", WORDS, VECTORS)
    (tmp_path / "p.txt").write_text("a b 1\nthe cat 2\nc d 3\n")
    (tmp_path / "a.txt").write_text("the cat a b\n")
    assert cli.main(["vectors", "v.txt", "p.txt", "a.txt"]) == 2
    said = capsys.readouterr()
    assert "nan" not in said.out and "a.txt: each of the 1 analogies has an unknown word" in said.err
    assert "p.txt: 1 of 3 pairs are known; a correlation wants three or more" in said.err


def test_words_are_folded_and_cut_as_the_run_did():
    known, composed = ["don", "'", "t", "eta"], []

    def compose(word):
        composed.append(word)
        return None if word == "a" else np.full(4, 9, np.float32)

    vectors = StaticVectors(
        "run", known, np.eye(4, dtype=np.float32), compose, Words([*SPECIAL.values(), *known], True)
    )
    assert vectors.row("Éta") == 3 and vectors.row("éta") == 3
    vectors.vector("Alphabéta")
    assert composed == ["alphabeta"]
    with pytest.raises(UserError, match="run: has no vector of 'A'"):
        vectors.nearest("A", 1)
    np.testing.assert_allclose(vectors.embed(["Don't", "Éta a"]), [[1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 0, 1]])
    whole = StaticVectors(
        "run", ["don't"], np.ones((1, 2), np.float32), None, Words([*SPECIAL.values(), "don't"], True)
    )
    np.testing.assert_array_equal(whole.embed(["DON'T"]), [[1, 1]])


# ---- a run ----------------------------------------------------------------------------------------------------------


TINY = """
model: {kind: word_vectors, vocab_size: 200, embed_dim: 8}
objective: {kind: skip_gram, window: 2, stretch: 1.0, subsample: 0.0, noise: 4}
data: {path: text.txt, cache_dir: cache, tokenizer: {kind: words, min_count: 2}, length: 32, batch_size: 8,
       validation_fraction: 0.2}
optimizer: {kind: sparse_sgd, learning_rate: 0.1, updates: 4, schedule: {kind: linear, end_fraction: 1e-4}}
train: {steps: 6, eval_every: 6, log_every: 2}
checkpoint: {every: 3}
log: {tensorboard: false}
"""


CLASSIFIER = """
model: {kind: word_vectors, vocab_size: 33, embed_dim: 8}
init_from: {path: imported, partial: true}
task: {kind: classification, labels: [a, b]}
objective: {features: {layers: last}}
data: {path: rows.jsonl, cache_dir: cache, tokenizer: {kind: words, lowercase: true, path: imported/tokenizer},
       length: 8, batch_size: 8, validation_fraction: 0.3}
optimizer: {kind: adamw, learning_rate: 0.1}
train: {steps: 6, log_every: 6}
log: {tensorboard: false}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a text, a recipe, and a run of it."""
    directory = tmp_path_factory.mktemp("vectors")
    rng = np.random.default_rng(0)
    names = [f"w{'abcdefghij'[i]}{'xyz'[j]}" for i in range(10) for j in range(3)]
    (directory / "text.txt").write_text("\n".join(" ".join(rng.choice(names, 40)) for _ in range(60)))
    (directory / "recipe.yaml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert cli.main(["train", "recipe.yaml", "run_dir=run"]) == 0
    return directory


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_bits(place, monkeypatch):
    monkeypatch.chdir(place)
    assert (
        cli.main(["train", "recipe.yaml", "run_dir=other", "train.steps=3", "optimizer.schedule={kind: constant}"]) == 0
    )
    whole = ["run_dir=whole", "optimizer.schedule={kind: constant}"]
    assert cli.main(["train", "recipe.yaml", *whole]) == 0
    assert cli.main(["train", "recipe.yaml", "run_dir=other", "optimizer.schedule={kind: constant}"]) == 0
    one, two = final(place / "whole", 6), final(place / "other", 6)
    assert np.asarray(one.params["model"]["token_embed"]["table"]).any()
    assert_bit_equal([one] * 10, [two] * 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["objective.kind=cbow", "objective.classifier=hierarchical_softmax", "objective.noise=32"],
        ["objective.subwords={buckets: 50}"],
        ["objective={kind: glove, window: 3}", "optimizer.kind=sparse_adagrad"],
    ],
)
def test_every_form_runs_from_text_to_vectors(place, monkeypatch, capsys, settings):
    monkeypatch.chdir(place)
    name = f"form{len(settings[0])}"
    assert cli.main(["train", "recipe.yaml", f"run_dir={name}", *settings]) == 0
    vectors = static_vectors.of_run(name)
    assert len(vectors.words) == 30 and vectors.vectors_VxD.shape == (30, 8) and np.isfinite(vectors.vectors_VxD).all()
    assert cli.main(["neighbours", name, "wax", "-k", "3"]) == 0
    assert cli.main(["inspect", "recipe.yaml", *settings, "-n", "1"]) == 0
    if "subwords" in settings[0]:
        assert cli.main(["neighbours", name, "waxes"]) == 0  # its n-grams
    capsys.readouterr()


@pytest.mark.slow
def test_vectors_go_to_a_file_and_back_and_to_a_classifier(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert cli.main(["export", "run", "run.bin"]) == 0 and cli.main(["import", "run.bin", "imported"]) == 0
    assert cli.main(["export", "imported", "again.bin"]) == 0
    assert (place / "run.bin").read_bytes() == (place / "again.bin").read_bytes()
    rows = [{"text": f"{word} wax", "label": "a" if word < "wc" else "b"} for word in ("wax", "way", "wdx", "wez") * 12]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (place / "classifier.yaml").write_text(CLASSIFIER)
    assert cli.main(["train", "classifier.yaml", "run_dir=classifier"]) == 0
    table = final(place / "classifier", 6).params["model"]["token_embed"]["table"]
    np.testing.assert_array_equal(table[3:33], static_vectors.of_run("run").vectors_VxD)
    for argv, answer in (
        (["export", "run", "again.bin"], "again.bin: already exists"),
        (["export", "classifier", "c.bin"], "classifier: makes no static vectors"),
        (["import", "run.bin", "o", "--partial"], "run.bin: is a file of word vectors, which has no options"),
        (["vectors", "run", "rows.jsonl"], "rows.jsonl: line 2: wants two words and a score"),
        (["train", "recipe.yaml", "run_dir=r", "data.tokenizer.min_count=999"], "min_count: 999: no word"),
        (["train", "recipe.yaml", "run_dir=r", "objective.window=0"], "objective.window"),
    ):
        capsys.readouterr()
        assert cli.main(argv) == 2
        error = capsys.readouterr().err
        assert answer in error and error.strip().count("\n") == 0, error
