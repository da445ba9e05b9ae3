"""Causality, padding and packing of GPT-2."""

import functools

import jax
import numpy as np
import pytest

from jaxpt.models.gpt2 import GPT2Config
from jaxpt.models.network import Network
from tests.models.helpers import OTHERS, apply, drawn, gpt2, influence, made, packed, tokens

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model():
    return made("gpt2")


def test_no_output_depends_on_a_later_token(model):
    effect = influence(*model, "decode", tokens(1, 10))
    assert (np.triu(effect, 1) == 0).all()
    assert (effect[np.tril_indices(10)] > 0).all()


def test_later_tokens_leave_earlier_outputs_bit_equal(model):
    ids = tokens(3, 8)
    changed = ids.copy()
    changed[:, 5:] = tokens(3, 3, seed=7)
    first, second = (apply(*model, "decode", x) for x in (ids, changed))
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert np.abs(first[:, 5:] - second[:, 5:]).max() > 1e-3


def in_rows(model, ids, segments, positions):
    return apply(*model, "decode", ids, segment_ids=segments, positions=positions)


def test_padding_in_front_never_changes_a_real_token(model):
    ids, segments = tokens(3, 16), np.array([[0] * 8 + [1] * 8] * 3)
    positions = np.array([[0] * 8 + [*range(8)]] * 3)
    other = np.where(segments == 1, ids, tokens(3, 16, seed=5))
    first, second = (in_rows(model, x, segments, positions) for x in (ids, other))
    np.testing.assert_array_equal(first[:, 8:], second[:, 8:])
    np.testing.assert_allclose(first[:, 8:], apply(*model, "decode", ids[:, 8:]), atol=1e-5)


def test_packed_equals_separate(model):
    for got, want in zip(*packed(functools.partial(in_rows, model), 16)):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_residual_projections_start_smaller():
    module = gpt2(layers=8, embed_dim=96, mlp_dim=384).build()

    @jax.jit
    def kernels(key):  # the kernels alone: what is not returned is not compiled either
        block = Network(module).init(key)["model"]["decoder"]["segment_0"]["block_0"]
        return {(part, name): block[part][name]["kernel"] for part, name in wanted}

    wanted = {("attention", "query"): 0.02, ("attention", "output"): 0.02 / 4}
    wanted |= {("feed_forward", "up"): 0.02, ("feed_forward", "down"): 0.02 / 4}
    for place, kernel in kernels(jax.random.key(0)).items():
        np.testing.assert_allclose(np.std(kernel), wanted[place], rtol=0.03)


@pytest.mark.parametrize(("make", "drops"), [(gpt2, True), (OTHERS["opt"], False)], ids=["gpt2", "opt"])
def test_opt_alone_keeps_all_embeddings(make, drops):
    network = Network(make(dropout=0.5).build())
    params = drawn(network)
    embedded = jax.jit(lambda key: network.bind(params, {"dropout": key}).embed(tokens(1, 8), None))(jax.random.key(0))
    assert (np.asarray(embedded) == 0).any() == drops


def test_config():
    assert gpt2().position_limit == 32
    assert GPT2Config.family == "decoder"
    assert gpt2(mlp_dim=None).build().config.mlp_dim is None
    with pytest.raises(ValueError, match="heads: 5 does not divide embed_dim 24"):
        gpt2(heads=5)
