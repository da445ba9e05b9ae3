"""The splits of a training file: stratified, disjoint, and as many rows as asked for."""

import collections
import json

import pytest

from jaxpt import config as configs
from jaxpt.data.batches.write import _write_rows
from jaxpt.data.labelled import examples
from jaxpt.data.labelled.examples import choose, split_rows
from jaxpt.data.sources.rows import Rows
from jaxpt.errors import UserError
from tests import families


def config(tmp_path, validation=False, **data):
    """A recipe for 400 rows, a quarter of which are spam."""
    lines = [f"text number {n}\t{'spam' if n % 4 == 0 else 'ham'}" for n in range(400)]
    for name, rows in (("train", lines), ("valid", lines[:50])):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    tree = families.tree("bert", task={"kind": "classification", "labels": ["ham", "spam"]})
    tree.pop("objective")
    tree["data"] |= {"path": str(tmp_path / "train.tsv"), "validation_fraction": 0.1, **data}
    if validation:
        tree["data"]["validation_path"] = str(tmp_path / "valid.tsv")
    return configs.build(tree)


def texts(config, split):
    return [row.row.values["text"] for row in split_rows(config, split)]


@pytest.mark.parametrize("validation", [False, True])
def test_train_rows_are_a_stratified_part_of_the_training_rows(tmp_path, validation):
    every = config(tmp_path, validation)
    few = config(tmp_path, validation, train_rows=100)
    chosen = split_rows(few, "train")
    assert texts(few, "validation") == texts(every, "validation")
    assert set(texts(few, "train")) < set(texts(every, "train")) - (
        set() if validation else set(texts(every, "validation"))
    )
    assert collections.Counter(row.row.values["label"] for row in chosen) == {"ham": 75, "spam": 25}
    source = Rows(few.data, few.task)
    assert len(list(source.documents("train"))) == 100
    assert len(list(source.documents("validation"))) == len(texts(every, "validation"))
    assert texts(config(tmp_path, validation, train_rows=1000), "train") == texts(every, "train")


@pytest.mark.parametrize("validation", [False, True])
def test_a_part_of_the_training_rows_is_for_the_test(tmp_path, validation):
    """Stratified, of neither other split, and beside the rows of the test's own file; origins name each row once."""
    (tmp_path / "test.tsv").write_text("text\tlabel\nan own one\tham\n")
    own = config(tmp_path, validation, test_path=str(tmp_path / "test.tsv"), test_fraction=0.2, train_rows=100)
    tested = split_rows(own, "test")
    assert tested[0].row.values["text"] == "an own one" and len({row.origin for row in tested}) == len(tested)
    counts = collections.Counter(row.row.values["label"] for row in tested[1:])
    left = 400 if validation else 360
    assert counts == {"ham": left * 3 // 20, "spam": left // 20}
    assert not set(texts(own, "test")) & (
        set(texts(own, "train")) | (set() if validation else set(texts(own, "validation")))
    )
    assert len(texts(own, "train")) == 100
    assert texts(config(tmp_path, validation, test_fraction=0.2), "test") == texts(own, "test")[1:]
    source = Rows(own.data, own.task)
    assert [json.loads(text)["text"] for *_, text in source.documents("train")] == texts(own, "train")


def test_rows_of_a_group_are_in_the_same_split(tmp_path):
    lines = [f"text {n}\t{'ham' if n % 3 else 'spam'}\t{n // 4}" for n in range(400)]
    one = config(tmp_path, test_fraction=0.2)
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel\tquestion", *lines]) + "\n")
    groups = {}
    for split_by in ("group", "text", None):
        task = one.task.model_copy(update={"group": "question", "split_by": split_by})
        by_split = {
            split: [row.row.values["question"] for row in split_rows(one.model_copy(update={"task": task}), split)]
            for split in ("train", "validation", "test")
        }
        assert sum(map(len, by_split.values())) == 400 and len(by_split["validation"]) == pytest.approx(40, abs=2)
        groups[split_by] = by_split
    assert sum(len(set(of_split)) for of_split in groups["group"].values()) == 100
    assert groups["text"] == groups[None] and len(set(groups["text"]["validation"])) > 20, "older runs have no key"


def test_rows_beside_prepared_batches_are_not_divided_again(tmp_path):
    before = config(tmp_path, test_fraction=0.2, train_rows=100)
    _write_rows(before, tmp_path / "batches")
    after = config(tmp_path, test_fraction=0.2, train_rows=100, source="batches", path=str(tmp_path / "batches"))
    for split in ("train", "validation", "test"):
        assert texts(after, split) == texts(before, split)


def test_rows_are_read_once_while_their_file_does_not_change(tmp_path, monkeypatch):
    one = config(tmp_path)
    first = split_rows(one, "train")
    assert all(a is b for a, b in zip(first, split_rows(one, "train"), strict=True))
    first.clear()  # a list of the caller's own
    assert len(split_rows(one, "train")) == 360
    assert len(split_rows(config(tmp_path, validation_fraction=0.5), "train")) == 200
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("one more\tham\n")
    assert len(split_rows(one, "train")) + len(split_rows(one, "validation")) == 401
    monkeypatch.setattr(examples, "KEPT_BYTES", 100)
    large = config(tmp_path, validation_fraction=0.25)
    rows = split_rows(large, "validation"), split_rows(large, "validation")
    assert rows[0] == rows[1] and rows[0][0] is not rows[1][0]


def test_what_is_prepared_keeps_its_identity_where_nothing_is_for_the_test(tmp_path):
    few = config(tmp_path, train_rows=100)
    chosen = choose(few.data, few.task, split_rows(few, "train"))
    assert repr(chosen) == f"Chosen(held={chosen.held!r}, trained={chosen.trained!r})"


@pytest.mark.parametrize("key, value", [("train_rows", 5), ("test_fraction", 0.1)])
def test_parts_of_rows_are_for_tasks(key, value):
    with pytest.raises(UserError, match=rf"data\.{key}: is for recipes with a task"):
        families.config("bert", data={key: value})


def test_random_weights_take_nothing():
    with pytest.raises(UserError, match=r"random: true no weights are taken; leave out state and layers"):
        families.config("bert", init_from={"path": "there", "random": True, "state": True})


@pytest.mark.parametrize("option", [{"partial": True}, {"layers": [0]}, {"vocabulary": "first"}])
def test_the_whole_state_takes_all(option):
    with pytest.raises(UserError, match=r"state: true the whole state is taken; leave out partial, layers and vocab"):
        families.config("bert", init_from={"path": "there", "state": True} | option)
