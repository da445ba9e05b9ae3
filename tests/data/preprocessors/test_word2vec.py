"""word2vec's draws: how often a word stays, noise and windows; ways in the tree and n-grams in rows."""

import doctest
import types

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data import huffman, subwords
from jaxpt.data.layout import Ragged
from jaxpt.data.preprocessors import word2vec
from jaxpt.errors import UserError

COUNTS = np.array([0, 8000, 1500, 450, 50])
RECORDS, LENGTH = 4000, 20
WORDS = seqio.PassThroughVocabulary(5)


def drawn(subsample, vocabulary=WORDS, most=LENGTH):
    """(tokens before, records after)."""
    rng = np.random.default_rng(0)
    tokens_RxL = rng.choice(5, (RECORDS, LENGTH), p=COUNTS / COUNTS.sum()).astype(np.int32)
    batch = {"tokens": tf.RaggedTensor.from_tensor(tf.constant(tokens_RxL), row_splits_dtype=tf.int64)}
    keys = tf.constant(np.arange(RECORDS), tf.uint64)
    return tokens_RxL, word2vec.draw.batched(batch, keys, vocabulary, subsample, most, 4, 8, 0.75, lambda: COUNTS)


def test_a_word_stays_as_often_as_its_share_says():
    before_RxL, after = drawn(0.01)
    share_V = np.maximum(COUNTS, 1) / COUNTS.sum()
    wanted_V = np.minimum((np.sqrt(share_V / 0.01) + 1) * 0.01 / share_V, 1)
    kept, there = np.bincount(after["tokens"].values.numpy(), minlength=5), np.bincount(before_RxL.ravel(), minlength=5)
    for v in range(1, 5):
        error = np.sqrt(wanted_V[v] * (1 - wanted_V[v]) / there[v])
        assert abs(kept[v] / there[v] - wanted_V[v]) <= 4 * error, v
    in_order = [list(x) for x in before_RxL[:50]]
    for row, left in zip(in_order, after["tokens"].to_list()):
        rest = iter(row)
        assert all(token in rest for token in left)  # a subsequence
    for row, first in zip(after["tokens"].to_list(), drawn(0.01, most=5)[1]["tokens"].to_list()):
        assert first == row[:5]


def test_without_subsampling_all_known_words_stay():
    before_RxL, after = drawn(0.0)
    np.testing.assert_array_equal(after["tokens"].to_tensor().numpy(), before_RxL)
    unknown = types.SimpleNamespace(unk_id=2)
    _, after = drawn(0.0, unknown)
    np.testing.assert_array_equal(after["tokens"].values, before_RxL[before_RxL != 2])
    assert 2 not in after["noise"].values


def test_windows_are_each_as_likely():
    windows = drawn(0.0)[1]["windows"]
    expected = windows.values.shape[0] / 4
    found = np.bincount(windows.values, minlength=5)
    assert found[0] == 0 and ((found[1:] - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees, p = 0.001


def test_noise_has_the_counts_to_a_power():
    noise_RxK = drawn(0.0)[1]["noise"].to_tensor().numpy()
    weight_V = np.maximum(COUNTS, 1) ** 0.75
    expected_V = weight_V / weight_V.sum() * noise_RxK.size
    found_V = np.bincount(noise_RxK.ravel(), minlength=5)
    assert ((found_V - expected_V) ** 2 / expected_V).sum() < 18.5  # chi-squared of 4 degrees of freedom, p = 0.001
    assert len(np.unique(noise_RxK[:, 0])) > 2  # each record has its own


def test_draws_depend_on_the_record_alone():
    ds = tf.data.Dataset.from_tensor_slices({"tokens": np.tile(np.arange(1, 5, dtype=np.int32), (6, 5))})
    with seqio.map_seed_manager(3):
        options = {"most": 20, "window": 4, "noise": 3, "noise_exponent": 0.75, "token_counts": lambda: COUNTS}
        made = word2vec.draw(ds, WORDS, subsample=0.01, **options)
    first, second = list(made.as_numpy_iterator()), list(made.as_numpy_iterator())
    assert [x["noise"].tolist() for x in first] == [x["noise"].tolist() for x in second]
    assert len({tuple(x["noise"]) for x in first}) > 1


def test_rows_have_ways_and_ngrams(monkeypatch):
    words = ["the", "cat", "sat", "on", "it"]
    monkeypatch.setattr(word2vec, "pieces", lambda vocabulary: words)
    records = {name: Ragged(np.array([3, 1, 2]), np.array([2, 1])) for name in ("tokens", "windows")}
    grams = types.SimpleNamespace(min_length=3, max_length=4, buckets=50, per_word=4)
    grams = type("Grams", (), {**vars(grams), "__hash__": lambda self: 1})()
    options = {"length": 3, "noise": 0, "code_length": 4, "subwords": grams, "token_counts": lambda: COUNTS}
    vocabulary = type("Vocabulary", (), {"unk_id": None})
    rows = word2vec.features.rows(records, vocabulary, **options)
    ways, table = huffman.paths(np.maximum(COUNTS, 1), 4), subwords.table(words, 3, 4, 50, 4)
    np.testing.assert_array_equal(rows["huffman_paths"][0], [ways[3], ways[1], [-1] * 4])
    np.testing.assert_array_equal(rows["subwords"][1], [table[2], [-1] * 4, [-1] * 4])
    with pytest.raises(UserError, match=r"objective.code_length: the Huffman tree of the words has ways of 4 nodes"):
        word2vec.features.rows(records, vocabulary, **options | {"code_length": 3})
    # Unknown words are left out of the text, so they have no leaf; all ways become shorter.
    rows = word2vec.features.rows(records, type("Vocabulary", (), {"unk_id": 2}), **options)
    ways = huffman.paths(np.array([1, 8000, 0, 450, 50]), 4)
    np.testing.assert_array_equal(rows["huffman_paths"], [[ways[3], ways[1], [-1] * 4], [[-1] * 4] * 3])


def test_ways_are_those_of_a_prefix_code_of_least_length():
    counts = np.random.default_rng(0).integers(0, 500, 60)
    ways = huffman.paths(counts, 20)
    lengths = (ways >= 0).sum(1)
    known = counts > 0
    assert (lengths[~known] == 0).all() and np.isclose((0.5 ** lengths[known]).sum(), 1)  # Kraft: a full binary tree
    assert len({tuple(way) for way in ways[known]}) == known.sum()
    p = counts[known] / counts.sum()
    entropy, mean = -(p * np.log2(p)).sum(), (p * lengths[known]).sum()
    assert entropy <= mean < entropy + 0.1 and (ways[known, 0] >> 1 == known.sum() - 2).all()  # all begin at the root


@pytest.mark.parity
def test_hashes_are_fasttexts():
    gensim = pytest.importorskip("gensim.models.fasttext")
    for word in ("cat", "a", "naïve", "Straße", "今日"):
        assert sorted(gensim.ft_ngram_hashes(word, 3, 6, 2000)) == sorted(subwords.buckets(word, 3, 6, 2000))


def test_docstrings():
    assert doctest.testmod(word2vec).failed == 0
