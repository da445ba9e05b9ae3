"""A backbone with heads: one tree of parameters, parts that two networks share, differences, and random keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.heads import masked_lm, sentence_pair
from jaxpt.models import base
from jaxpt.models.network import Network
from tests.models.helpers import EVERY, bert, drawn, tokens

SMALL = bert(layers=1, mlp_dim=16)


def pair(**options):
    """A network whose head `small` is a network too."""
    small = Network(SMALL.build(), masked_lm.declare(SMALL), shared=options.pop("shared", ()))
    return Network(bert(**options.pop("model", {})).build(), {"small": small, **masked_lm.declare(bert())}, **options)


def test_the_tree_has_the_model_and_each_head():
    network = Network(bert().build(), sentence_pair.declare(bert()))
    params = jax.jit(network.init)(jax.random.key(0))
    assert set(params) == {"model", "heads"} and set(params["heads"]) == {"pooler", "sentence_pair"}
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), network.shapes()
    )
    alone = jax.jit(lambda key: base.init(bert().build(), key))(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params["model"], alone)
    assert set(Network(bert().build()).shapes()) == {"model"}
    assert network.count_params() == base.count_params(bert().build()) + 24 * 24 + 24 + 24 * 2 + 2


def test_it_is_hashable_and_equal_by_its_parts():
    one, two = pair(), pair()
    assert one == two and hash(one) == hash(two) and one.abstract() is two.abstract()
    assert one != Network(bert().build())


def test_no_two_heads_draw_alike():
    """A head's parameters depend on the key and its name alone, and are another's under another name."""
    head = masked_lm.declare(bert())["masked_lm"]
    one, two = Network(bert().build(), {"a": head, "b": head}), Network(bert().build(), {"b": head})
    params, again = one.init(jax.random.key(0)), two.init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params["heads"]["b"], again["heads"]["b"])
    assert np.abs(params["heads"]["a"]["dense"]["kernel"] - params["heads"]["b"]["dense"]["kernel"]).max() > 1e-3


@pytest.mark.slow
def test_shared_parts_exist_once_and_get_both_gradients():
    network = pair(shared=("token_embed", "embed_norm"))
    params, ids = drawn(network), tokens(1, 4)
    assert "token_embed" not in params["heads"]["small"]["model"] and "token_embed" in params["model"]

    def loss(params, which):
        bound = network.bind(params)
        bound = bound.heads["small"] if which == "small" else bound
        return jnp.square(bound.logits(bound.encode(ids).hidden)).sum()

    for which in ("small", "whole"):
        gradient = jax.grad(loss)(params, which)
        assert np.abs(gradient["model"]["token_embed"]["table"]).max() > 0
        assert (np.abs(gradient["heads"]["small"]["model"]["position_embed"]["table"]).max() > 0) == (which == "small")


def test_a_difference_starts_at_zero_and_stops_the_gradient():
    network = pair(deltas=dict.fromkeys(("token_embed", "position_embed", "type_embed"), "small"))
    params, ids = network.init(jax.random.key(0)), tokens(1, 4)
    assert not np.any(params["model"]["token_embed"]["table"])
    params["model"]["token_embed"]["table"] += 0.5
    summed = Network(network.model)
    tables = {"table": params["heads"]["small"]["model"]["token_embed"]["table"] + 0.5}
    small = params["heads"]["small"]["model"]
    rest = {k: jax.tree.map(jnp.add, params["model"][k], small[k]) for k in ("position_embed", "type_embed")}
    plain = summed.bind({"model": {**params["model"], **rest, "token_embed": tables}})
    np.testing.assert_allclose(network.bind(params).encode(ids).hidden, plain.encode(ids).hidden, rtol=1e-4, atol=1e-5)

    gradient = jax.grad(lambda p: jnp.square(network.bind(p).encode(ids).hidden * jnp.arange(24)).sum())(params)
    assert np.abs(gradient["model"]["token_embed"]["table"]).max() > 0
    assert not any(np.any(x) for x in jax.tree.leaves(gradient["heads"]["small"]))


def test_dropout_of_a_head_is_not_the_model_s():
    """The same sizes, parameters and key: the draws differ, since they are folded with the head's name."""
    config = bert(dropout=0.5)
    network = Network(config.build(), {"twin": Network(config.build())})
    params, ids = drawn(network), tokens(1, 8)
    params["heads"]["twin"]["model"] = params["model"]
    noisy, quiet = network.bind(params, {"dropout": jax.random.key(0)}), network.bind(params)
    one, two = (np.asarray(b.encode(ids).hidden) for b in (noisy, noisy.heads["twin"]))
    assert np.abs(one - two).max() > 0.01
    np.testing.assert_array_equal(quiet.encode(ids).hidden, quiet.heads["twin"].encode(ids).hidden)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="Bert has no method 'pooled'"):
        _ = pair().bind(drawn(pair())).pooled


def test_a_named_kernel_is_asked_of_steps_alone():
    """Parameters are made of one token, and of a plan where its devices are not."""
    config = EVERY["gpt2"](attention="splash")
    network = Network(config.build())
    assert network.shapes() == Network(EVERY["gpt2"]().build()).shapes()
    params = jax.jit(network.init)(jax.random.key(0))
    with pytest.raises(UserError, match="splash requires a TPU"):
        network.bind(params).decode(jnp.ones((1, 8), int))
