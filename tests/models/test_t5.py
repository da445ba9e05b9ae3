"""Causality, padding and packing of T5, on both sides."""

import numpy as np
import pytest

from jaxpt.models.t5 import T5Config
from tests.models.helpers import apply, influence, made, packed, t5, tokens


@pytest.fixture(scope="module", params=["t5", pytest.param("t5_old", marks=pytest.mark.slow)])
def model(request):
    return made(request.param)


@pytest.fixture(scope="module")
def encoded(model):
    return apply(*model, "encode", tokens(1, 9, seed=4))


def test_no_output_depends_on_a_later_target(model, encoded):
    effect = influence(*model, "decode", tokens(1, 10), encoded)
    assert (np.triu(effect, 1) == 0).all()
    assert (effect[np.tril_indices(10)] > 0).all()


def test_encoder_tokens_see_all_others(model):
    assert (influence(*model, "encode", tokens(1, 8)) > 0).all()


def test_later_targets_leave_earlier_outputs_bit_equal(model, encoded):
    ids = tokens(1, 10)
    changed = ids.copy()
    changed[:, 6:] = tokens(1, 4, seed=7)
    first, second = (apply(*model, "decode", x, encoded) for x in (ids, changed))
    np.testing.assert_array_equal(first[:, :6], second[:, :6])


def test_padding_never_changes_a_real_token(model):
    sources, segments = tokens(2, 12), np.array([[1] * 8 + [0] * 4] * 2)
    targets, target_segments = tokens(2, 7, seed=1), np.array([[1] * 5 + [0] * 2] * 2)

    def run(sources, targets):
        encoded = apply(*model, "encode", sources, segment_ids=segments)
        ids = {"segment_ids": target_segments, "encoder_segment_ids": segments}
        return encoded[:, :8], apply(*model, "decode", targets, encoded, **ids)[:, :5]

    other = np.where(segments == 1, sources, 3), np.where(target_segments == 1, targets, 3)
    for first, second in zip(run(sources, targets), run(*other)):
        np.testing.assert_array_equal(first, second)
    encoded = apply(*model, "encode", sources[:, :8])
    np.testing.assert_allclose(run(sources, targets)[1], apply(*model, "decode", targets[:, :5], encoded), atol=1e-4)


def test_packed_equals_separate(model):
    """Also with encoder sequences of other lengths than the decoder's."""
    sources = [tokens(1, 6, seed=11), tokens(1, 4, seed=12)]
    packed_source = np.concatenate(sources, axis=1)
    packed_segments = np.array([[1] * 6 + [2] * 4])

    def run(ids, segments, positions):
        together = segments.max() == 2
        source = packed_source if together else sources[0 if ids.shape[1] == 5 else 1]
        source_segments = packed_segments if together else np.ones_like(source)
        encoded = apply(*model, "encode", source, segment_ids=source_segments)
        own = {"segment_ids": segments, "positions": positions, "encoder_segment_ids": source_segments}
        return apply(*model, "decode", ids, encoded, **own)

    for got, want in zip(*packed(run, 15)):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_order_matters(model):
    ids = tokens(1, 8)
    first, second = apply(*model, "encode", ids), apply(*model, "encode", ids[:, ::-1])[:, ::-1]
    assert np.abs(first - second).max() > 1e-2


def test_config():
    assert t5().position_limit is None
    assert T5Config.family == "encoder_decoder"
    assert t5(dropout=0.1) == t5(dropout=0.1) and hash(t5()) == hash(t5())
