"""BERT's masking: how many, which, what becomes of them, seeds."""

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.preprocessors import masked_lm
from jaxpt.data.preprocessors.batched import fold_in
from tests.data.preprocessors import corpus

CLS, SEP, MASK, SIZE = 2, 3, 4, 1000
BERT = {"rate": 0.15, "max_predictions": 20, "mask_probability": 0.8, "random_probability": 0.1}


def masked(records, number=0, **kwargs):
    """Records of tokens after masking, as [{name: numpy}]."""
    kwargs = {**BERT, "mask": MASK, "vocab_size": SIZE, "cls": CLS, "sep": SEP, **kwargs}
    batch = {"tokens": tf.ragged.constant(records, tf.int32, row_splits_dtype=tf.int64)}
    keys = fold_in(np.arange(len(records), dtype=np.uint64), number)
    out = masked_lm.mask.batched(batch, tf.constant(keys), **kwargs)
    rows = {name: np.split(x.values.numpy(), x.row_splits.numpy()[1:-1]) for name, x in out.items()}
    return [{name: x[i] for name, x in rows.items()} for i in range(len(records))]


def pair(a, b):
    return [CLS, *range(10, 10 + a), SEP, *range(500, 500 + b), SEP]


def test_how_many():
    """round(.15 · length), halves to even, the three special tokens counted: 10 → 1.5 → 2, 30 → 4.5 → 4."""
    lengths = [4, 5, 9, 10, 30, 50, 128, 140, 300]
    out = masked([pair(1, n - 4) for n in lengths])
    assert [len(ex["masked_positions"]) for ex in out] == [1, 1, 1, 2, 4, 8, 19, 20, 20]
    expected = [min(20, max(1, round(0.15 * n))) for n in lengths]
    assert [len(ex["masked_targets"]) for ex in out] == expected


def test_other_roundings():
    """`up` counts text alone, `random` has the mean .15 · length: 10 → 1 or 2, and is 0 of a short record."""
    lengths = [4, 23, 24, 50]
    assert [len(ex["masked_positions"]) for ex in masked([pair(1, n - 4) for n in lengths], rounding="up")] == [
        1,
        3,
        4,
        8,
    ]
    counts = np.array([len(ex["masked_positions"]) for ex in masked([pair(1, 6)] * 2000, rounding="random")])
    assert set(counts) == {1, 2} and abs(counts.mean() - 1.5) < 3 * 0.5 / np.sqrt(2000)
    short = [len(ex["masked_positions"]) for ex in masked([pair(1, 1)] * 400, rounding="random")]
    assert set(short) == {0, 1} and abs(np.mean(short) - 0.75) < 0.08


def test_random_ids_without_the_special_ones():
    kwargs = {"mask_probability": 0.0, "random_probability": 1.0, "vocab_size": 12, "never": [0, 2, 3, 4, 11]}
    out = masked([[CLS, *[1] * 60, SEP]] * 200, **kwargs)
    shown, counts = np.unique(np.concatenate([ex["tokens"][ex["masked_positions"]] for ex in out]), return_counts=True)
    assert shown.tolist() == [1, 5, 6, 7, 8, 9, 10] and counts.min() > 0.7 * counts.mean()


def test_draws_with_replacement_are_electras():
    """77 draws of 509 pieces are 71.5 distinct ones in the mean; one that is drawn twice is there twice."""
    settings = {"unit": "draw", "max_predictions": 79, "mask_probability": 0.85, "random_probability": 0.0}
    out = masked([pair(300, 209)] * 400, **settings)
    assert {len(ex["masked_positions"]) for ex in out} == {77}
    distinct = [len(set(ex["masked_positions"].tolist())) for ex in out]
    assert abs(np.mean(distinct) - 509 * (1 - (1 - 1 / 509) ** 77)) < 0.4
    kept = []
    for ex in out:
        assert (np.diff(ex["masked_positions"]) >= 0).all()
        original = np.array(pair(300, 209))
        np.testing.assert_array_equal(ex["masked_targets"], original[ex["masked_positions"]])
        positions, times = np.unique(ex["masked_positions"], return_counts=True)
        kept += [(times[i], ex["tokens"][at] == original[at]) for i, at in enumerate(positions)]
        shown = ex["tokens"][positions]
        assert np.isin(shown, [MASK]).mean() > 0.6 and ((shown == MASK) | (shown == original[positions])).all()
    for times in (1, 2):  # masked if one of its draws says so
        found = [is_kept for n, is_kept in kept if n == times]
        assert abs(np.mean(found) - 0.15**times) < 4 * np.sqrt(0.15**times / len(found))
    assert not len(masked([[CLS, SEP]], **settings)[0]["masked_positions"])


