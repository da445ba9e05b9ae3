"""ELMo's published layout: a file written here is read, agrees with torch in all layers, and is written again."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.data import tokenizers
from jaxpt.train import weights
from tests.hf.states import as_run

h5py = pytest.importorskip("h5py")

CELLS, P, E, LONGEST, FILTERS = 6, 4, 3, 8, ((1, 2), (2, 3), (3, 4))
OPTIONS = {
    "lstm": {
        "use_skip_connections": True, "projection_dim": P, "cell_clip": 0.5, "proj_clip": 0.3, "dim": CELLS,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu", "filters": [list(x) for x in FILTERS], "n_highway": 2, "embedding": {"dim": E},
        "n_characters": 262, "max_characters_per_token": LONGEST,
    },
}  # fmt: skip
VOCABULARY = ["</S>", "<S>", "<UNK>", "the", "cat", ","]
TEXT = ["the", "überlang", "cat", ",", "cats", "the"]


def arrays():
    """Random arrays by bilm-tf's names."""
    rng, F = np.random.default_rng(0), sum(number for _, number in FILTERS)
    shapes = {"char_embed": (261, E), "CNN_proj/W_proj": (F, P), "CNN_proj/b_proj": (P,)}
    for i, (width, number) in enumerate(FILTERS):
        shapes |= {f"CNN/W_cnn_{i}": (1, width, E, number), f"CNN/b_cnn_{i}": (number,)}
    for i in range(2):
        for gate in ("carry", "transform"):
            shapes |= {f"CNN_high_{i}/W_{gate}": (F, F), f"CNN_high_{i}/b_{gate}": (F,)}
    for direction in range(2):
        for layer in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (2 * P, 4 * CELLS), f"{cell}/B": (4 * CELLS,), f"{cell}/W_P_0": (CELLS, P)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder, options=OPTIONS, **changed):
    folder.mkdir()
    (folder / "elmo_tiny_options.json").write_text(json.dumps(options))
    (folder / "vocab-tiny.txt").write_text("".join(f"{word}\n" for word in VOCABULARY), encoding="utf-8")
    with h5py.File(folder / "elmo_tiny_weights.hdf5", "w") as file:
        for name, x in (arrays() | changed).items():
            file[name] = x
    return folder


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """(published directory, run_dir)."""
    folder = tmp_path_factory.mktemp("elmo")
    source = write(folder / "published")
    assert cli.main(["import", str(source), str(folder / "run")]) == 0
    return source, folder / "run"


def characters(word):
    """Ids of bilm-tf's batcher: those of its vocabulary, and 1 more."""
    of_word = {"<S>": [256], "</S>": [257]}.get(word, list(word.encode()[: LONGEST - 2]))
    ids = [258, *of_word, 259]
    return np.array(ids + [260] * (LONGEST - len(ids))) + 1


def by_torch(file, words):
    """States of all layers [3, words, 2P]: the published formulas, word by word."""
    import torch

    w = {name: torch.tensor(x) for name, x in file.items()}
    embedding = torch.cat([torch.zeros(1, E), w["char_embed"]])

    def vector(word):
        x_MxE, outputs = embedding[torch.tensor(characters(word))], []
        for i, (width, _) in enumerate(FILTERS):
            windows = torch.stack([x_MxE[t : t + width].reshape(-1) for t in range(LONGEST - width + 1)])
            kernel = w[f"CNN/W_cnn_{i}"].reshape(-1, FILTERS[i][1])
            outputs.append(torch.relu((windows @ kernel + w[f"CNN/b_cnn_{i}"]).max(0).values))
        x = torch.cat(outputs)
        for i in range(2):
            gate = torch.sigmoid(x @ w[f"CNN_high_{i}/W_carry"] + w[f"CNN_high_{i}/b_carry"])
            new = torch.relu(x @ w[f"CNN_high_{i}/W_transform"] + w[f"CNN_high_{i}/b_transform"])
            x = gate * new + (1 - gate) * x
        return x @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"]

    def lstm(xs, direction, layer):
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        h, c, outputs = torch.zeros(P), torch.zeros(CELLS), []
        for x in xs:
            i, j, f, o = torch.chunk(torch.cat([x, h]) @ w[f"{cell}/W_0"] + w[f"{cell}/B"], 4)
            c = (torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)).clamp(-0.5, 0.5)
            h = ((torch.sigmoid(o) * torch.tanh(c)) @ w[f"{cell}/W_P_0"]).clamp(-0.3, 0.3)
            outputs.append(h + x if layer else h)
        return outputs

    layers = [[], []]
    for direction in range(2):
        xs = [vector(word) for word in words]
        xs = xs[::-1] if direction else xs
        states = [xs]
        for layer in range(2):
            states.append(xs := lstm(xs, direction, layer))
        layers[direction] = [torch.stack(x[::-1] if direction else x) for x in states]
    return torch.stack([torch.cat(both, -1) for both in zip(*layers)]).numpy()


