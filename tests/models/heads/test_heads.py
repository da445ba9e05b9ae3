"""Each head against its formula in NumPy, and what a backbone's configuration changes of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.heads import masked_lm, pooler, replaced_token, sentence_pair, span_boundary
from jaxpt.models.layers import PARAMETER_AXES
from jaxpt.models.network import Network
from tests import grids
from tests.models.helpers import EVERY, V, bert, drawn

pytestmark = pytest.mark.gpu

D = 24


def bound(config, heads):
    network = Network(config.build(), heads)
    params = drawn(network)
    return network.bind(params), jax.tree.map(np.asarray, params)


def hidden(*shape):
    return np.random.default_rng(1).normal(size=(*shape, D)).astype(np.float32)


def gelu(x):
    return np.asarray(jax.nn.gelu(x, approximate=False))


def norm(x, p, epsilon=1e-12):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * p["scale"] + p.get("bias", 0)


def dense(x, p):
    return x @ p["kernel"] + p.get("bias", 0)


def test_masked_lm_is_its_formula():
    model, params = bound(bert(), masked_lm.declare(bert()))
    x, p = hidden(2, 3), params["heads"]["masked_lm"]
    states = norm(gelu(dense(x, p["dense"])), p["norm"])
    want = states @ params["model"]["token_embed"]["table"][:V].T + p["bias"][:V]
    logits, found = jax.jit(lambda x: (model.logits(x), model.lm_states(x)))(x)
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found, states, rtol=1e-4, atol=1e-4)


def test_scores_without_a_head_are_those_of_the_embeddings():
    model, params = bound(bert(), {})
    x = hidden(2, 3)
    want = x @ params["model"]["token_embed"]["table"][:V].T
    np.testing.assert_allclose(jax.jit(model.logits)(x), want, rtol=1e-4, atol=1e-4)


def test_sentence_pair_sees_the_first_token_alone():
    model, params = bound(bert(dropout=0.5), sentence_pair.declare(bert()))
    x, p = hidden(3, 4), params["heads"]
    want = dense(np.tanh(dense(x[:, 0], p["pooler"]["dense"])), p["sentence_pair"]["dense"])
    np.testing.assert_allclose(jax.jit(lambda x: sentence_pair.logits(model, x))(x), want, rtol=1e-5, atol=1e-5)
    assert pooler.declare(bert())["pooler"] == sentence_pair.declare(bert())["pooler"]


def test_span_boundary_is_its_formula():
    model, params = bound(bert(), span_boundary.declare(bert(), rows=5, position_dim=6))
    left, right, places = hidden(2, 3), hidden(2, 3)[::-1], np.array([[0, 1, 2], [4, 0, 3]])
    p = params["heads"]["span_boundary"]
    assert p["position_embed"]["table"].shape == (5, 6)
    x = np.concatenate([left, right, p["position_embed"]["table"][places]], axis=-1)
    for n in (1, 2):
        x = norm(gelu(dense(x, p[f"dense_{n}"])), p[f"norm_{n}"])
    head = model.heads["span_boundary"]
    found, bias = jax.jit(lambda *x: (head(*x), head.projection_bias()))(left, right, places)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(bias, p["bias"])


@pytest.mark.parametrize("sees_first", [False, True])
def test_replaced_token_is_its_formula(sees_first):
    config = EVERY["deberta"]()
    model, params = bound(config, replaced_token.declare(config, sees_first))
    x, p = hidden(2, 3), params["heads"]["replaced_token"]
    scores = jax.jit(lambda x, first: (model.heads["replaced_token"](x), model.heads["replaced_token"](x, first)))
    for first in (np.zeros((2, 3), int), np.array([[0, 0, 2], [0, 1, 1]])):  # one text in each row, and two
        y = norm(x + np.take_along_axis(x, first[..., None], axis=1), p["norm"], config.epsilon) if sees_first else x
        want, (plain, packed) = dense(gelu(dense(y, p["dense"])), p["score"])[..., 0], scores(x, first)
        np.testing.assert_allclose(packed, want, rtol=1e-4, atol=1e-5)
        if not first.any():
            np.testing.assert_array_equal(plain, packed)
    assert ("norm" in p) == sees_first


ENCODERS = ("bert", "roberta", "albert", "distilbert", "electra", "deberta", "modernbert")


@pytest.mark.parametrize("name", grids.cases(ENCODERS, "albert", "deberta", "modernbert"))
def test_masked_lm_goes_with_every_encoder(name):
    """Its width is that of the token embeddings, and its axes are known."""
    config = EVERY[name]()
    network = Network(config.build(), masked_lm.declare(config))
    width = network.shapes()["model"]["token_embed"]["table"].shape[1]
    assert network.shapes()["heads"]["masked_lm"]["dense"]["kernel"].shape == (D, width)
    axes = jax.tree.leaves(network.logical_axes()["heads"], is_leaf=lambda x: isinstance(x, tuple))
    assert all(set(names) <= set(PARAMETER_AXES) for names in axes)
    scores = jax.eval_shape(lambda p, x: network.bind(p).logits(x), network.shapes(), jnp.zeros((1, 2, D)))
    assert scores.shape == (1, 2, V)


def test_a_backbone_may_score_by_itself():
    assert masked_lm.declare(EVERY["xlnet"]()) == {}


def test_modernbert_says_which_biases_its_head_has():
    config = EVERY["modernbert"](head_bias=True, norm_bias=True, vocab_bias=False)
    head = Network(config.build(), masked_lm.declare(config)).shapes()["heads"]["masked_lm"]
    assert {k: set(v) for k, v in head.items()} == {"dense": {"kernel", "bias"}, "norm": {"scale", "bias"}}
