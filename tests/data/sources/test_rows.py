"""Rows of labelled files in shards: each row once, whichever shards are read, in whatever order."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.data import datasets, run_tokenizer, seqio_tasks, tokenizers
from jaxpt.data.fingerprint import changes
from jaxpt.data.parts import Part
from jaxpt.data.records import cache
from jaxpt.data.sources import rows as labelled_rows
from jaxpt.data.sources.base import interleaved_texts
from jaxpt.data.sources.rows import Rows
from jaxpt.data.tables import tfds
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.errors import UserError
from jaxpt.runtime.progress import Progress

FILES = {"a.tsv": 10, "b.tsv": 3, "c.tsv": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, number = tmp_path_factory.mktemp("rows"), itertools.count()
    for name, count in FILES.items():
        lines = [f"row {n} of the cat\t{'yes' if n % 3 else 'no'}" for n in itertools.islice(number, count)]
        (folder / name).write_text("\n".join(["text\tlabel", *lines]) + "\n")
    (folder / "held_out.tsv").write_text("text\tlabel\nthe cat of row 1\tno\nthe cat of row 2\tyes\n")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "row", "of", "the", "cat", *map(str, range(20))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


@pytest.fixture(scope="module")
def config(folder):
    return configs.build(
        {
            "model": {"kind": "bert", "vocab_size": 64, "layers": 1, "embed_dim": 8, "heads": 1, "mlp_dim": 8},
            "objective": {"kind": "classification"},
            "task": {"kind": "classification", "labels": ["no", "yes"]},
            "data": {
                "path": [str(folder / name) for name in FILES],
                "validation_path": str(folder / "held_out.tsv"),
                "length": 16,
                "batch_size": 4,
                "cache_dir": str(folder / "cache"),
                "tokenizer": {"kind": "wordpiece", "path": str(folder / "vocab.txt"), "lowercase": True},
            },
        }
    )


def source_of(config, rows_per_shard):
    task = ClassificationTask(labels=("no", "yes"))
    return Rows(config.data, task, rows_per_shard)


@pytest.mark.parametrize("rows_per_shard, sizes", [(4, [4, 4, 4, 2]), (5, [5, 5, 4]), (100, [14]), (None, [10, 3, 1])])
def test_each_row_is_in_one_shard(config, rows_per_shard, sizes):
    source = source_of(config, rows_per_shard)
    shards = source.shards("train")
    texts = [[row.row.values["text"] for row in source.rows("train", shard)] for shard in shards]
    assert [len(of_shard) for of_shard in texts] == sizes
    assert [*itertools.chain(*texts)] == [f"row {n} of the cat" for n in range(14)]
    backwards = [[row.row.values["text"] for row in source.rows("train", shard)] for shard in reversed(shards)]
    assert backwards == texts[::-1]
    places = [(row.where.rpartition("/")[2], row.origin) for row in source.rows("train", shards[-1])]
    assert places[-1] == ("c.tsv: line 2", (2, 2))


def test_a_vocabulary_is_of_texts_and_not_of_their_json(config):
    """Of other columns there is another vocabulary."""
    source = source_of(config, 4)
    assert list(interleaved_texts([source])) == [f"row {n} of the cat" for n in range(14)]
    tasks = config.task, config.task.model_copy(update={"text": "label"})
    parts = [Part("data", config.model_copy(update={"task": task})) for task in tasks]
    first, second = (run_tokenizer._trained_at(config, [part], [source], [None]) for part in parts)
    assert first != second


def test_a_file_is_read_once_for_all_its_shards(config, monkeypatch):
    source, opened = source_of(config, 4), []
    shards, read = source.shards("train"), labelled_rows.RowFile.rows
    monkeypatch.setattr(labelled_rows.RowFile, "rows", lambda file, task: opened.append(file.name) or read(file, task))
    assert sum(1 for shard in shards for _ in source.rows("train", shard)) == 14
    assert len(opened) == 3


def offline(config, rows_per_shard):
    tokenizer = tokenizers.load(config.data.tokenizer.path, "wordpiece", lowercase=True)
    transforms = config.objective.data_spec(config.data.length).transforms(tokenizer.vocabulary, config.seed)
    return seqio_tasks.Offline(config.data, transforms, None, "train", tokenizer, config.task, rows_per_shard)


def test_records_are_the_same_and_those_that_are_made_are_kept(config, folder, tmp_path, monkeypatch):
    whole = cache.build(offline(config, None), tmp_path / "files", {}, Progress(), workers=1)
    make_shard, numbers = cache.make_shard, []

    def stopped(work, number, *arguments):
        if len(numbers) == 2:
            raise KeyboardInterrupt
        numbers.append(number)
        return make_shard(work, number, *arguments)

    with monkeypatch.context() as once:
        once.setattr(cache, "make_shard", stopped)
        with pytest.raises(KeyboardInterrupt):
            cache.build(offline(config, 4), tmp_path / "shards", {}, Progress(), workers=1)
    monkeypatch.setattr(cache, "make_shard", lambda work, n, *rest: numbers.append(n) or make_shard(work, n, *rest))
    store = cache.build(offline(config, 4), tmp_path / "shards", {}, Progress(), workers=1)
    assert numbers == [0, 1, 2, 3] and len(store) == len(whole) == 14
    for name in ("tokens", "target", "origin"):
        np.testing.assert_array_equal(store.values(name), whole.values(name))
    assert store.manifest["counts"]["documents"] == 14 and store.manifest["counts"]["files"] == {
        "0": 10,
        "1": 3,
        "2": 1,
    }


def test_older_runs_have_the_same_batches(config, tmp_path):
    config = config.model_copy(update={"data": config.data.model_copy(update={"cache_dir": str(tmp_path)})})
    old, new = (datasets.prepare(config, save=False, workers=1, order=order) for order in (1, 2))
    assert "order" not in old.fingerprint and new.fingerprint["order"] == 2
    for expected, batch in itertools.islice(zip(old.train.batches(), new.train.batches()), 8):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, expected[name], name)


def test_a_tfds_data_set_is_known_by_its_version_and_size(config, monkeypatch):
    def fingerprint_of(path, name, num_bytes=30):
        split = SimpleNamespace(num_examples=3, num_bytes=num_bytes)
        info = SimpleNamespace(full_name=name, splits={"train": split, "validation": split})
        monkeypatch.setattr(tfds, "prepared_builder", lambda name: SimpleNamespace(info=info))
        update = {"source": "tfds", "path": path, "validation_path": "validation"}
        return source_of(SimpleNamespace(data=config.data.model_copy(update=update)), 4).fingerprint()

    before = {"source": fingerprint_of("films", "films/1.0.0")}
    assert not changes(before, {"source": fingerprint_of("moved/films", "films/1.0.0")})
    assert changes(before, {"source": fingerprint_of("films", "films/1.0.1")})
    assert changes(before, {"source": fingerprint_of("films", "films/1.0.0", 31)})
    older = {"source": {key: value for key, value in before["source"].items() if key != "tfds"}}
    assert not changes(older, before)
    with pytest.raises(UserError, match="no split 'validatoin'; did you mean validation"):
        tfds.revision("films", "validatoin")


def test_a_mistake_in_a_later_shard_is_named(config, folder, tmp_path):
    bad = tmp_path / "bad.tsv"
    bad.write_text((folder / "a.tsv").read_text() + "row 3 of the cat\tmaybe\n")
    config = config.model_copy(update={"data": config.data.model_copy(update={"path": str(bad)})})
    with pytest.raises(UserError, match=r"bad\.tsv: line 12: label 'maybe' is none of task\.labels"):
        cache.build(offline(config, 4), tmp_path / "records", {}, Progress(), workers=1)
