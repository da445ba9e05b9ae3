"""Causality, padding and packing of GPT-2."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import base
from jaxpt.models.gpt2 import GPT2Config
from tests.models.helpers import apply, gpt2, influence, made, packed, tokens


@pytest.fixture(scope="module")
def model():
    return made("gpt2")


def test_no_output_depends_on_a_later_token(model):
    effect = influence(*model, "decode", tokens(1, 10))
    assert (np.triu(effect, 1) == 0).all()
    assert (effect[np.tril_indices(10)] > 0).all()


def test_later_tokens_leave_earlier_outputs_bit_equal(model):
    ids = tokens(2, 10)
    changed = ids.copy()
    changed[:, 6:] = tokens(2, 4, seed=7)
    first, second = (apply(*model, "decode", x) for x in (ids, changed))
    np.testing.assert_array_equal(first[:, :6], second[:, :6])
    assert np.abs(first[:, 6:] - second[:, 6:]).max() > 1e-3


def test_padding_in_front_never_changes_a_real_token(model):
    ids, segments = tokens(2, 12), np.array([[0] * 4 + [1] * 8] * 2)
    positions = np.array([[0] * 4 + [*range(8)]] * 2)
    other = np.where(segments == 1, ids, tokens(2, 12, seed=5))
    first, second = (apply(*model, "decode", x, segment_ids=segments, positions=positions) for x in (ids, other))
    np.testing.assert_array_equal(first[:, 4:], second[:, 4:])
    np.testing.assert_allclose(first[:, 4:], apply(*model, "decode", ids[:, 4:]), atol=1e-5)


def test_packed_equals_separate(model):
    def run(ids, segments, positions):
        return apply(*model, "decode", ids, segment_ids=segments, positions=positions)

    for got, want in zip(*packed(run, 16)):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_residual_projections_start_smaller():
    config = gpt2(layers=8, embed_dim=96, mlp_dim=384)
    block = base.init(config.build(), jnp.zeros(2, jnp.uint32))["decoder"]["segment_0"]["block_0"]
    for part in ("attention/query", "attention/output", "feed_forward/up", "feed_forward/down"):
        module, name = part.split("/")
        want = 0.02 if name in ("query", "up") else 0.02 / 4
        np.testing.assert_allclose(block[module][name]["kernel"].std(), want, rtol=0.03)


def test_config():
    assert gpt2().position_limit == 32
    assert GPT2Config.family == "decoder"
    assert gpt2(mlp_dim=None).build().config.mlp_dim is None
    with pytest.raises(ValueError, match="heads: 5 does not divide embed_dim 24"):
        gpt2(heads=5)