def test_one_in_each_window_and_none_after_the_number_is_debertas():
    """As NGramMaskGenerator: int(1/.15) = 6 pieces a window, round(.15 · 512) = 77 of 85 windows; never [UNK]."""
    settings = {"unit": "window", "max_predictions": 80, "mask_probability": 1.0, "random_probability": 0.0}
    out = masked([[CLS, *range(10, 520), SEP], [CLS, 1, 10, 11, SEP], [CLS, 1, SEP]] * 200, **settings, skip=[1])
    for ex in out[::3]:
        np.testing.assert_array_equal((ex["masked_positions"] - 1) // 6, np.arange(77))
    places = np.concatenate([(ex["masked_positions"] - 1) % 6 for ex in out[::3]])
    counts = np.bincount(places, minlength=6)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 20.5  # 5 degrees of freedom, 1 in 1,000
    assert {tuple(ex["masked_positions"]) for ex in out[1::3]} == {(2,), (3,)}
    assert not any(len(ex["masked_positions"]) for ex in out[2::3])


def test_special_tokens_may_be_masked_as_in_fairseq():
    out = masked([pair(4, 3)] * 3000, mask_specials=True, rounding="random")
    counts = np.bincount(np.concatenate([ex["masked_positions"] for ex in out]), minlength=10)
    expected = 0.15 * len(out)
    assert len(counts) == 10 and ((counts - expected) ** 2 / expected).sum() < 27.9  # 9 degrees of freedom, 1 in 1,000


def test_random_ids_of_the_corpus_have_its_shares():
    counts = np.zeros(SIZE, np.int64)
    counts[[CLS, SEP, 7, 8, 999]] = 10**6, 10**6, 100, 300, 600
    settings = {"mask_probability": 0.0, "random_probability": 1.0, "random_ids": "corpus", "unit": "piece"}
    out = masked([pair(60, 60)] * 400, **settings, token_counts=lambda: counts)
    ids, found = np.unique(np.concatenate([ex["tokens"][ex["masked_positions"]] for ex in out]), return_counts=True)
    assert ids.tolist() == [7, 8, 999]
    np.testing.assert_allclose(found / found.sum(), [0.1, 0.3, 0.6], atol=0.02)


def test_pieces_by_frequency_are_distilberts():
    """One piece of two is drawn with weights count^-.7; one that is in no record counts as 1; [UNK] is none."""
    counts = np.zeros(SIZE, np.int64)
    counts[[10, 11]] = 1000, 10
    settings = {"frequency_exponent": -0.7, "token_counts": lambda: counts, "skip": [1]}
    out = masked([[CLS, 10, 11, 1, SEP], [CLS, 10, 12, SEP], [CLS, *range(10, 60), SEP]] * 3000, rate=0.1, **settings)
    for record, weights in ((0, (1000**-0.7, 10**-0.7)), (1, (1000**-0.7, 1.0))):
        first = np.mean([ex["masked_positions"].tolist() == [1] for ex in out[record::3]])
        expected = weights[0] / sum(weights)
        assert abs(first - expected) < 4 * np.sqrt(expected / 3000)
    assert {len(set(ex["masked_positions"].tolist())) for ex in out[2::3]} == {5}, "without replacement"


def test_never_more_than_there_are():
    [one, none] = masked([[CLS, 10, SEP], [CLS, SEP]], rate=0.99)
    assert (one["masked_positions"].tolist(), one["masked_targets"].tolist()) == ([1], [10])
    assert none["tokens"].tolist() == [CLS, SEP] and len(none["masked_positions"]) == 0


def test_targets_are_the_originals_and_nothing_else_changes():
    records = [pair(5 + n, 40) for n in range(60)]
    for record, ex in zip(records, masked(records)):
        positions = ex["masked_positions"]
        assert (np.diff(positions) > 0).all()
        original = np.array(record)
        np.testing.assert_array_equal(ex["masked_targets"], original[positions])
        assert not np.isin(ex["masked_targets"], [CLS, SEP]).any()
        np.testing.assert_array_equal(np.delete(ex["tokens"], positions), np.delete(original, positions))


def test_real_texts():
    """Numbers under each rounding, special tokens never, 80/10/10, nothing else changed."""
    texts = corpus.texts()
    records = corpus.ragged([[CLS, *(text + 10), SEP] for text in texts])
    length, tokens = np.array([len(text) + 2 for text in texts]), records.values.numpy()
    special = np.isin(tokens, [CLS, SEP])
    for rounding, least, most in (
        ("nearest", np.maximum(np.round(0.15 * length), 1), np.maximum(np.round(0.15 * length), 1)),
        ("random", np.floor(0.15 * length), np.ceil(0.15 * length)),
        ("up", np.ceil(0.15 * (length - 2)), np.ceil(0.15 * (length - 2))),
    ):
        settings = {**BERT, "mask": MASK, "vocab_size": SIZE, "cls": CLS, "sep": SEP, "rounding": rounding}
        out = masked_lm.mask.batched({"tokens": records}, corpus.keys(len(texts)), **settings)
        count = out["masked_positions"].row_lengths().numpy()
        assert ((least <= count) & (count <= most)).all()
        # Rounded at random the mean is exact, up to three standard deviations of a coin for each text.
        assert rounding != "random" or abs((count - 0.15 * length).mean()) < 3 * 0.5 / np.sqrt(len(texts))
        at = np.repeat(records.row_starts().numpy(), count) + out["masked_positions"].values.numpy()
        shown = out["tokens"].values.numpy()
        np.testing.assert_array_equal(out["masked_targets"].values.numpy(), tokens[at])
        np.testing.assert_array_equal(np.delete(shown, at), np.delete(tokens, at))
        assert not special[at].any() and len(np.unique(at)) == len(at)
        for share, expected in ((shown[at] == MASK, 0.8001), (shown[at] == tokens[at], 0.1001)):
            assert abs(share.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / len(at))


def test_eighty_ten_ten_over_the_whole_vocabulary():
    out = masked([pair(60, 60)] * 1500)
    shown = np.concatenate([ex["tokens"][ex["masked_positions"]] for ex in out])
    targets = np.concatenate([ex["masked_targets"] for ex in out])
    # A random id is the original, or [MASK], once in SIZE times.
    random = (shown != MASK) & (shown != targets)
    for share, expected in (((shown == MASK), 0.8001), ((shown == targets), 0.1001), (random, 0.0998)):
        sigma = np.sqrt(expected * (1 - expected) / len(shown))
        assert abs(share.mean() - expected) < 3 * sigma
    assert shown[random].min() < 10 and shown[random].max() >= SIZE - 10
    assert abs(shown[random].mean() - SIZE / 2) < 3 * SIZE / np.sqrt(12 * random.sum())


def test_positions_are_uniform_among_text():
    record = pair(6, 4)
    counts = np.zeros(len(record))
    out = masked([record] * 3000)
    for ex in out:
        counts[ex["masked_positions"]] += 1
    text = np.isin(record, [CLS, SEP], invert=True)
    assert counts[~text].sum() == 0
    expected = 2 * len(out) / 10
    assert ((counts[text] - expected) ** 2 / expected).sum() < 27.9  # 9 degrees of freedom, 1 in 1,000


@pytest.mark.parametrize(("mask_probability", "random_probability"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_shares_at_their_ends(mask_probability, random_probability):
    out = masked([pair(60, 60)] * 20, mask_probability=mask_probability, random_probability=random_probability)
    shown = np.concatenate([ex["tokens"][ex["masked_positions"]] for ex in out])
    targets = np.concatenate([ex["masked_targets"] for ex in out])
    assert (shown == MASK).all() == (mask_probability == 1.0)
    assert (shown == targets).all() == (mask_probability + random_probability == 0.0)


def test_the_seed_alone_decides():
    first, again, other = (masked([pair(60, 60)] * 3, number=n) for n in (1, 1, 2))
    for a, b, c in zip(first, again, other):
        np.testing.assert_array_equal(a["tokens"], b["tokens"])
        assert not np.array_equal(a["masked_positions"], c["masked_positions"])
    assert not np.array_equal(first[0]["masked_positions"], first[1]["masked_positions"])


def test_other_features_are_passed_through():
    kwargs = {**BERT, "mask": MASK, "vocab_size": SIZE, "cls": CLS, "sep": SEP}
    ex = {"tokens": tf.constant(pair(3, 3)), "is_random_next": tf.constant(1), "origin": tf.constant([0, 1, 2])}
    out = masked_lm.mask.__wrapped__(ex, tf.constant([0, 0]), **kwargs)
    assert int(out["is_random_next"]) == 1 and out["origin"].numpy().tolist() == [0, 1, 2]
