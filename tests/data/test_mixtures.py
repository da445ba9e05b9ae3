"""Recipes of several tasks, from text to streams: packed, mixed, validated task by task."""

import itertools

import numpy as np
import pytest

from jaxpt.data import datasets
from jaxpt.errors import UserError
from tests import families

WORDS = ("cats", "dogs", "mice")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixtures")
    for number, word in enumerate(WORDS):
        lines = [f"{word} {' '.join(['and', 'so', 'on'] * (i % 5))} {i}" for i in range(20 + 20 * number)]
        (folder / f"{word}.txt").write_text("\n".join(lines))
    return folder


def config(folder, family="gpt2", rates=(3.0, 2.0, 1.0), objective=None, **data):
    tasks = [
        {"name": w, "path": str(folder / f"{w}.txt"), "validation_fraction": 0.2} | ({"rate": r} if r else {})
        for w, r in zip(WORDS, rates)
    ]
    settings = {"mixture": tasks, "cache_dir": str(folder / "cache"), "length": 48, "batch_size": 8, "packing": True}
    return families.config(
        family,
        model={"vocab_size": {"gpt2": 300, "bert": 120}[family]},
        objective={"join_documents": False} | (objective or {}),
        data=settings | data,
    )


def targets(batches):
    return np.concatenate([b["decoder_target_tokens"][b["decoder_loss_weights"] > 0] for b in batches])


@pytest.mark.slow
def test_every_token_of_every_task_once_an_epoch(folder):
    said = []
    data = datasets.prepare(config(folder), report=said.append)
    each = data.train.each()
    assert set(each) == set(WORDS)
    for word, stream in each.items():
        packed = stream.tasks[0]
        assert len(packed) < 0.8 * len(packed.store)
        ids = targets(stream.epoch(8))
        assert len(ids) == (packed.store.lengths("tokens") - 1).sum()
        assert (ids == data.vocabulary.eos).sum() == data.summary[f"{word}/train"]["documents"]
    assert [line.split()[1] for line in said if line.startswith("packing")] == [
        f"{word}/{split}:" for split in ("train", "validation") for word in WORDS
    ]
    assert any(line.startswith("mixture, of every 256 rows: cats 128, dogs 85, mice 43") for line in said)


@pytest.mark.slow
def test_the_mixture_is_part_of_what_determines_the_run(folder):
    prints = [
        datasets.prepare(config(folder, **settings)).fingerprint
        for settings in ({}, {"rates": (1.0, 1.0, 1.0)}, {"packing": False}, {"rates": (None,) * 3})
    ]
    assert prints[0]["mixture"] == {"cats": 128, "dogs": 85, "mice": 43}
    assert prints[1]["mixture"]["cats"] != 128 and not prints[2]["packing"]
    by_size = prints[3]["mixture"]
    assert by_size["cats"] < by_size["dogs"] < by_size["mice"]
    assert prints[0]["records"] == prints[1]["records"]


@pytest.mark.slow
def test_masks_are_new_in_every_epoch_unless_they_are_static(folder):
    def seen(**objective):
        settings = {"next_sentence": False, "dupe_factor": 2, **objective}
        stream = datasets.prepare(config(folder, "bert", objective=settings)).train.each()["cats"]
        rows = list(itertools.islice(stream.batches(), 5 * len(stream)))
        flat = [
            (ids.tobytes(), masks.tobytes())
            for batch in rows
            for ids, masks in zip(batch["encoder_segment_ids"], batch["masked_positions"])
        ]
        return [set(flat[e * len(stream) : (e + 1) * len(stream)]) for e in range(4)]

    fresh, static = seen(), seen(static_masking=True)
    assert all(a != b for a, b in itertools.combinations(fresh, 2))
    assert static[0] == static[2] and static[1] == static[3] and static[0] != static[1]


def test_pairs_of_sentences_are_not_packed(folder):
    with pytest.raises(UserError, match="next_sentence: false"):
        datasets.prepare(config(folder, "bert", objective={"next_sentence": True}, cache_dir="/nowhere"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "a.txt"}, "path belongs into the tasks of mixture"),
        ({"rates": (1.0, None, 1.0)}, "a rate on every task, or on none"),
        ({"mixture": [{"name": "a", "path": "a"}, {"name": "a", "path": "b"}]}, "two tasks have the name 'a'"),
    ],
)
def test_mixtures_that_contradict_themselves(folder, change, words):
    with pytest.raises(UserError, match=words):
        config(folder, **change)
