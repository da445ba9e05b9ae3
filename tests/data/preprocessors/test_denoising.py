"""T5's other objectives over ten thousand texts: rates, what stands where, and the shortest texts."""

import collections

import numpy as np
import pytest

from jaxpt.data.preprocessors import denoising
from tests.data.preprocessors import corpus

EOS, FIRST, SENTINELS = 1, 5000, 100
TEXTS, LENGTHS = corpus.texts(10_000), corpus.lengths(10_000)


def noised(name, rows=TEXTS, **settings):
    """[(inputs, targets)] without the EOS that ends each."""
    made = corpus.run(getattr(denoising, name), rows, **settings, eos=EOS)
    assert all(x[-1] == EOS for side in made.values() for x in side)
    return [(x[:-1], y[:-1]) for x, y in zip(made["inputs"], made["targets"])]


def replaced(rows=TEXTS, density=0.15, sentinels=SENTINELS, targets_length=1000):
    room = {"sentinels": sentinels, "targets_length": targets_length}
    return noised("replace_spans", rows, density=density, first_sentinel=FIRST, **room)


def is_sentinel(ids):
    return ids > FIRST - SENTINELS


def filled(inputs, targets):
    """The inputs, each sentinel replaced by the next run of the targets."""
    inputs, targets = inputs.tolist(), targets.tolist()
    text, at = [], int(bool(targets) and is_sentinel(targets[0]))
    for token in inputs:
        if not is_sentinel(token):
            text.append(token)
            continue
        while at < len(targets) and not is_sentinel(targets[at]):
            text.append(targets[at])
            at += 1
        at += 1
    assert at >= len(targets)
    return text


def test_replaced_spans_fill_the_inputs_again_and_are_a_share_of_the_text():
    made = replaced()
    for text, (inputs, targets) in zip(TEXTS, made):
        assert filled(inputs, targets) == text.tolist()
        for side in (inputs, targets):
            sentinels = is_sentinel(side)
            assert (side[sentinels] == FIRST - np.arange(sentinels.sum())).all()
            assert not (sentinels[1:] & sentinels[:-1]).any()
    lost = sum((~is_sentinel(targets)).sum() for _, targets in made)
    assert lost / LENGTHS.sum() == pytest.approx(0.15, abs=0.002)


def test_noise_ends_where_targets_or_sentinels_do():
    rows = corpus.numbered([60] * 500)
    for inputs, targets in replaced(rows, density=0.5, sentinels=4):
        assert is_sentinel(inputs).sum() <= 4 and is_sentinel(targets).sum() <= 5
    sizes = [len(targets) + 1 for _, targets in replaced(rows, density=0.5, targets_length=20)]
    assert max(sizes) == 20
    sizes = [len(targets) + 1 for _, targets in noised("drop", rows, density=0.5, targets_length=20)]
    assert max(sizes) == 20


def test_dropped_tokens_are_the_targets():
    rows = corpus.numbered(LENGTHS)
    made = noised("drop", rows, density=0.15, targets_length=1000)
    for text, (inputs, targets) in zip(rows, made):
        assert sorted([*inputs, *targets]) == text.tolist()
        assert inputs.tolist() == sorted(inputs) and targets.tolist() == sorted(targets)
    assert sum(len(targets) for _, targets in made) / LENGTHS.sum() == pytest.approx(0.15, abs=0.002)
    assert {len(targets) for _, targets in made[:4]} <= {0, 1}


@pytest.mark.parametrize("random", [0.0, 0.1])
def test_masks_stand_where_noise_is_and_targets_are_whole(random):
    settings = {"density": 0.15, "mask": 900, "random_probability": random, "reserved_ids": 3, "vocab_size": 600}
    made = noised("mask", [text + 600 for text in TEXTS], **settings)
    inputs, targets = (np.concatenate(side) for side in zip(*made))
    np.testing.assert_array_equal(targets, np.concatenate(TEXTS) + 600)
    inputs = inputs.astype(np.int64)
    changed = inputs != targets
    masks, randoms = (inputs == 900).sum(), (inputs < 600).sum()
    assert masks + randoms == changed.sum() + ((inputs == 900) & ~changed).sum()
    assert (masks + randoms) / len(targets) == pytest.approx(0.15, abs=0.003)
    assert randoms / (masks + randoms) == pytest.approx(random, abs=0.005)
    if random:
        assert 3 <= inputs.min() < 10 and inputs[inputs < 600].max() > 590


def test_shuffled_tokens_are_those_of_the_text_in_every_order():
    for text, (inputs, targets) in zip(TEXTS, noised("deshuffle")):
        assert sorted(inputs.tolist()) == sorted(text.tolist())
        assert targets.tolist() == text.tolist()
    orders = collections.Counter(tuple(x) for x, _ in noised("deshuffle", corpus.numbered([3] * 6000)))
    assert len(orders) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in orders.values()) < 20.5  # 5 degrees of freedom, 1 in 1,000


def test_a_text_is_cut_at_a_uniform_place_and_both_sides_have_tokens():
    for text, (prefix, rest) in zip(TEXTS, noised("split")):
        assert [*prefix, *rest] == text.tolist()
        assert len(prefix) and (len(rest) or len(text) == 1)
    places = collections.Counter(len(prefix) for prefix, _ in noised("split", corpus.numbered([9] * 8000)))
    assert sorted(places) == list(range(1, 9))
    assert sum((n - 1000) ** 2 / 1000 for n in places.values()) < 24.3  # 7 degrees of freedom, 1 in 1,000
