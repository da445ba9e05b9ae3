"""Figures of routers: by layer and expert, and a warning of experts that get no token."""

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt.train import routers, state, step
from tests import families
from tests.models.helpers import drawn


def model(**options):
    return families.config("mixture", model={"layers": 4, **options}).model


def means():
    share = np.full((2, 8), 1 / 8)
    share[1] = [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    return {"loss": 1.0, "router/share": share, "router/dropped": np.zeros(2), "router/entropy": np.array([2.0, 1.0])}


def test_layers_and_experts_have_their_numbers():
    """Layers 1 and 3 of 4 are sparse."""
    found = routers.by_layer(model(), means())
    assert found["loss"] == 1.0 and found["router/imbalance/1"] == 1 and found["router/imbalance/3"] == 4
    assert found["router/share/3/1"] == 0.5 and found["router/entropy/3"] == 1.0 and len(found) == 1 + 6 + 16


def test_shares_of_many_experts_are_left_out(monkeypatch):
    monkeypatch.setattr(routers, "MOST_SHARES", 15)
    assert not any("share" in name for name in routers.by_layer(model(), means()))


def test_experts_that_die_are_told_of_once():
    watch = routers.Watch()
    assert watch.news(model(), means(), steps=1) is None
    assert "no token of 20 steps went to layer 3: 6 of 8 experts" in watch.news(model(), means(), steps=20)
    assert watch.news(model(), means(), steps=20) is None


@pytest.mark.slow
def test_a_step_has_them_and_microbatches_change_none():
    config = families.config("mixture", model={"experts_per_token": 2, "capacity": 3})
    network, batch = families.network(config), families.batch(config)
    params = drawn(network)
    found = [
        jax.jit(lambda params, n=n: step.gradients(config.objective, network, params, batch, None, n)[1])(params)
        for n in (1, 2)
    ]
    np.testing.assert_allclose(found[0]["router/share"].sum(-1), 1, rtol=1e-5)
    assert 0 < found[0]["router/dropped"][0] < 1 and 0 < found[0]["router/entropy"][0] <= np.log(8)
    for name in ("router/share", "router/dropped", "router/entropy"):
        np.testing.assert_allclose(*(metrics[name] for metrics in found), rtol=1e-5)


@pytest.mark.slow
def test_a_bias_of_the_router_moves_against_the_load():
    """By the same amount whatever the optimizer; it changes the choice, not the weights."""
    config = families.config("mixture", model={"router_bias": True}, optimizer={"router_bias_rate": 0.01})
    setup = state.setup(config, jax.devices()[:1])
    begun, batch = families.begin(setup), families.batch(config)
    before = jax.device_get(begun.params)
    with setup.use():
        after, figures = step.make_train_step(setup, config.objective)(begun, step.put(batch, setup))
    assert figures["router_load"] == 0
    path = "model/decoder/segment_1/block_0/feed_forward/router_bias/bias"
    old, new = (traverse_util.flatten_dict(tree, sep="/")[path][0] for tree in (before, jax.device_get(after.params)))
    share = np.asarray(figures["router/share"][0])
    np.testing.assert_allclose(new - old, -0.01 * np.sign(share - 1 / 8), atol=1e-6)
    assert len(np.unique(np.sign(share - 1 / 8))) > 1
