"""What a model's blocks add to the loss: summed over layers, divided by the tokens, whatever the microbatches."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.gpt2 import GPT2, INIT, Block
from jaxpt.models.layers import Dropout, Embed, LayerNorm
from jaxpt.models.network import Network
from jaxpt.models.positions import LearnedPositions
from jaxpt.models.stack import Segment, Stack
from jaxpt.train import state, step
from jaxpt.train.step import num_tokens
from tests import families
from tests.models.helpers import drawn


class Penalised(Block):
    """GPT-2's, with a penalty of what it sees."""

    @nn.compact
    def __call__(self, x, past, shared):
        return super().__call__(x, past, shared).add_aux({"penalty": 0.1 * jnp.square(x).mean(-1).sum()})


class Model(GPT2):
    def setup(self):
        c = self.config
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, jnp.float32)
        self.position_embed = LearnedPositions(c.max_positions, c.embed_dim, INIT, jnp.float32)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack((Segment((functools.partial(Penalised, c),), c.layers),), c.remat, c.unroll)
        self.final_norm = LayerNorm(c.epsilon, jnp.float32)


@pytest.fixture(scope="module")
def case():
    config = families.config("gpt2", model={"layers": 3})
    network = Network(Model(config.model))
    return config, network, drawn(network), families.batch(config)


@pytest.mark.slow
def test_a_penalty_counts_as_it_is(case):
    config, network, params, batch = case
    gradients = functools.partial(step.gradients, config.objective, network)
    one, several = (jax.jit(functools.partial(gradients, accumulation=n))(params, batch, None) for n in (1, 4))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(several), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    def by_hand(params):
        output = network.bind(params).decode(batch["decoder_input_tokens"], layers=True,
                  segment_ids=batch["decoder_segment_ids"], positions=batch["decoder_positions"])  # fmt: skip
        penalty = 0.1 * jnp.square(output.layers[:-1]).mean(-1).sum() / (batch["decoder_segment_ids"] > 0).sum()
        sums, _ = config.objective.loss(network.bind(params), batch)
        return sums["causal_lm"] / batch["decoder_loss_weights"].sum() + penalty, penalty

    (loss, penalty), wanted = jax.jit(jax.value_and_grad(by_hand, has_aux=True))(params)
    grads, metrics, _ = one
    assert penalty > 1e-3 and num_tokens(batch) == (batch["decoder_segment_ids"] > 0).sum()
    np.testing.assert_allclose([metrics["loss"], metrics["penalty"]], [loss, penalty], rtol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), grads, wanted)


def test_an_evaluation_tells_it_beside_the_objective_s_loss(case):
    config, network, params, batch = case
    setup = dataclasses.replace(state.setup(config), network=network)
    with setup.use():
        found, _ = step.make_eval_step(setup, config.objective)(params, step.put(batch, setup), None)
    total, weight = found["penalty"]
    assert total > 0 and weight == num_tokens(batch)
