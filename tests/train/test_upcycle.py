"""A mixture that begins as a dense model computes what that does, though its layers are stored otherwise."""

import jax
import numpy as np
import pytest

from jaxpt import hf
from jaxpt.config import InitConfig
from jaxpt.errors import UserError
from jaxpt.train import initial, state, upcycle
from tests import families
from tests.models.helpers import drawn

DENSE = {"experts": None, "experts_per_token": 1, "expert_dim": None, "sparse_every": 1, "shared_experts": 0}
DENSE |= {"router_z_weight": 0.0, "balance_weight": 0.01, "layers": 3}
MIXTURE = {"experts": 4, "expert_dim": None, "shared_experts": 0, "router_normalized": True, "layers": 3}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense")
    config = families.config("mixture", model=DENSE)
    network = families.network(config)
    params = drawn(network)
    hf.save(path, network, params)
    return path, config, network, params


@pytest.mark.slow
def test_the_loss_at_the_start_is_that_of_the_dense_model(dense):
    path, config, network, params = dense
    mixture = families.config("mixture", model=MIXTURE)
    said = []
    source = InitConfig(path=str(path), upcycle=True)
    begun = initial.start(state.setup(mixture, jax.devices()[:1]), source, said.append)
    assert any("new: " in line and "router/kernel" in line for line in said)
    batch = families.batch(config)
    batch["decoder_loss_weights"] *= batch["decoder_segment_ids"] > 0  # experts leave padding as it is
    losses = [
        jax.jit(lambda params, n=n: config.objective.loss(n.bind(params), batch)[0]["causal_lm"])(p)
        for n, p in ((network, params), (families.network(mixture), begun.params))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    (up,) = [x for name, x in jax.tree_util.tree_leaves_with_path(begun.params) if x.ndim == 4 and name[-2].key == "up"]
    assert up.shape[:2] == (1, 4)  # layer 1 of 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"router_normalized": False}, "must sum to 1"),
        ({"expert_dim": 16}, "set model.expert_dim=64"),
        ({"shared_experts": 1}, "model.shared_experts=0"),
        ({"layers": 2}, "has layers 3, the mixture 2, .* set model.layers=3"),
        ({"layers": 4}, "has layers 3, the mixture 4, .* set model.layers=3"),
    ],
)
def test_a_mixture_that_cannot_begin_as_it_is_refused(dense, options, words):
    setup = state.setup(families.config("mixture", model=MIXTURE | options), jax.devices()[:1])
    with pytest.raises(UserError, match=words):
        initial.start(setup, InitConfig(path=str(dense[0]), upcycle=True), print)


def test_decoders_of_other_depths_are_refused():
    dense, mixture = (
        families.config("t5", model={"layers": 2, "decoder_layers": layers, **options})
        for layers, options in ((3, {}), (4, {"experts": 4, "router_normalized": True}))
    )
    with pytest.raises(UserError, match=r"has decoder_layers 3, the mixture 4, .* set model\.decoder_layers=3"):
        upcycle.check("dense", families.network(dense), mixture.model)


def test_a_dense_model_of_other_layers_is_refused():
    mixture = families.config("mixture", model=MIXTURE)
    with pytest.raises(UserError, match="dense is a gpt2 whose layers are none of a "):
        upcycle.check("dense", families.network(families.config("gpt2")), mixture.model)