@pytest.mark.parity
def test_all_layers_are_those_of_torch(imported):
    """Known words, one that is spelled, one that is spelled and too long; another text beside it, and padding."""
    source, run = imported
    tokenizer, config = tokenizers.load(run / "tokenizer"), configs.load(run)
    network = config.objective.network(config.model)
    pieces = [[1], *tokenizer.encode_words([TEXT])[0], [0]]
    tokens, sizes = [i for word in pieces for i in word], [len(word) for word in pieces]
    row = np.array([*tokens, 1, 3, 0, 0, 0])[None]
    ids = np.repeat([1, 2, 0], [len(tokens), 3, 2])[None]
    params = weights.read(run, 0)
    found = jax.jit(lambda p: network.bind(p).encode(row, segment_ids=ids, layers=True).layers[:, 0])(params)
    with h5py.File(source / "elmo_tiny_weights.hdf5") as file:
        named = {name: file[name][...] for name in arrays()}
    want = by_torch(named, ["<S>", *TEXT, "</S>"])
    np.testing.assert_allclose(found[:, : len(tokens)], np.repeat(want, sizes, axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        found[:, len(tokens) : len(tokens) + 3], by_torch(named, ["<S>", "the", "</S>"]), rtol=1e-5, atol=1e-5
    )


def test_an_export_has_the_same_files(imported, tmp_path, capsys):
    source, run = imported
    assert cli.main(["export", str(run), str(tmp_path / "out")]) == 0
    assert "options.json, weights.hdf5, vocab.txt" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "options.json").read_text()) == OPTIONS
    assert (tmp_path / "out" / "vocab.txt").read_text("utf-8") == (source / "vocab-tiny.txt").read_text("utf-8")
    with h5py.File(tmp_path / "out" / "weights.hdf5") as file:
        for name, x in arrays().items():
            np.testing.assert_array_equal(file[name], x, err_msg=name)


def test_the_softmax_of_a_run_is_in_no_such_file(imported, tmp_path, capsys):
    _, run = imported
    config = configs.load(run)
    objective = config.objective.model_copy(update={"has_softmax": True})
    trained = config.model_copy(update={"run_dir": str(tmp_path / "run"), "objective": objective})
    params = as_run(trained)
    shutil.copytree(run / "tokenizer", tmp_path / "run" / "tokenizer")
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("skipped, in no such file: softmax\n")
    assert cli.main(["import", str(tmp_path / "out"), str(tmp_path / "again")]) == 0
    again = dict(weights.Saved(tmp_path / "again", 0))
    assert set(params) - set(again) == {path for path in params if path.startswith("heads/softmax/")}
    for path in set(again) - {"model/words/spelling"}:
        rows = slice(path == "model/words/characters", None)  # the first one is that of "no word"
        np.testing.assert_array_equal(again[path][rows], params[path][rows], err_msg=path)


def test_without_a_vocabulary_all_words_are_spelled(imported, tmp_path):
    """By their bytes; the parameters are the same."""
    source, run = imported
    shutil.copytree(source, tmp_path / "published")
    (tmp_path / "published" / "vocab-tiny.txt").unlink()
    assert cli.main(["import", str(tmp_path / "published"), str(tmp_path / "run")]) == 0
    tokenizer = tokenizers.load(tmp_path / "run" / "tokenizer")
    assert tokenizer.words == VOCABULARY[:3] and configs.load(tmp_path / "run").model.vocab_size == 3 + 512
    (ids,) = tokenizer.encode_words([["cat", "ü"]])
    assert ids == [[3 + byte + 256 * (n > 0) for n, byte in enumerate(word.encode())] for word in ("cat", "ü")]
    with_words, alone = (dict(weights.Saved(path, 0)) for path in (run, tmp_path / "run"))
    assert set(with_words) == set(alone)
    spelling = [of.pop("model/words/spelling") for of in (with_words, alone)]
    np.testing.assert_array_equal(spelling[1][:3], spelling[0][:3])
    np.testing.assert_array_equal(spelling[1][3:515], spelling[0][6:518])
    for path, x in alone.items():
        np.testing.assert_array_equal(x, with_words[path], err_msg=path)


