"""BERT's sentence pairs. Every token of a test corpus is its own place in it, so that a pair tells where it is from."""

import collections
import re
from pydoc_data.topics import topics

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.preprocessors import sentence_pairs

CLS, SEP, FIRST = 2, 3, 10
Pair = collections.namedtuple("Pair", "a b is_random a_document b_document origin size types")


def pairs(documents, length=23, short_probability=0.0, dupe_factor=1, seed=0, **options):
    """Pairs of documents given as lists of sentence lengths; a and b are places in the corpus."""
    label = "is_swapped" if options.get("swap") else "is_random_next"
    ends = np.cumsum([sum(d) for d in documents])
    tokens = tf.ragged.constant(np.split(np.arange(FIRST, FIRST + ends[-1]), ends[:-1]), tf.int32)
    ds = tf.data.Dataset.from_tensor_slices(
        {
            "tokens": tokens,
            "sentence_lengths": tf.ragged.constant(documents, tf.int32),
            "origin": tf.constant([[5, n] for n in range(len(documents))], tf.int64),
        }
    )
    ds = sentence_pairs.make(ds, length, short_probability, dupe_factor, seed, cls=CLS, sep=SEP, **options)
    out = []
    for ex in ds.as_numpy_iterator():
        ids = ex["tokens"]
        assert ids[0] == CLS and ids[-1] == SEP and (ids == SEP).sum() == 2
        middle = np.flatnonzero(ids == SEP)[0]
        a, b = ids[1:middle] - FIRST, ids[middle + 1 : -1] - FIRST
        document = [int(np.searchsorted(ends, x[0], side="right")) for x in (a, b)]
        assert ex["token_types"].tolist() == [0] * (middle + 1) + [1] * (len(b) + 1)
        out.append(Pair(a, b, int(ex[label]), *document, ex["origin"].tolist(), len(ids), ex["token_types"]))
    return out


def corpus(documents=60, seed=1):
    """Documents of 1 to 60 sentences of 1 to 12 tokens."""
    draw = np.random.default_rng(seed)
    return [draw.integers(1, 13, draw.integers(1, 61)).tolist() for _ in range(documents)]


@pytest.fixture(scope="module")
def made():
    """(real documents, their pairs): the topics of `help()` in sentences of words."""
    sentences = [re.split(r"(?<=[.!?])\s+|\n+", topic) for topic in topics.values()]
    documents = [[len(s.split()) for s in of_topic if s.split()] for of_topic in sentences]
    return documents, pairs(documents, length=16, short_probability=0.1, dupe_factor=2)


@pytest.mark.slow
def test_every_pair_keeps_the_rules(made):
    documents, out = made
    begins = np.concatenate([[0], np.cumsum([sum(d) for d in documents])])
    assert len(out) > 10_000
    for p in out:
        assert len(p.a) >= 1 and len(p.b) >= 1 and p.size == len(p.a) + len(p.b) + 3 <= 16
        assert (np.diff(p.a) == 1).all() and (np.diff(p.b) == 1).all()
        assert begins[p.b_document + 1] > p.b[-1] and begins[p.a_document + 1] > p.a[-1]
        assert p.origin == [5, p.a_document, p.a[0] - begins[p.a_document]]
        assert (p.a_document != p.b_document) == p.is_random
        if not p.is_random:
            assert p.b[0] > p.a[-1]
            assert p.b[0] == p.a[-1] + 1 or p.size == 16  # a gap only where the pair was too long


@pytest.mark.slow
def test_sentences_are_whole_unless_the_pair_was_too_long(made):
    documents, out = made
    ends = set(np.cumsum(np.concatenate(documents)).tolist()) | {0}
    for p in out:
        if p.size < 16:
            assert {p.a[0], p.a[-1] + 1, p.b[0], p.b[-1] + 1} <= ends


def test_every_token_is_used_once_a_pass():
    """Sentences of one token: nothing is ever too long, so a and the b that follow it make up each document."""
    out = pairs([[1] * n for n in (1, 2, 3, 50, 200, 7, 1)], short_probability=0.5, dupe_factor=3)
    used = np.concatenate([x for p in out for x in ([p.a] if p.is_random else [p.a, p.b])])
    np.testing.assert_array_equal(np.bincount(used), np.full(264, 3))


def test_half_are_random_in_long_documents():
    out = pairs([[1] * 400] * 40)
    rate = np.mean([p.is_random for p in out])
    # The last sentence of a document, if it is alone, is always paired at random: about one pair in 30.
    assert abs(rate - 0.51) < 3 * 0.5 / np.sqrt(len(out))


def test_more_are_random_in_short_documents():
    """Two sentences: half of the time one true pair, else two random ones: 2/3 random. One sentence: all random."""
    out = pairs([[3, 3]] * 300)
    assert abs(np.mean([p.is_random for p in out]) - 2 / 3) < 0.06
    assert all(p.is_random for p in pairs([[3]] * 20))


def test_the_end_of_a_is_uniform():
    first = {p.a_document: len(p.a) for p in reversed(pairs([[1] * 5] * 600))}
    counts = np.bincount(list(first.values()), minlength=5)[1:]
    assert len(counts) == 4
    assert ((counts - 150) ** 2 / 150).sum() < 16.3  # 3 degrees of freedom, 1 in 1,000


