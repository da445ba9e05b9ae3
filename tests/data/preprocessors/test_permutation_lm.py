"""XLNet's records and orders of prediction, over ten thousand records of real text."""

import functools
import itertools
from pydoc_data.topics import topics

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.preprocessors import permutation_lm
from tests.data.preprocessors import corpus

CLS, SEP = 1, 2
LENGTH, REUSE, PREDICTIONS = 64, 32, 10


def cut(tokens, sentence_lengths, **settings):
    """Records of documents."""
    origin = tf.constant([[0, n] for n in range(len(tokens))], tf.int64)
    features = {"tokens": tokens, "sentence_lengths": sentence_lengths}
    ds = {name: tf.ragged.constant(x, tf.int32) for name, x in features.items()} | {"origin": origin}
    settings = {"length": LENGTH, "reuse": REUSE, "seed": 0, "cls": CLS, "sep": SEP} | settings
    return list(permutation_lm.segments(tf.data.Dataset.from_tensor_slices(ds), **settings).as_numpy_iterator())


@pytest.fixture(scope="module")
def numbered():
    """(ends of sentences, records) of a text whose token i is 10 + i."""
    draw = np.random.default_rng(0)
    sentences = [draw.integers(1, 25, draw.integers(1, 60)).tolist() for _ in range(80)]
    bounds = np.cumsum([0, *(sum(x) for x in sentences)])
    tokens = [list(range(10 + a, 10 + b)) for a, b in itertools.pairwise(bounds)]
    return np.cumsum(np.concatenate(sentences)), bounds, cut(tokens, sentences)


def test_rows_go_on_and_b_goes_on_from_a_or_is_drawn(numbered):
    ends, documents, records = numbered
    starts, randoms = {0, *ends.tolist()}, 0
    assert len(records) == (ends[-1] - (LENGTH - 3) - 1) // REUSE + 1
    for number, record in enumerate(records):
        tokens, types = record["tokens"], record["token_types"]
        first, second = np.flatnonzero(tokens == SEP)
        assert len(tokens) == LENGTH and second == LENGTH - 2 and tokens[-1] == CLS
        assert types.tolist() == [0] * (first + 1) + [1] * (second - first) + [2]
        text, b = tokens[:first] - 10, tokens[first + 1 : second] - 10
        np.testing.assert_array_equal(text, np.arange(number * REUSE, number * REUSE + first))
        assert first > REUSE and len(b) > 0 and (np.diff(b) == 1).all()
        assert b[0] in starts, "B begins with a sentence"
        if not record["is_random"]:
            assert b[0] - 1 == text[-1] or first - REUSE >= len(b), "A, the longer one, was cut"
        randoms += record["is_random"]
        _, document, offset = record["origin"]
        assert documents[document] + offset == number * REUSE
    assert 0.5 < randoms / len(records) < 0.7


@pytest.mark.slow
def test_the_cuts_are_as_in_the_program(numbered):
    """Each record by XLNet's loops, for the cut and the sentence that were drawn."""
    ends, _, records = numbered
    most = LENGTH - REUSE - 3
    for number, record in enumerate(records):
        begin, middle = (number + 1) * REUSE, np.flatnonzero(record["tokens"] == SEP)[0]
        b = record["tokens"][middle + 1 : -2] - 10
        cuts = [end for end in ends if begin < end < begin + most]
        end = next(end for end in ends if end >= begin + most)
        wanted = (middle - REUSE, len(b))
        possible = set()
        for a_end in cuts or [end]:
            whole = end - a_end if not record["is_random"] else None
            for b_size in [whole] if whole else [max(most - (a_end - begin), 1) + n for n in range(60)]:
                sizes = [a_end - begin, b_size]
                while sum(sizes) > most:
                    sizes[0 if sizes[0] > sizes[1] else 1] -= 1
                possible.add(tuple(sizes))
        assert wanted in possible, (number, wanted)


@pytest.mark.slow
def test_a_separator_ends_each_document_and_shards_draw_otherwise():
    tokens, sentences = [list(range(10, 40)), list(range(50, 120))], [[10] * 3, [10] * 7]
    with_end, plain, other = (
        cut(tokens, sentences, length=24, reuse=8, **more) for more in ({"separator": 5}, {}, {"shard": 1})
    )
    text = np.concatenate([r["tokens"][:8] for r in with_end])
    assert text[:33].tolist() == [*range(10, 40), 5, 50, 51]
    assert any((a["tokens"] != b["tokens"]).any() for a, b in zip(plain, other))
    assert all((a["tokens"][:8] == b["tokens"][:8]).all() for a, b in zip(plain, other))


@functools.cache
def text():
    """Ten thousand records of the topics of `help()` as bytes."""
    ids = np.frombuffer("\n".join(topics.values()).encode(), np.uint8).astype(np.int32) + 3
    rows = np.lib.stride_tricks.sliding_window_view(ids, LENGTH - 3)[:: REUSE + 13][:10_000]
    rows = np.resize(rows, (10_000, LENGTH - 3))
    where = np.random.default_rng(0).integers(REUSE + 1, LENGTH - 4, len(rows))
    return [np.concatenate([row[:n], [SEP], row[n:], [SEP, CLS]]) for row, n in zip(rows, where)]


@functools.cache
def permuted(number=0, **settings):
    settings = {
        "reuse": REUSE, "predictions": PREDICTIONS, "permutation_size": REUSE, "max_ngram": 5, "context": 6,
        "cls": CLS, "sep": SEP, "vocabulary": seqio.ByteVocabulary(),
    } | settings  # fmt: skip
    return corpus.run(permutation_lm.permute, text(), number, **settings)


