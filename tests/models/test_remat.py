"""`model.remat` in every architecture: what is kept for the backward pass, what is computed again, equal gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.network import Network
from jaxpt.models.output import Output
from jaxpt.train import flops
from tests import grids
from tests.models.helpers import EVERY, OF_THEIR_OWN, SHORTER, drawn, tokens

FAST = ("bert", "deberta", "xlnet")
DIFFERENT = ("deberta", "xlnet", "albert", "llama", "modernbert")
"""With those of test_base.py all kinds of layers and of stacks."""
CASES = [
    *FAST,
    *(pytest.param(name, marks=pytest.mark.slow) for name in OF_THEIR_OWN if name not in (*FAST, "deberta_v2")),
    *(pytest.param(name, marks=pytest.mark.grid) for name in EVERY if name not in (*FAST, *OF_THEIR_OWN)),
    pytest.param("deberta_v2", marks=pytest.mark.grid),
]


def loss(name, remat):
    """A function of parameters, with dropout, and the parameters."""
    model = EVERY[name](remat=remat, dropout=0.1, **SHORTER.get(name, {})).build()
    ids, family = tokens(4, 16), model.config.family

    def states(bound):
        if name == "xlnet":  # with its query stream
            order = jnp.broadcast_to(jnp.arange(16), ids.shape)
            return bound.streams(ids, token_types=order % 2, ranks=order, targets=order[:, :5])
        if family == "encoder_decoder":
            return bound.decode(ids, bound.encode(ids).hidden)
        return (bound.decode if family == "decoder" else bound.encode)(ids)

    def total(params):
        output: Output = states(Network(model).bind({"model": params}, {"dropout": jax.random.key(3)}))
        return sum(jnp.sin(x).sum() for x in jax.tree.leaves(output.hidden))

    return total, drawn(model)


def kept_and_work(function, params):
    """(bytes that the forward pass keeps for the backward pass, FLOPs of products of both): of one tracing."""

    def both(params):
        y, back = jax.vjp(function, params)
        return back(jnp.ones_like(y)), jax.tree.leaves(back)

    jaxpr, (_, kept) = jax.make_jaxpr(both, return_shape=True)(params)
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in kept), flops.count(jaxpr.jaxpr)


@pytest.mark.parametrize("name", CASES)
def test_named_activations_are_kept_and_the_rest_is_computed_again(name):
    found = {remat: kept_and_work(*loss(name, remat)) for remat in ("none", "names", "full")}
    kept, work = ({remat: pair[i] for remat, pair in found.items()} for i in (0, 1))
    assert kept["full"] < kept["names"] < kept["none"], kept
    assert work["none"] < work["names"] < work["full"], work


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(DIFFERENT, "deberta", "albert"))
def test_gradients_are_the_same(name):
    (plain, params), (named, _) = loss(name, "none"), loss(name, "names")
    want, got = jax.jit(lambda params: [jax.grad(f)(params) for f in (plain, named)])(params)
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(want))  # a key's bias has no gradient but rounding's
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(["bert", "deberta"], "bert"))
def test_a_compiled_program_is_between_none_and_full(name):
    compiled = {}
    for remat in ("none", "names", "full"):
        function, params = loss(name, remat)
        compiled[remat] = jax.jit(jax.grad(function)).lower(params).compile()
    memory = {remat: program.memory_analysis().temp_size_in_bytes for remat, program in compiled.items()}
    work = {remat: program.cost_analysis()["flops"] for remat, program in compiled.items()}
    assert memory["full"] < memory["names"] < memory["none"], memory
    assert work["none"] < work["names"] < work["full"], work