@pytest.mark.slow
def test_a_short_aim_is_uniform_from_2_to_the_longest():
    """With sentences of one token a true pair is as long as its aim; whether it is true does not depend on the aim."""
    out = pairs([[1] * 9] * 800, length=12, short_probability=1.0)
    first = {p.a_document: p for p in reversed(out)}
    aims = np.bincount([len(p.a) + len(p.b) for p in first.values() if not p.is_random], minlength=10)
    assert len(aims) == 10 and aims[:2].sum() == 0
    assert ((aims[2:] - aims.sum() / 8) ** 2 / (aims.sum() / 8)).sum() < 24.3  # 7 degrees of freedom, 1 in 1,000


def test_aims_are_the_longest_without_short_pairs():
    out = pairs([[1] * 400] * 10, length=23)
    assert np.mean([p.size == 23 for p in out]) > 0.9


@pytest.mark.slow
def test_random_documents_are_uniform_and_another_one():
    out = [p for p in pairs([[1] * 100] * 5, dupe_factor=20) if p.is_random]
    assert all(p.a_document != p.b_document for p in out)
    counts = np.bincount([p.b_document for p in out], minlength=5)
    assert ((counts - len(out) / 5) ** 2 / (len(out) / 5)).sum() < 18.5  # 4 degrees of freedom, 1 in 1,000


@pytest.mark.parametrize("documents", [[[1]], [[40]], [[1], [1]], [[1, 40, 1]], [[100], [1, 1]]])
def test_the_smallest_corpora(documents):
    out = pairs(documents, short_probability=0.3, dupe_factor=5)
    assert len(out) >= 5 * len(documents)
    assert all(p.size <= 23 and len(p.a) and len(p.b) for p in out)


def test_no_documents_no_pairs():
    ds = tf.data.Dataset.from_tensors({"tokens": [1], "sentence_lengths": [1], "origin": [0, 0]}).take(0)
    assert list(sentence_pairs.make(ds, 23, 0.1, 10, 0, cls=CLS, sep=SEP)) == []


@pytest.mark.slow
def test_the_seed_alone_decides_and_passes_differ():
    def plain(**kwargs):
        return [(p.a.tolist(), p.b.tolist()) for p in pairs(corpus(4), length=32, short_probability=0.1, **kwargs)]

    two = plain(dupe_factor=2, seed=4)
    assert two == plain(dupe_factor=2, seed=4) != plain(dupe_factor=2, seed=5)
    first = plain(seed=4)
    assert two[: len(first)] == first and two[len(first) :] != first


def truncated(a, b, most):
    """The published rule, token by token."""
    while a + b > most:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


def test_truncation_takes_from_the_longer_side():
    sizes = np.stack(np.meshgrid(np.arange(1, 25), np.arange(1, 25)), -1).reshape(-1, 2).astype(np.int64)
    zero = tf.zeros([len(sizes)], tf.int64)
    for most in (2, 9, 20):
        a, a_end, b, b_end = sentence_pairs._truncate(zero, sizes[:, 0], zero, sizes[:, 1], most, tf.constant([0, 1]))
        left = np.stack([a_end - a, b_end - b], 1)
        np.testing.assert_array_equal(left, [truncated(*size, most) for size in sizes.tolist()])
        assert (a.numpy() >= 0).all() and (b_end.numpy() <= sizes[:, 1]).all()


def test_truncation_is_front_or_back_by_the_toss_of_a_coin():
    size, zero = tf.fill([4000], tf.constant(20, tf.int64)), tf.zeros([4000], tf.int64)
    a, _, b, _ = sentence_pairs._truncate(zero, size, zero, size, 20, tf.constant([0, 2]))
    for front in (a.numpy(), b.numpy()):  # binomial, 10 tosses
        assert abs(front.mean() - 5) < 3 * np.sqrt(2.5 / 4000)
        assert abs(front.var() - 2.5) < 0.25
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.06


def test_swapped_pairs_are_the_pairs_in_the_other_order():
    """Nothing is random but for sentences left alone, every token is used once, and half of the pairs are swapped."""
    documents = [[1] * n for n in (2, 3, 50, 200, 700, 1500)]
    out = pairs(documents, length=13, short_probability=0.2, dupe_factor=2, swap=True)
    whole = [p for p in out if p.a_document == p.b_document]
    np.testing.assert_array_less(len(out) - 13, len(whole))  # a document ends in a sentence alone at most once a pass
    for p in whole:
        first, second = (p.b, p.a) if p.is_random else (p.a, p.b)
        assert second[0] == first[-1] + 1
        assert p.types[1] == 0 and p.types[-1] == 1
    alone = [p for p in out if p.a_document != p.b_document]
    assert all(p.is_random and len(p.a) == 1 for p in alone)
    used = np.concatenate([x for p in whole for x in (p.a, p.b)] + [p.a for p in alone])
    np.testing.assert_array_equal(np.bincount(used), np.full(2455, 2))
    swapped = np.array([p.is_random for p in whole])
    assert abs(swapped.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(swapped)) and len(swapped) > 400


def test_single_sentences():
    """SENTENCE-PAIR: both texts are one sentence, the second follows the first or is of another document."""
    documents = corpus(30)
    ends = np.cumsum(np.concatenate(documents))
    out = pairs(documents, length=32, single=True)
    for p in out:
        for text in (p.a, p.b):
            assert np.searchsorted(ends, text[0], side="right") == np.searchsorted(ends, text[-1], side="right")
            assert text[-1] + 1 in ends and (text[0] in ends or text[0] == 0)
        assert p.is_random == (p.a_document != p.b_document)
        assert p.is_random or p.b[0] == p.a[-1] + 1
    assert 0.5 < np.mean([p.is_random for p in out]) < 0.7 and len(out) > 400
