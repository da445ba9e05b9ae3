"""Statistics that are kept in bounded memory, against those of all values."""

import collections
import doctest

import numpy as np
import pytest

from jaxpt.data import statistics, tables
from jaxpt.data.statistics import Document, Lengths, Sample, Split, Texts


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(statistics)
    assert tried and not failed


def test_quantiles_of_lengths():
    values = np.random.default_rng(0).lognormal(7, 2, 20_000).astype(int)
    lengths = Lengths()
    for value in values.tolist():
        lengths.add(value)
    for share in (0.001, 0.05, 0.5, 0.95, 0.999):
        exact = np.sort(values)[int(np.ceil(share * len(values))) - 1]
        assert lengths.quantile(share) == (exact if exact <= 4096 else pytest.approx(exact, rel=0.008))
    assert (lengths.total, lengths.most, lengths.count) == (values.sum(), values.max(), len(values))
    assert [lengths.above(n) for n in (0, 128, 4096, 16384)] == [(values > n).sum() for n in (0, 128, 4096, 16384)]
    assert len(lengths.bins) < 4096 + 128 * 64, "bounded, however long"
    bins = lengths.histogram()
    assert [count for _, _, count in bins] == [((values >= first) & (values <= last)).sum() for first, last, _ in bins]
    assert bins[2][:2] == (2, 2) and bins[4][:2] == (5, 8) and sum(count for _, _, count in bins) == len(values)


def add(texts, found):
    for text in texts:
        found.add(tables.digest(text), text)


def test_equal_texts_are_counted_exactly_or_in_a_sample():
    texts = [f"text {n}" for n in range(9000) for _ in range(1 + n % 3)]  # 9,000 of 18,000 are copies
    exact, sampled = Texts(), Texts(most=2000)
    add(texts, exact)
    add(texts, sampled)
    found = exact.result(len(texts))
    assert (found["count"], found["share"], found["sampled"]) == (9000, 0.5, 1)
    assert found["example"]["copies"] == 3
    assert sampled.one_in == 8 and len(sampled.texts) <= 2000
    assert sampled.result(len(texts))["count"] == pytest.approx(9000, rel=0.1)


def test_each_value_has_the_same_chance_to_be_in_a_sample():
    drawn = collections.Counter()
    for seed in range(200):
        sample = Sample(20, seed)
        for value in range(100):
            sample.add(value)
        assert len(set(sample.kept)) == 20
        drawn.update(value // 10 for value in sample.kept)
    assert all(count == pytest.approx(400, rel=0.2) for count in drawn.values())


def test_a_split_against_the_training_set():
    train = Split(None)
    train.add([Document(f"the cat {n}", {}) for n in range(5)] + [Document("the cat 0", {})])
    held = Split(None, train)
    held.add([Document("the cat 3", {}), Document("a dog", {}), Document("a dog", {})])
    found = held.result()
    assert found["in_train"] == {"count": 1, "share": 1 / 3, "sampled": 1, "example": "the cat 3"}
    assert found["duplicates"]["count"] == 1 and found["duplicates"]["example"] == {"text": "a dog", "copies": 2}
    assert (found["words"], found["total"], found["characters"]) == (7, 7, 19)
    assert train.result()["duplicates"]["count"] == 1


def test_token_ids_are_documents():
    split = Split(None)
    split.add([Document(np.arange(n, dtype=np.int32), {}) for n in (3, 5, 5)])
    found = split.result()
    assert found["total"] == 13 and found["duplicates"]["count"] == 1 and not found["languages"]["shares"]


def test_languages():
    texts = {
        "en": "The cat sat on the mat, and nobody in the house knew why it did so.",
        "fr": "Le chat dort sur le canapé et personne ne sait pourquoi il est fatigué.",
        "ru": "Привет, меня зовут Иван, я живу в Москве и работаю программистом.",
        "zh": "这只猫坐在垫子上,房子里没有人知道它为什么这样做,也没有人去问它。",
    }
    assert {name: statistics.language(text) for name, text in texts.items()} == {name: name for name in texts}
    assert statistics.languages([*texts.values(), "2 + 2 = 4"])["shares"]["und"] == 0.2