@pytest.mark.parametrize(
    "change", [lambda content: b"", lambda content: b"garbage" * 99, lambda content: content[:-100]]
)
def test_a_damaged_file_of_weights_is_told_in_one_line(change, imported, tmp_path, capsys):
    shutil.copytree(imported[0], tmp_path / "published")
    file = tmp_path / "published" / "elmo_tiny_weights.hdf5"
    file.write_bytes(change(file.read_bytes()))
    assert cli.main(["import", str(tmp_path / "published"), str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"{file}: damaged, or no HDF5 file (" in said and len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["published"]


def test_without_h5py_the_command_that_installs_it_is_named(imported, tmp_path, capsys, monkeypatch):
    source, run = imported
    monkeypatch.setitem(sys.modules, "h5py", None)
    for words in (["import", str(source)], ["export", str(run)]):
        assert cli.main([*words, str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert "ELMo's weights need h5py: pip install " in said and "[elmo]" in said and len(said.splitlines()) == 1
        assert not [*tmp_path.iterdir()]


def test_folding_of_case_is_named_at_the_import_alone(imported, tmp_path, capsys):
    source, run = imported
    first, out, again = (str(tmp_path / name) for name in ("first", "out", "again"))
    assert cli.main(["import", str(source), first, "data.tokenizer.lowercase=true"]) == 0
    assert configs.load(first).data.tokenizer.lowercase and not configs.load(run).data.tokenizer.lowercase
    capsys.readouterr()
    assert cli.main(["export", first, out]) == 0
    line = f"these files do not say that the run folds case: jaxpt import {out} RUN data.tokenizer.lowercase=true does"
    assert line in capsys.readouterr().out
    assert cli.main(["import", out, again, "data.tokenizer.lowercase=true"]) == 0
    ids = [tokenizers.load(f"{path}/tokenizer").encode("The CAT Ü") for path in (first, again)]
    assert ids[0] == ids[1] == tokenizers.load(run / "tokenizer").encode("the cat u")
    assert cli.main(["import", out, str(tmp_path / "no"), "data.length=9"]) == 2
    assert "overrides other than data.tokenizer.lowercase=true" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_vectors_of_words_and_features_of_a_task(imported, tmp_path, capsys):
    """A mix of layers and a BiLSTM are trained on the frozen model, whose weights stay."""
    _, run = imported
    (tmp_path / "texts.txt").write_text("the cat, the cats\nthe dog\n")
    out = tmp_path / "vectors.parquet"
    command = ["embed", str(run), str(tmp_path / "texts.txt"), "--out", str(out), "--layer", "mix"]
    assert cli.main(command) == 0, capsys.readouterr().err
    rows = "".join(f"{word}\tD\n{noun}\tN\n\n" for word, noun in [("the", "cat"), ("a", "dogs"), ("the", "mats")] * 8)
    (tmp_path / "rows.conll").write_text(rows)
    recipe = {
        "init_from": {"path": str(run)}, "model": configs.load(run).model.model_dump(mode="json"),
        "task": {"kind": "tagging"}, "objective": {"features": {"layers": "mix", "bilstm": {"size": 4}}},
        "data": {
            "tokenizer": {"kind": "spelled_words", "path": str(run / "tokenizer")}, "length": 32, "batch_size": 8,
            "path": str(tmp_path / "rows.conll"), "cache_dir": str(tmp_path / "cache"),
        },
        "optimizer": {"kind": "adamw", "learning_rate": 0.05}, "train": {"steps": 20}, "mesh": {"data": 8},
        "log": {"tensorboard": False},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert cli.main(["train", str(tmp_path / "recipe.yaml"), f"run_dir={tmp_path / 'task'}"]) == 0
    shown = capsys.readouterr()
    assert "mix of layers" in shown.out
    before, after = weights.read(run, 0)["model"], weights.read(tmp_path / "task", 20)["model"]
    jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.parametrize(
    ("options", "changed", "message"),
    [
        ({"lstm": OPTIONS["lstm"] | {"dim": 7}}, {}, "[8, 24]; elmo_tiny_options.json makes it [8, 28]"),
        ({"char_cnn": OPTIONS["char_cnn"] | {"n_highway": 3}}, {}, "CNN_high_2/W_carry is missing"),
        ({"char_cnn": OPTIONS["char_cnn"] | {"n_highway": 1}}, {}, "has CNN_high_1/W_carry, which a model of"),
        ({"char_cnn": OPTIONS["char_cnn"] | {"activation": "tanh"}}, {}, "activation 'tanh'"),
        ({"lstm": {"dim": 6}}, {}, "'projection_dim' is missing"),
        ({"lstm": []}, {}, "lstm: wants an object, got []"),
        ({"lstm": OPTIONS["lstm"] | {"cell_clip": "x"}}, {}, "cell_clip: Input should be a valid number"),
        ({"lstm": OPTIONS["lstm"] | {"projection_dim": "x"}}, {}, "projection_dim: Input should be a valid integer"),
        ({"char_cnn": OPTIONS["char_cnn"] | {"filters": 5}}, {}, "filters: Input should be a valid tuple"),
        ({}, {"CNN/b_cnn_0": np.array([b"a", b"b"])}, "CNN/b_cnn_0: damaged, or no numbers"),
        ({}, {"CNN/b_cnn_0": np.array([np.nan, 0], np.float32)}, "CNN/b_cnn_0 is not finite"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_told_in_one_line(tmp_path, capsys, options, changed, message):
    source = write(tmp_path / "published", OPTIONS | options, **changed)
    assert cli.main(["import", str(source), str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err.replace("\n", " ")
    assert message.replace(" ", "") in shown.replace(" ", ""), shown
    assert not (tmp_path / "run").exists()


def test_what_it_does_not_do_is_said(imported, tmp_path, capsys):
    source, run = imported
    assert cli.main(["import", str(source), str(tmp_path / "run"), "--verify"]) == 2
    assert cli.main(["export", str(run), str(tmp_path / "out"), "--verify"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    shutil.copytree(source, tmp_path / "published")
    (tmp_path / "published" / "elmo_tiny_options.json").unlink()
    assert cli.main(["import", str(tmp_path / "published"), str(tmp_path / "run")]) == 2
    assert "has 0 files *options.json; wants one" in capsys.readouterr().err.replace("\n", " ")
