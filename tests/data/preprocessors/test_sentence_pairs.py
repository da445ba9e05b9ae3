"""BERT's sentence pairs. Every token of a test corpus is its own place in it, so that a pair tells where it is from."""

import collections
import functools
import re
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.preprocessors import sentence_pairs
from jaxpt.data.preprocessors.documents import ragged
from tests import grids

CLS, SEP, FIRST = 2, 3, 10
Pair = collections.namedtuple("Pair", "a b is_random a_document b_document origin size types")


def dataset(documents, length=23, short_probability=0.0, dupe_factor=1, seed=0, **options):
    """Records of documents given as lists of sentence lengths."""
    ends = np.cumsum([sum(d) for d in documents])
    tokens = tf.ragged.constant(np.split(np.arange(FIRST, FIRST + ends[-1]), ends[:-1]), tf.int32)
    ds = tf.data.Dataset.from_tensor_slices(
        {
            "tokens": tokens,
            "sentence_lengths": tf.ragged.constant(documents, tf.int32),
            "origin": tf.constant([[5, n] for n in range(len(documents))], tf.int64),
        }
    )
    return sentence_pairs.make(ds, length, short_probability, dupe_factor, seed, cls=CLS, sep=SEP, **options)


def pairs(documents, **options):
    """Pairs of documents given as lists of sentence lengths; a and b are places in the corpus."""
    label = "is_swapped" if options.get("swap") else "is_random_next"
    ends = np.cumsum([sum(d) for d in documents])
    out = []
    for ex in dataset(documents, **options).as_numpy_iterator():
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


class Real(NamedTuple):
    """More than 3,000 pairs of a real text: arrays [pairs], and of both texts [pairs, 2]."""

    first: np.ndarray
    """Places in the corpus of the first tokens of a and b."""
    end: np.ndarray
    """Those after the last ones."""
    label: np.ndarray
    size: np.ndarray
    document: np.ndarray
    sentence: np.ndarray
    """Number of the sentence in the corpus that the first token is in."""
    last_sentence: np.ndarray
    """That of the last one."""


@functools.cache
def real_documents():
    """Lengths of the sentences of every third topic of `help()`, in words."""
    sentences = [re.split(r"(?<=[.!?])\s+|\n+", topic) for topic in [*topics.values()][::3]]
    return [[len(s.split()) for s in of_topic if s.split()] for of_topic in sentences]


def sentence_bounds():
    """Where each sentence begins in the corpus, and its end."""
    return np.cumsum([0, *np.concatenate(real_documents())])


def of_real_text(length, dupe_factor, **options):
    """Pairs of real text, after the rules that all of them keep."""
    ds = dataset(real_documents(), length=length, dupe_factor=dupe_factor, **options)
    parts = list(ds.ragged_batch(4096))
    tokens, types = ([ragged(part[name]) for part in parts] for name in ("tokens", "token_types"))
    ids, types = (np.concatenate([x.values for x in of_parts]) for of_parts in (tokens, types))
    sizes = np.concatenate([x.row_lengths() for x in tokens])
    names = "is_swapped" if options.get("swap") else "is_random_next", "origin"
    label, origin = (np.concatenate([part[name] for part in parts]) for name in names)
    start, last = np.cumsum(sizes) - sizes, np.cumsum(sizes) - 1
    is_text, seps = ids >= FIRST, np.flatnonzero(ids == SEP).reshape(-1, 2)
    middle = seps[:, 0]
    assert (ids[start] == CLS).all() and (ids == CLS).sum() == len(sizes) > 3_000
    np.testing.assert_array_equal(seps[:, 1], last)
    assert (np.diff(ids)[is_text[1:] & is_text[:-1]] == 1).all(), "each text is a stretch of the corpus"
    np.testing.assert_array_equal(types, np.arange(len(ids)) > np.repeat(middle, sizes))
    first = np.stack([ids[start + 1], ids[middle + 1]], 1) - FIRST
    end = np.stack([ids[middle - 1], ids[last - 1]], 1) - FIRST + 1
    assert (end > first).all() and sizes.max() == length

    bounds, documents = sentence_bounds(), np.cumsum([0, *map(len, real_documents())])
    sentence, last_sentence = (np.searchsorted(bounds, x, side="right") - 1 for x in (first, end - 1))
    document, last_document = (np.searchsorted(documents, x, side="right") - 1 for x in (sentence, last_sentence))
    np.testing.assert_array_equal(document, last_document)
    offset = first[:, 0] - bounds[documents[document[:, 0]]]
    np.testing.assert_array_equal(origin, np.stack([np.full(len(sizes), 5), document[:, 0], offset], 1))
    whole = sizes < length  # only a pair that was too long has parts of sentences
    assert np.isin(first[whole], bounds).all() and np.isin(end[whole], bounds).all()
    return Real(first, end, label, sizes, document, sentence, last_sentence)


def alone(first, sentence, room):
    """Whether a pair has a sentence alone, known where its first text begins with one: a document's last, or a long."""
    bounds, ends = sentence_bounds(), np.cumsum([*map(len, real_documents())])
    begins = np.isin(first, bounds)
    return begins & (np.isin(sentence + 1, ends) | (np.diff(bounds)[sentence] >= room)), begins


def near(share, expected):
    """Whether the mean of truth values is as expected, within four standard deviations."""
    return abs(share.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / len(share))


@pytest.mark.slow
def test_pairs_of_real_text():
    made = of_real_text(16, dupe_factor=2, short_probability=0.1)
    (a_document, b_document), follows = made.document.T, made.label == 0
    np.testing.assert_array_equal(a_document != b_document, ~follows)
    gap = made.first[:, 1] - made.end[:, 0]
    assert (gap[follows] >= 0).all() and (gap[follows & (made.size < 16)] == 0).all()
    single, begins = alone(made.first[:, 0], made.sentence[:, 0], 13)
    assert made.label[single].all()
    assert 0.45 < made.label[begins & ~single].mean() < 0.55 < made.label.mean() < 0.65


