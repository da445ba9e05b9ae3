"""`model.remat` in every architecture: what is kept for the backward pass, what is computed again, equal gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import base
from jaxpt.models.output import Output
from jaxpt.train import flops
from tests.models.helpers import EVERY, drawn, tokens

FAST = ("bert", "deberta", "xlnet")
DIFFERENT = ("deberta", "xlnet", "albert", "llama", "modernbert")
"""With those of test_base.py all kinds of layers and of stacks."""
CASES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in EVERY]


def loss(name, remat):
    """A function of parameters, with dropout, and the parameters."""
    model = EVERY[name](remat=remat, dropout=0.1).build()
    ids, family = tokens(4, 16), model.config.family

    def states(bound):
        if name == "xlnet":  # with its query stream
            order = jnp.broadcast_to(jnp.arange(16), ids.shape)
            return bound.streams(ids, token_types=order % 2, ranks=order, targets=order[:, :5])
        if family == "encoder_decoder":
            return bound.decode(ids, bound.encode(ids).hidden)
        return (bound.decode if family == "decoder" else bound.encode)(ids)

    def total(params):
        output: Output = states(base.bind(model, params, {"dropout": jax.random.key(3)}))
        return sum(jnp.sin(x).sum() for x in jax.tree.leaves(output.hidden))

    return total, drawn(model)


def residual_bytes(function, params):
    """What the forward pass keeps for the backward pass."""
    kept = jax.eval_shape(lambda params: jax.vjp(function, params)[1], params)
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(kept))


@pytest.mark.parametrize("name", CASES)
def test_named_activations_are_kept_and_the_rest_is_computed_again(name):
    losses = {remat: loss(name, remat) for remat in ("none", "names", "full")}
    kept = {remat: residual_bytes(*one) for remat, one in losses.items()}
    work = {remat: flops.matmul_flops(jax.grad(f), params) for remat, (f, params) in losses.items()}
    assert kept["full"] < kept["names"] < kept["none"], kept
    assert work["none"] < work["names"] < work["full"], work


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_gradients_are_the_same(name):
    (plain, params), (named, _) = loss(name, "none"), loss(name, "names")
    want, got = (jax.jit(jax.grad(f))(params) for f in (plain, named))
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(want))  # a key's bias has no gradient but rounding's
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "deberta"])
def test_a_compiled_program_is_between_none_and_full(name):
    compiled = {}
    for remat in ("none", "names", "full"):
        function, params = loss(name, remat)
        compiled[remat] = jax.jit(jax.grad(function)).lower(params).compile()
    memory = {remat: program.memory_analysis().temp_size_in_bytes for remat, program in compiled.items()}
    work = {remat: program.cost_analysis()["flops"] for remat, program in compiled.items()}
    assert memory["full"] < memory["names"] < memory["none"], memory
    assert work["none"] < work["names"] < work["full"], work
