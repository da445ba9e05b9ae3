"""UniLM's masks: their shares, ranks and token types, and what is chosen under them, over 4,000 pairs."""

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.preprocessors import masked_lm, unilm
from jaxpt.objectives.unilm import UniLM
from tests.data.preprocessors import corpus

CLS, SEP, MASK, SIZE, COUNT = 300, 301, 302, 303, 4_000
SHARES = [0.2, 0.4, 0.2, 0.2]  # of pairs whose second text follows, where a sixth of all is drawn


@pytest.fixture(scope="module")
def pairs():
    """Real texts cut in two: {feature: rows}, a sixth of them with a drawn second text."""
    a, b = (corpus.texts(2 * COUNT)[half::2] for half in (0, 1))
    tokens = [np.concatenate([[CLS], x, [SEP], y, [SEP]]) for x, y in zip(a, b)]
    types = [np.repeat([0, 1], [len(x) + 2, len(y) + 1]) for x, y in zip(a, b)]
    return tokens, types, np.random.default_rng(1).random(COUNT) < 1 / 6


@pytest.fixture(scope="module")
def made(pairs):
    """The pairs after both preprocessors, each feature as rows."""
    tokens, types, is_random = pairs
    batch = {
        "tokens": corpus.ragged(tokens),
        "token_types": corpus.ragged(types),
        "is_random_next": tf.constant(is_random.astype(np.int32)),
    }
    batch = unilm.draw_mask.batched(batch, corpus.keys(COUNT, 1), SHARES, types_of_masks=True, next_sentence=True)
    batch = masked_lm.mask.batched(
        batch, corpus.keys(COUNT, 2), rate=0.15, max_predictions=30, mask=MASK, mask_probability=0.8,
        random_probability=0.1, vocab_size=SIZE, cls=CLS, sep=SEP, unit="run", shares=UniLM().word_shares(),
    )  # fmt: skip
    return {n: corpus.rows(x) if isinstance(x, tf.RaggedTensor) else x.numpy() for n, x in batch.items()}


def test_shares_of_the_masks(pairs, made):
    """2 : 2 : 1 : 1 of all pairs, those with a drawn text among the bidirectional ones, which alone have a label."""
    *_, is_random = pairs
    kinds = made["mask_kind"]
    for kind, share in enumerate((1 / 3, 1 / 3, 1 / 6, 1 / 6)):
        assert abs((kinds == kind).mean() - share) < 4 * np.sqrt(share * (1 - share) / COUNT)
    assert not kinds[is_random].any()
    np.testing.assert_array_equal(made["is_random_next"], np.where(kinds == 0, is_random, -1))
    np.testing.assert_array_equal(made["end_is_text"], kinds == 1)


@pytest.mark.slow
def test_what_each_token_may_see(pairs, made):
    _, types, _ = pairs
    shown = [{0, 1}, {4, 5}, {2}, {3}]
    for kind, ranks, was, now in zip(made["mask_kind"], made["ranks"], types, made["token_types"]):
        place = np.arange(len(ranks))
        sees = ranks[None] <= ranks[:, None]
        first = was == 0
        expected = [
            np.ones_like(sees),
            np.where(first[:, None], first[None], place[None] <= place[:, None]),
            place[None] <= place[:, None],
            place[None] >= place[:, None],
        ][kind]
        np.testing.assert_array_equal(sees, expected)
        assert set(now) == shown[kind]
        if kind < 2:
            np.testing.assert_array_equal(now - now[0], was)


@pytest.mark.slow
def test_which_tokens_are_chosen(pairs, made):
    tokens, *_ = pairs
    ends = 0
    for kind, text, positions, targets, masked in zip(
        made["mask_kind"], tokens, made["masked_positions"], made["masked_targets"], made["tokens"]
    ):
        text = np.asarray(text)
        assert len(positions) == min(30, max(1, round(0.15 * len(text))), len(text) - 3 + (kind == 1))
        np.testing.assert_array_equal(targets, text[positions])
        np.testing.assert_array_equal(np.delete(masked, positions), np.delete(text, positions))
        special = positions[np.isin(targets, (CLS, SEP))]
        assert (special == len(text) - 1).all() and (kind == 1 or not special.size)
        ends += special.size
    # Under sequence to sequence the end is chosen as often as any other token.
    expected = sum(
        len(p) / (len(x) - 2) for p, x, kind in zip(made["masked_positions"], tokens, made["mask_kind"]) if kind == 1
    )
    assert abs(ends - expected) < 4 * np.sqrt(expected)


def test_runs_of_one_two_and_three():
    """Of single draws: one token 80 %, two and three 10 % each."""
    rows = [np.arange(3, 203)] * 10_000
    batch = {"tokens": corpus.ragged(rows)}
    settings = {"mask": MASK, "mask_probability": 1.0, "random_probability": 0.0, "vocab_size": SIZE}
    batch = masked_lm.mask.batched(
        batch, corpus.keys(len(rows)), rate=0.015, max_predictions=3, cls=CLS, sep=SEP, unit="run",
        shares=UniLM().word_shares(), **settings,
    )  # fmt: skip
    positions = np.stack(corpus.rows(batch["masked_positions"]))
    assert positions.shape == (10_000, 3)
    whole = (np.diff(positions) == 1).all(1).mean()
    pairs = (np.diff(positions) == 1).sum(1) == 1
    # What is over three is given up at random, be it of the last run or of those before it. Drawn are three; one and
    # three, of which the one is given up; two and three, or one, one and three: one case of ten; or it is chance.
    assert abs(whole - (0.1 + 0.08 / 4 + 0.01 / 10 + 0.064 / 10)) < 0.02
    # One and two, or two and one; one and three, two and two, two and three, one, one and two, one, one and three.
    assert abs(pairs.mean() - (0.16 + 0.08 / 2 + 0.01 + 0.007 + 0.064 / 2 + 0.064 * 0.4)) < 0.03
