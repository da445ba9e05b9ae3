"""Data sets of the hub, through `datasets`, from a directory: what is downloaded is read in the same way."""

import builtins
import json
import shutil

import pytest

from jaxpt.data import tables
from jaxpt.data.fingerprint import changes
from jaxpt.data.sources import opening
from jaxpt.data.tables import Offset, hf_datasets
from jaxpt.errors import UserError
from tests import families


def test_hf_is_a_scheme_of_paths():
    data = families.config("gpt2", data={**families.tree("gpt2")["data"], "path": "hf://lab/texts/en@v1"}).data
    assert (data.source, data.path) == ("hf", "lab/texts/en@v1")
    sources = [{"name": name, "path": f"hf://lab/{name}"} for name in "ab"]
    mixture = families.config(
        "gpt2", data={**families.tree("gpt2")["data"], "path": None, "mixture": sources}
    ).data.mixture
    assert [(source.source, source.path) for source in mixture] == [("hf", "lab/a"), ("hf", "lab/b")]
    with pytest.raises(UserError, match="data: path hf://lab/texts is of the source hf, not of text; leave source out"):
        families.config("gpt2", data={**families.tree("gpt2")["data"], "source": "text", "path": "hf://lab/texts"})


def test_without_the_package(monkeypatch):
    plain = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "datasets":
            raise ModuleNotFoundError("no", name=name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"hf://lab/texts: datasets is not installed: pip install -e '.*\[datasets\]'"):
        next(tables.read("lab/texts", "hf"))


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A directory with two splits of JSONL."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "texts"
    directory.mkdir()
    for split, count in (("train", 2100), ("validation", 3)):
        lines = (json.dumps({"text": f"{split} {i}", "label": i % 2}) for i in range(count))
        (directory / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return str(directory)


@pytest.mark.parity
def test_rows_from_any_number_on(texts):
    assert next(tables.read(texts, "hf", split="validation")) == (1, {"text": "validation 0", "label": 0})
    rows = list(tables.read(texts, "hf", start=Offset(number=1500)))
    assert rows[0] == (1501, {"text": "train 1500", "label": 0}) and len(rows) == 600


@pytest.mark.parity
def test_classes_are_names():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"label": datasets.ClassLabel(names=["no", "yes"]), "tags": [datasets.ClassLabel(names=["O", "B"])]}
    )
    assert hf_datasets._plain(features["label"], 1) == "yes" and hf_datasets._plain(features["label"], -1) is None
    assert hf_datasets._plain(features["tags"], [0, 1]) == ["O", "B"]


@pytest.mark.parametrize(
    ("feature", "cell", "plain"),
    [
        (None, "größer".encode(), "größer"),
        (None, b"a\xff", "a\N{REPLACEMENT CHARACTER}"),
        ([None], [b"a", [b"b", None]], ["a", ["b", None]]),
        ({"x": None, "y": None}, {"x": b"a", "y": 1}, {"x": "a", "y": 1}),
        (None, [{"x": [b"a"]}], [{"x": ["a"]}]),
    ],
)
def test_bytes_are_text(feature, cell, plain):
    assert hf_datasets._plain(feature, cell) == plain


@pytest.mark.parity
def test_a_corpus(texts, tmp_path):
    section = families.tree("gpt2")["data"]
    data = families.config("gpt2", data={**section, "path": f"hf://{texts}", "validation_path": "validation"}).data
    source = opening.open_source(data)
    assert [text for _, _, text in source.documents("validation")] == [f"validation {i}" for i in range(3)]
    assert len(list(source.documents("train"))) == 2100
    assert "by index" in source.tier
    assert source.fingerprint() == opening.open_source(data).fingerprint()
    there = str(shutil.move(texts, tmp_path / "moved"))
    moved = opening.open_source(data.model_copy(update={"path": there}))
    assert not changes({"source": source.fingerprint()}, {"source": moved.fingerprint()}), "wherever it lies"


@pytest.mark.parity
@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"field": "body"}, "data.field: 'body' is no text field of hf://.*; it has text"),
        ({"validation_path": "valid"}, "no split 'valid'; it has train, validation; did you mean validation"),
    ],
)
def test_what_it_does_not_have(settings, answer, texts):
    section = families.tree("gpt2")["data"]
    with pytest.raises(UserError, match=answer):
        opening.open_source(families.config("gpt2", data={**section, "path": f"hf://{texts}", **settings}).data)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["squad", "a/b/c/d"])
def test_what_is_no_name(name):
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match="wants OWNER/NAME"):
        next(tables.read(name, "hf"))
