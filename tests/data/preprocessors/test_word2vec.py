"""word2vec's draws: how often a token stays, what the noise is, and rows of them."""

import numpy as np
import seqio
import tensorflow as tf

from jaxpt.data.preprocessors import skip_gram

COUNTS = np.array([0, 8000, 1500, 450, 50])
RECORDS, LENGTH = 4000, 20


def drawn(subsample):
    """(tokens before, records after)."""
    rng = np.random.default_rng(0)
    tokens_RxL = rng.choice(5, (RECORDS, LENGTH), p=COUNTS / COUNTS.sum()).astype(np.int32)
    batch = {"tokens": tf.RaggedTensor.from_tensor(tf.constant(tokens_RxL), row_splits_dtype=tf.int64)}
    keys = tf.constant(np.arange(RECORDS), tf.uint64)
    return tokens_RxL, skip_gram.draw.batched(batch, keys, subsample, 8, 0.75, lambda: COUNTS)


def test_a_token_stays_as_often_as_its_share_says():
    before_RxL, after = drawn(0.01)
    share_V = np.maximum(COUNTS, 1) / COUNTS.sum()
    wanted_V = np.minimum((np.sqrt(share_V / 0.01) + 1) * 0.01 / share_V, 1)
    kept = np.bincount(after["tokens"].values.numpy(), minlength=5) - np.bincount(before_RxL[:, 0], minlength=5)
    there = np.bincount(before_RxL[:, 1:].ravel(), minlength=5)  # the first of each record always stays
    for v in range(1, 5):
        error = np.sqrt(wanted_V[v] * (1 - wanted_V[v]) / there[v])
        assert abs(kept[v] / there[v] - wanted_V[v]) <= 4 * error, v
    assert after["tokens"].row_lengths().numpy().min() >= 1
    in_order = [list(x) for x in before_RxL[:50]]
    for row, left in zip(in_order, after["tokens"].to_list()):
        rest = iter(row)
        assert all(token in rest for token in left)  # a subsequence


def test_without_subsampling_all_stay():
    before_RxL, after = drawn(0.0)
    np.testing.assert_array_equal(after["tokens"].to_tensor().numpy(), before_RxL)


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
        made = skip_gram.draw(ds, subsample=0.01, noise=3, noise_exponent=0.75, token_counts=lambda: COUNTS)
    first, second = list(made.as_numpy_iterator()), list(made.as_numpy_iterator())
    assert [x["noise"].tolist() for x in first] == [x["noise"].tolist() for x in second]
    assert len({tuple(x["noise"]) for x in first}) > 1
