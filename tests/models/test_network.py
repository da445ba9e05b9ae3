"""A backbone with heads: one tree of parameters, parts that two networks share, differences, and random keys."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.models.heads import masked_lm, sentence_pair
from jaxpt.models.network import Head, Network
from tests.models.helpers import EVERY, bert, drawn, tokens

SMALL = bert(layers=1, mlp_dim=16)


def pair(**options):
    """A network whose head `small` is a network too."""
    small = Network(SMALL.build(), masked_lm.declare(SMALL), shared=options.pop("shared", ()))
    return Network(bert(**options.pop("model", {})).build(), {"small": small, **masked_lm.declare(bert())}, **options)


def test_the_tree_has_the_model_and_each_head():
    network = Network(SMALL.build(), sentence_pair.declare(SMALL))

    def some(params):  # what is not returned is not compiled
        layer = params["encoder"]["segment_0"]["block_0"]
        return params["token_embed"], params["embed_norm"], layer["attention"]["query"], layer["feed_forward"]["down"]

    both = jax.jit(lambda key: (some(network.init(key)["model"]), some(Network(SMALL.build()).init(key)["model"])))
    jax.tree.map(np.testing.assert_array_equal, *both(jax.random.key(0)))
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert set(params) == {"model", "heads"} and set(params["heads"]) == {"pooler", "sentence_pair"}
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), network.shapes()
    )
    assert params["model"] == Network(SMALL.build()).shapes()["model"]
    assert set(Network(SMALL.build()).shapes()) == {"model"}
    assert network.count_params() == Network(SMALL.build()).count_params() + 24 * 24 + 24 + 24 * 2 + 2


def test_it_is_hashable_and_equal_by_its_parts():
    one, two = pair(), pair()
    assert one == two and hash(one) == hash(two) and one.abstract() is two.abstract()
    assert one != Network(bert().build())


def test_no_two_heads_draw_alike():
    """A head's parameters depend on the key and its name alone, and are another's under another name."""
    head = masked_lm.declare(bert())["masked_lm"]
    one, two = Network(SMALL.build(), {"a": head, "b": head}), Network(SMALL.build(), {"b": head})
    drawn = jax.jit(lambda key: (one.init(key)["heads"], two.init(key)["heads"]))
    heads, again = drawn(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, heads["b"], again["b"])
    assert np.abs(heads["a"]["dense"]["kernel"] - heads["b"]["dense"]["kernel"]).max() > 1e-3


@pytest.mark.slow
def test_shared_parts_exist_once_and_get_both_gradients():
    network = pair(shared=("token_embed", "embed_norm"))
    params, ids = drawn(network), tokens(1, 4)
    assert "token_embed" not in params["heads"]["small"]["model"] and "token_embed" in params["model"]

    def loss(params, which):
        bound = network.bind(params)
        bound = bound.heads["small"] if which == "small" else bound
        return jnp.square(bound.logits(bound.encode(ids).hidden)).sum()

    gradients = jax.jit(lambda params: {which: jax.grad(loss)(params, which) for which in ("small", "whole")})(params)
    for which, gradient in gradients.items():
        assert np.abs(gradient["model"]["token_embed"]["table"]).max() > 0
        assert (np.abs(gradient["heads"]["small"]["model"]["position_embed"]["table"]).max() > 0) == (which == "small")


def test_a_difference_starts_at_zero_and_stops_the_gradient():
    tables = ("token_embed", "position_embed", "type_embed")
    network, ids = pair(deltas=dict.fromkeys(tables, "small"), model={"layers": 1}), tokens(1, 4)
    fresh = jax.jit(lambda key: {name: network.init(key)["model"][name] for name in tables})(jax.random.key(0))
    assert not any(np.any(x) for x in jax.tree.leaves(fresh)) and len(jax.tree.leaves(fresh)) == 3
    params = drawn(network)
    small = params["heads"]["small"]["model"]
    summed = {name: jax.tree.map(np.add, params["model"][name], small[name]) for name in tables}

    @jax.jit
    def both(params):
        def total(params):
            hidden = network.bind(params).encode(ids).hidden
            return jnp.square(hidden * jnp.arange(24)).sum(), hidden

        plain = Network(network.model).bind({"model": {**params["model"], **summed}}).encode(ids).hidden
        gradient, hidden = jax.grad(total, has_aux=True)(params)
        return hidden, plain, gradient

    hidden, plain, gradient = both(params)
    np.testing.assert_allclose(hidden, plain, rtol=1e-4, atol=1e-5)
    assert np.abs(gradient["model"]["token_embed"]["table"]).max() > 0
    assert not any(np.any(x) for x in jax.tree.leaves(gradient["heads"]["small"]))


def test_dropout_of_a_head_is_not_the_model_s():
    """The same sizes, parameters and key: the draws differ, since they are folded with the head's name."""
    config = bert(layers=1, dropout=0.5)
    network = Network(config.build(), {"twin": Network(config.build())})
    params, ids = drawn(network), tokens(1, 8)
    params["heads"]["twin"]["model"] = params["model"]

    @jax.jit
    def run(params, key):
        every = network.bind(params, {"dropout": key}), network.bind(params)
        return [(bound.encode(ids).hidden, bound.heads["twin"].encode(ids).hidden) for bound in every]

    noisy, quiet = run(params, jax.random.key(0))
    assert np.abs(noisy[0] - noisy[1]).max() > 0.01
    np.testing.assert_array_equal(*quiet)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="Bert has no method 'pooled'"):
        _ = pair().bind(drawn(pair())).pooled


def test_a_parameter_without_logical_axes_is_named():
    """A head made of Flax's own layers: its parameters could not be sharded."""
    state = jax.ShapeDtypeStruct((1, 24), jnp.float32)
    network = Network(bert(layers=1).build(), {"bag": Head(nn.Dense(3), (state,))})
    for use in (network.shapes, network.logical_axes, lambda: network.init(jax.random.key(0))):
        with pytest.raises(UserError, match=r"parameter heads/bag/bias has no logical axes; make it with jaxpt"):
            use()


def test_a_named_kernel_is_asked_of_steps_alone():
    """Parameters are made of one token, and of a plan where its devices are not."""
    config = EVERY["gpt2"](attention="splash")
    network = Network(config.build())
    assert network.shapes() == Network(EVERY["gpt2"]().build()).shapes()
    assert jax.eval_shape(network.init, jax.random.key(0)) == network.shapes()
    with pytest.raises(UserError, match="splash requires a TPU"):
        network.bind(drawn(network)).decode(jnp.ones((1, 8), int))