@pytest.mark.slow
def test_sentence_order_of_real_text():
    """Half of the pairs are swapped; a sentence left alone gets a drawn text, under the label of a swap (ALBERT)."""
    made = of_real_text(16, dupe_factor=3, swap=True)
    whole, swapped = made.document[:, 0] == made.document[:, 1], made.label == 1
    gap = np.where(swapped, made.first[:, 0] - made.end[:, 1], made.first[:, 1] - made.end[:, 0])[whole]
    assert (gap >= 0).all() and (gap[made.size[whole] < 16] == 0).all()
    assert near(swapped[whole], 0.5) and swapped[~whole].all()
    np.testing.assert_array_equal(made.sentence[~whole, 0], made.last_sentence[~whole, 0])
    turned = swapped & whole
    single, begins = alone(*(np.where(turned, *x.T[::-1]) for x in (made.first, made.sentence)), 13)
    np.testing.assert_array_equal(single[begins], ~whole[begins])
    # Of each pass no token stands in two pairs, but in texts that were drawn.
    used = np.concatenate([made.first[whole].ravel(), made.first[~whole, 0]])
    gone = np.concatenate([made.end[whole].ravel(), made.end[~whole, 0]])
    times = np.cumsum(np.bincount(used, minlength=gone.max() + 1) - np.bincount(gone, minlength=gone.max() + 1))
    assert times.max() == 3 and 2 < times.mean() < 3


@pytest.mark.slow
def test_single_sentences_of_real_text():
    """SENTENCE-PAIR: one sentence each, b the next one or of another document; each sentence once a pass."""
    made = of_real_text(32, dupe_factor=3, short_probability=0.1, single=True)
    np.testing.assert_array_equal(made.sentence, made.last_sentence)
    is_random = made.label == 1
    np.testing.assert_array_equal(made.document[:, 0] != made.document[:, 1], is_random)
    assert (made.sentence[~is_random] @ [-1, 1] == 1).all()
    is_last = np.isin(made.sentence[:, 0] + 1, np.cumsum([*map(len, real_documents())]))
    assert is_random[is_last].all() and near(is_random[~is_last], 0.5)
    used = np.concatenate([made.sentence[:, 0], made.sentence[~is_random, 1]])
    np.testing.assert_array_equal(np.bincount(used), 3)


@pytest.mark.slow
def test_every_token_is_used_once_a_pass():
    """Sentences of one token: nothing is ever too long, so a and the b that follow it make up each document."""
    out = pairs([[1] * n for n in (1, 2, 3, 50, 200, 7, 1)], short_probability=0.5, dupe_factor=3)
    used = np.concatenate([x for p in out for x in ([p.a] if p.is_random else [p.a, p.b])])
    np.testing.assert_array_equal(np.bincount(used), np.full(264, 3))


@pytest.mark.slow
def test_half_are_random_in_long_documents():
    out = pairs([[1] * 400] * 40)
    rate = np.mean([p.is_random for p in out])
    # The last sentence of a document, if it is alone, is always paired at random: about one pair in 30.
    assert abs(rate - 0.51) < 3 * 0.5 / np.sqrt(len(out))


@pytest.mark.slow
def test_more_are_random_in_short_documents():
    """Two sentences: half of the time one true pair, else two random ones: 2/3 random. One sentence: all random."""
    out = pairs([[3, 3]] * 300)
    assert abs(np.mean([p.is_random for p in out]) - 2 / 3) < 0.06
    assert all(p.is_random for p in pairs([[3]] * 20))


@pytest.mark.slow
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


@pytest.mark.slow
def test_aims_are_the_longest_without_short_pairs():
    out = pairs([[1] * 400] * 10, length=23)
    assert np.mean([p.size == 23 for p in out]) > 0.9


@pytest.mark.slow
def test_random_documents_are_uniform_and_another_one():
    out = [p for p in pairs([[1] * 100] * 5, dupe_factor=20) if p.is_random]
    assert all(p.a_document != p.b_document for p in out)
    counts = np.bincount([p.b_document for p in out], minlength=5)
    assert ((counts - len(out) / 5) ** 2 / (len(out) / 5)).sum() < 18.5  # 4 degrees of freedom, 1 in 1,000


@pytest.mark.slow
@pytest.mark.parametrize(
    "documents", grids.cases([[[1]], [[40]], [[1], [1]], [[1, 40, 1]], [[100], [1, 1]]], [[1]], [[1, 40, 1]])
)
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
        a, a_end, b, b_end = sentence_pairs.truncate(zero, sizes[:, 0], zero, sizes[:, 1], most, tf.constant([0, 1]))
        left = np.stack([a_end - a, b_end - b], 1)
        np.testing.assert_array_equal(left, [truncated(*size, most) for size in sizes.tolist()])
        assert (a.numpy() >= 0).all() and (b_end.numpy() <= sizes[:, 1]).all()


def test_truncation_is_front_or_back_by_the_toss_of_a_coin():
    size, zero = tf.fill([4000], tf.constant(20, tf.int64)), tf.zeros([4000], tf.int64)
    a, _, b, _ = sentence_pairs.truncate(zero, size, zero, size, 20, tf.constant([0, 2]))
    for front in (a.numpy(), b.numpy()):  # binomial, 10 tosses
        assert abs(front.mean() - 5) < 3 * np.sqrt(2.5 / 4000)
        assert abs(front.var() - 2.5) < 0.25
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.06


@pytest.mark.slow
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
