"""What padding, packing and token types do to a BERT."""

import numpy as np
import pytest

from jaxpt.models.bert import BertConfig
from tests.models.helpers import apply, bert, made, packed, tokens


@pytest.fixture(scope="module")
def model():
    return made("bert")


def test_padding_never_changes_a_real_token(model):
    ids, segments = tokens(2, 12), np.array([[1] * 8 + [0] * 4] * 2)
    other = np.where(segments == 1, ids, tokens(2, 12, seed=5))
    first, second = (apply(*model, "encode", x, segment_ids=segments) for x in (ids, other))
    np.testing.assert_array_equal(first[:, :8], second[:, :8])
    np.testing.assert_allclose(first[:, :8], apply(*model, "encode", ids[:, :8]), atol=1e-5)


def test_packed_equals_separate(model):
    def run(ids, segments, positions):
        return apply(*model, "encode", ids, segment_ids=segments, positions=positions)

    for got, want in zip(*packed(run, 16)):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_each_token_sees_all_others(model):
    ids = tokens(1, 8)
    changed = ids.copy()
    changed[0, 7] = (ids[0, 7] + 1) % 100
    difference = apply(*model, "encode", ids) - apply(*model, "encode", changed)
    assert np.abs(difference).max(-1).min() > 1e-4


def test_token_types_and_positions_matter(model):
    ids = tokens(1, 8)
    plain = apply(*model, "encode", ids)
    np.testing.assert_array_equal(plain, apply(*model, "encode", ids, token_types=np.zeros_like(ids)))
    np.testing.assert_array_equal(plain, apply(*model, "encode", ids, positions=np.arange(8)[None]))
    assert np.abs(plain - apply(*model, "encode", ids, token_types=np.ones_like(ids))).max() > 1e-3
    assert np.abs(plain - apply(*model, "encode", ids, positions=np.arange(8)[None] + 1)).max() > 1e-3


def test_config():
    assert bert().position_limit == 32
    assert BertConfig.family == "encoder"
    with pytest.raises(ValueError, match="heads: 5 does not divide embed_dim 24"):
        bert(heads=5)