def test_every_order_keeps_the_rules():
    made, tokens = permuted(), np.array(text())
    at = made["masked_positions"]
    is_target, special = np.zeros(tokens.shape, bool), np.isin(tokens, (CLS, SEP))
    is_target[np.repeat(np.arange(len(at)), list(map(len, at))), np.concatenate(at)] = True
    assert all((np.diff(x) > 0).all() for x in at)
    np.testing.assert_array_equal(tokens[is_target], np.concatenate(made["masked_targets"]))
    assert not (is_target & special).any()
    counts = is_target.reshape(-1, 2, REUSE).sum(-1)
    assert (counts[:, 0] == PREDICTIONS / 2).all(), "no SEP there"
    assert (counts[:, 1] <= PREDICTIONS / 2).all() and counts[:, 1].min() >= PREDICTIONS / 2 - 3
    ranks, ordered = np.array(made["order"]), is_target | special
    context = np.repeat([-1, REUSE], REUSE)
    np.testing.assert_array_equal(ranks[~ordered], np.broadcast_to(context, ranks.shape)[~ordered])
    assert (ranks - context)[ordered].min() >= 1 and (ranks - context)[ordered].max() <= REUSE
    order = np.sort(np.where(ordered, ranks, np.arange(LENGTH) + 1000))
    assert (np.diff(order) > 0).all(), "ranks of a record differ"


def test_a_zone_may_have_no_target():
    made = corpus.run(permutation_lm.permute, text()[:100], reuse=REUSE, predictions=1, permutation_size=REUSE,
                      max_ngram=5, context=6, cls=CLS, sep=SEP, vocabulary=seqio.ByteVocabulary())  # fmt: skip
    assert all(len(at) == 1 and at[0] < REUSE for at in made["masked_positions"])
    ranks = np.array(made["order"])[:, REUSE:]
    np.testing.assert_array_equal(ranks == REUSE, ~np.isin(np.array(text()[:100])[:, REUSE:], (CLS, SEP)))


def official(tokens, is_target, order):
    """What may not be seen, by the published rule, of a zone whose permutation is `order`."""
    functional = np.isin(tokens, (CLS, SEP))
    known = ~is_target & ~functional
    rank = np.where(known, -1, order)
    own = np.where(is_target, rank, rank + 1)
    return (own[:, None] <= rank[None, :]) & ~known


def test_tokens_see_what_they_see_in_the_program():
    made = permuted()
    for tokens, ranks, at in list(zip(text(), made["order"], made["masked_positions"]))[:500]:
        is_target = np.isin(np.arange(LENGTH), at)
        hidden = np.zeros((LENGTH, LENGTH), bool)
        hidden[:REUSE, REUSE:] = True
        for zone in (slice(0, REUSE), slice(REUSE, LENGTH)):
            hidden[zone, zone] = official(tokens[zone], is_target[zone], ranks[zone])
        query, content = ranks[None, :] < ranks[:, None], ranks[None, :] <= ranks[:, None]
        np.testing.assert_array_equal(query[is_target], ~hidden[is_target])
        np.testing.assert_array_equal(content, ~hidden | np.eye(LENGTH, dtype=bool))


def test_orders_are_uniform_and_runs_are_permuted_by_themselves():
    ranks = np.array(permuted()["order"])
    before = ranks[:, -1] < ranks[:, -2]  # CLS and the SEP before it always have a rank
    assert before.mean() == pytest.approx(0.5, abs=0.02)
    places = ranks[:, -1] - REUSE - 1
    assert np.bincount(places, minlength=REUSE) / len(ranks) == pytest.approx(1 / REUSE, abs=0.008)
    ranks = np.array(permuted(permutation_size=8)["order"])[:, -8:] - REUSE - 1
    assert ranks[:, -1].min() == REUSE - 8, "the last run's order comes after those before it"


def test_ngrams():
    """p ∝ 1/n, at starts of words, K tokens of context for each, none up to the end of a zone."""
    vocabulary = seqio.ByteVocabulary()
    ids = np.frombuffer("\n".join(topics.values()).encode(), np.uint8).astype(np.int32)[:400_000].reshape(200, -1) + 3
    begins = permutation_lm.word_begins(vocabulary, (CLS, SEP))[ids]
    zones = permutation_lm.Zones(corpus.keys(100).numpy(), np.full(100, 4000), reuse=2000, predictions=4000)
    chosen = permutation_lm.ngrams(zones, begins.ravel(), 5, 6).reshape(200, 2000).astype(int)
    assert not chosen[:, -1].any()
    edges = np.diff(np.pad(chosen, [(0, 0), (1, 1)]), axis=1)
    (rows, start), (_, end) = np.nonzero(edges == 1), np.nonzero(edges == -1)
    assert begins[rows, start].all() and len(start) > 10_000
    shares = np.bincount(end - start, minlength=6)[1:] / len(start)
    assert shares == pytest.approx(np.array([60, 30, 20, 15, 12]) / 137, abs=0.015)
    # Of n-gram and context together n in 7 n, and the way to the next start of a word.
    assert 1 / 9 < chosen.mean() < 1 / 7


def test_what_becomes_of_a_record_depends_on_it_and_its_key_alone():
    made, again = permuted(), permuted(number=1)
    alone = permutation_lm.permute.batched(
        {"tokens": corpus.ragged(text()[7:8])}, corpus.keys(8)[7:], reuse=REUSE, predictions=PREDICTIONS,
        permutation_size=REUSE, max_ngram=5, context=6, cls=CLS, sep=SEP, vocabulary=seqio.ByteVocabulary(),
    )  # fmt: skip
    for name in ("order", "masked_positions", "masked_targets"):
        np.testing.assert_array_equal(alone[name].values, made[name][7])
    assert sum(map(np.array_equal, made["masked_positions"], again["masked_positions"])) < 10
