"""The trigram baseline beside its formulas written as loops over dictionaries."""

import collections
import doctest

import numpy as np
import pytest

from jaxpt.evals import baseline, kneser_ney
from jaxpt.evals.kneser_ney import FALLBACK, KneserNey, discounts

V = 30


def text(size, seed):
    """Words by Zipf's law, each leaning on the two before it."""
    rng = np.random.default_rng(seed)
    out = [1, 2]
    for draw in rng.zipf(1.4, size):
        out.append(int((out[-1] * 3 + out[-2] + draw) % V))
    return np.array(out)


def triples(tokens):
    return tokens[:-2], tokens[1:-1], tokens[2:]


def reference(train, context, word):
    """p(word | context), by Chen and Goodman's equations."""
    counts = {3: collections.Counter(zip(*(x.tolist() for x in triples(train))))}
    for n in (2, 1):
        counts[n] = collections.Counter(gram[1:] for gram in counts[n + 1])
    p = 1 / V
    for n in (1, 2, 3):
        grams = counts[n]
        d = [0, *discounts(np.array(list(grams.values())))]
        before = tuple(context[len(context) - n + 1 :]) if n > 1 else ()
        if n > len(context) + 1:
            break
        follows = {gram[-1]: count for gram, count in grams.items() if gram[:-1] == before}
        if not follows:
            continue
        total = sum(follows.values())
        gamma = sum(d[min(count, 3)] for count in follows.values()) / total
        count = follows.get(word, 0)
        p = max(count - d[min(count, 3)], 0) / total + gamma * p
    return p


@pytest.mark.parametrize("size", [40, 3000])
def test_probabilities_are_those_of_the_equations(size):
    """Of few counts, whose discounts cannot be estimated, and of many; contexts that were never seen among them."""
    train, rng = text(size, 0), np.random.default_rng(1)
    model = KneserNey(V, [triples(train[:30]), triples(train[28:])])
    contexts = [tuple(x) for x in rng.integers(0, V, (12, 2)).tolist()] + [(int(train[4]), int(train[5])), (7,)]
    for context in contexts:
        first = context[0] if len(context) == 2 else -1
        words = np.arange(V)
        p = np.exp(-model.loss(np.full(V, first), np.full(V, context[-1]), words))
        assert p.sum() == pytest.approx(1)
        np.testing.assert_allclose(p, [reference(train, context, word) for word in words], rtol=1e-9)


def test_examples_in_docstrings():
    assert doctest.testmod(kneser_ney).failed == 0


def test_discounts_of_too_few_counts_are_fixed():
    assert discounts(np.array([1, 1, 5])) == FALLBACK and discounts(np.zeros(0, int)) == FALLBACK


def test_rows_that_continue_have_contexts_across_batches():
    """And none before the first batch, nor anywhere across windows in random order."""
    tokens = np.stack([text(9, seed)[:9] for seed in (2, 3)])
    batches = [
        {
            "decoder_input_tokens": np.pad(tokens[:, a:b], ((0, 0), (0, 1))),
            "decoder_target_tokens": np.pad(tokens[:, a + 1 : b + 1], ((0, 0), (0, 1))),
            "decoder_loss_weights": np.pad(np.ones((2, b - a)), ((0, 0), (0, 1))),
        }
        for a, b in ((0, 5), (5, 8))
    ]
    for continues in (True, False):
        found = np.concatenate(list(baseline.triples(batches, continues, size=1)), axis=1)
        starts = [0] if continues else [0, 5]
        expected = [
            (-1 if t in starts else row[t - 1], row[t], row[t + 1])
            for a, b in ((0, 5), (5, 8)) for row in tokens for t in range(a, b)
        ]  # fmt: skip
        assert list(zip(*found)) == expected


def test_it_is_below_the_bigram_where_two_words_tell_more_than_one():
    train, held_out = text(20_000, 4), text(2000, 5)

    def batch(tokens):
        return {
            "decoder_input_tokens": tokens[None, :-1], "decoder_target_tokens": tokens[None, 1:],
            "decoder_loss_weights": np.ones((1, len(tokens) - 1)),
        }  # fmt: skip

    trigram = baseline.trigram(V, [batch(train)], [batch(held_out)], continues=True)
    assert trigram < 0.9 * baseline.bigram(V, [batch(train)], [batch(held_out)])


def test_counts_of_many_chunks_are_not_all_sorted_again_for_each(monkeypatch):
    chunks, sizes, unique = np.random.default_rng(0).integers(0, 4000, (64, 50)), [], np.unique
    monkeypatch.setattr(kneser_ney.np, "unique", lambda x, **kwargs: [sizes.append(x.size), unique(x, **kwargs)][1])
    codes, counts = kneser_ney.count_codes(chunks)
    assert dict(zip(codes.tolist(), counts.tolist())) == collections.Counter(chunks.ravel().tolist())
    assert codes.dtype == counts.dtype == np.int64 and codes.tolist() == sorted(codes.tolist())
    assert sum(sizes) < 10 * chunks.size
