"""Span corruption: counts, order of sentinels, nothing lost, uniform compositions, seeds."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.preprocessors import span_corruption
from jaxpt.data.preprocessors.batched import fold_in
from jaxpt.objectives.span_corruption import noise_counts
from tests.data.preprocessors import corpus

SENTINEL, EOS, FIRST = 50_000, 1, 100


def test_ten_thousand_real_texts_are_filled_in_again():
    texts = corpus.texts(10_000)
    made = corpus.run(span_corruption.corrupt, texts, density=0.15, mean_span=3.0, first_sentinel=SENTINEL, eos=EOS)
    assert len(texts) == 10_000
    for text, inputs, targets in zip(texts, made["inputs"], made["targets"]):
        noise, spans = noise_counts(len(text), 0.15, 3.0)
        assert (len(inputs), len(targets)) == (len(text) - noise + spans + 1, noise + spans + 1)
        lost = {}
        for i in targets[:-1].tolist():
            if i > SENTINEL - 1000:
                lost[i] = []
            else:
                lost[[*lost][-1]].append(i)
        again = [j for i in inputs[:-1].tolist() for j in lost.get(i, [i])]
        assert again == text.tolist() and list(lost) == [SENTINEL - n for n in range(spans)]


def corrupted(lengths, number=0, density=0.15, mean_span=3.0):
    """[(inputs, targets)] of texts FIRST, FIRST + 1, … of these lengths, each under a seed of its own."""

    batch = {"tokens": FIRST + tf.ragged.range(tf.constant(lengths, tf.int32), row_splits_dtype=tf.int64)}
    keys = tf.constant(fold_in(np.arange(len(lengths), dtype=np.uint64), number))
    out = span_corruption.corrupt.batched(batch, keys, density, mean_span, first_sentinel=SENTINEL, eos=EOS)
    split = {k: np.split(x.values.numpy(), x.row_splits.numpy()[1:-1]) for k, x in out.items()}
    return list(zip(split["inputs"], split["targets"]))


def pieces(ids):
    """Sentinels of a sequence, and the texts before, between and after them."""
    at = np.flatnonzero(ids > SENTINEL - 1000)
    return ids[at], [piece[piece <= SENTINEL - 1000] for piece in np.split(ids, at)]


@pytest.mark.slow
def test_every_length_keeps_every_token_and_has_the_counts_of_the_objective():
    lengths = np.arange(1, 2001)
    for length, (inputs, targets) in zip(lengths, corrupted(lengths)):
        noise, spans = noise_counts(int(length), 0.15, 3.0)
        assert (len(inputs), len(targets)) == (length - noise + spans + 1, noise + spans + 1)
        assert inputs[-1] == targets[-1] == EOS
        (in_sentinels, kept), (out_sentinels, lost) = pieces(inputs[:-1]), pieces(targets[:-1])
        expected = SENTINEL - np.arange(spans)
        np.testing.assert_array_equal(in_sentinels, expected)
        np.testing.assert_array_equal(out_sentinels, expected)
        # inputs are kept <X> kept <Y>, targets <X> lost <Y> lost: each sentinel of the inputs is filled in again.
        assert len(lost[0]) == 0
        assert all(map(len, lost[1:])) and len(kept[0])
        text = np.concatenate([x for pair in zip(kept, [*lost[1:], lost[0]]) for x in pair])
        np.testing.assert_array_equal(text, np.arange(FIRST, FIRST + length))


@pytest.mark.parametrize(("density", "mean_span"), [(0.15, 3.0), (0.5, 3.0), (0.15, 8.0), (0.25, 2.5), (0.9, 1.0)])
def test_counts_are_the_objectives_for_every_length(density, mean_span):
    lengths = np.arange(1, 2001)
    noise, spans = span_corruption.noise_counts(tf.constant(lengths, tf.int32), density, mean_span)
    expected = np.array([noise_counts(int(n), density, mean_span) for n in lengths])
    np.testing.assert_array_equal(np.stack([noise, spans], 1), expected)


@pytest.mark.parametrize(
    ("length", "noise", "spans"),
    [(2, 1, 1), (10, 2, 1), (30, 4, 1), (50, 8, 3), (100, 15, 5), (172, 26, 9), (190, 28, 9), (568, 85, 28)],
)
def test_counts_by_hand(length, noise, spans):
    """30 · .15 = 4.5, 190 · .15 = 28.5, 7.5 → 8: halves go to the even number."""
    [(inputs, targets)] = corrupted([length])
    assert (len(inputs), len(targets)) == (length - noise + spans + 1, noise + spans + 1)


def test_one_token_stays_whole():
    [(inputs, targets)] = corrupted([1])
    assert (inputs.tolist(), targets.tolist()) == ([FIRST, EOS], [EOS])


def test_compositions_are_uniform_and_independent():
    """Eight tokens, four of them noise, two spans: 3 × 3 equally likely outcomes."""
    draws = 2700
    outcomes = collections.Counter(tuple(x) for x, _ in corrupted([8] * draws, density=0.5, mean_span=2.0))
    assert len(outcomes) == 9
    chi_square = sum((n - draws / 9) ** 2 / (draws / 9) for n in outcomes.values())
    assert chi_square < 26.1  # 8 degrees of freedom, 1 in 1,000


def test_a_text_starts_with_kept_tokens_and_ends_in_noise():
    for inputs, targets in corrupted([21] * 100, density=0.3, mean_span=2.0):
        assert inputs[0] == FIRST and targets[-2] == FIRST + 20
        assert inputs[-2] == SENTINEL - 2  # 6 noise tokens in 3 spans


def test_the_seed_alone_decides():
    first, again, other = (corrupted([200] * 4, number=n) for n in (1, 1, 2))
    for (x, y), (again_x, again_y), (other_x, _) in zip(first, again, other):
        np.testing.assert_array_equal(x, again_x)
        np.testing.assert_array_equal(y, again_y)
        assert not np.array_equal(x, other_x)
    assert not np.array_equal(first[0][0], first[1][0])


def test_origin_is_passed_through():
    ex = {"tokens": tf.range(20), "origin": tf.constant([1, 2, 3])}
    out = span_corruption.corrupt.__wrapped__(ex, tf.constant([0, 0]), 0.15, 3.0, first_sentinel=99, eos=1)
    assert out["origin"].numpy().tolist() == [1, 2, 3]
