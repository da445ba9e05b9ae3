"""Layers in stages: what they compute, own inputs and outputs among it, and what goes from stage to stage."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import MeshConfig
from jaxpt.models.layers import Dropout
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output, Past
from jaxpt.models.stack import Segment, Shared, Stack
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import rules
from jaxpt.plan import collectives, hlo
from tests import grids

LAYERS, MICROBATCHES, ROWS, LENGTH, WIDTH = 4, 6, 2, 3, 8


class Block(nn.Module):
    """Uses all that a layer is given: its input, memory of the row, a bias for all rows, dropout; gives back a mean."""

    @nn.compact
    def __call__(self, x, past, shared):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.3), ("embed", "norm"))
        y = jnp.tanh(x @ self.param("kernel", init, (WIDTH, WIDTH)) + shared.bias_HxLxS[0, 0, 0])
        y = Dropout(0.2)(y) + shared.memory_BxSxD.mean(1, keepdims=True)
        return Output(x + y + past.memory, memory=y.mean((1, 2)), aux={"square": jnp.square(y).mean()})


STACK = Stack((Segment((Block,), LAYERS),), remat="full")


@functools.cache
def given():
    """Parameters, x, memory, bias, the layers' inputs and random keys; first axis: microbatches."""
    rng = np.random.default_rng(0)
    x, memory = (rng.standard_normal((MICROBATCHES, ROWS, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
    inputs = rng.standard_normal((MICROBATCHES, LAYERS, ROWS, 1, 1)).astype(np.float32)
    bias = np.full((1, 1, 1), 0.1, np.float32)
    kernel = 0.3 * rng.standard_normal((LAYERS, WIDTH, WIDTH)).astype(np.float32)
    params = {"segment_0": {"block_0": {"kernel": kernel}}}
    return params, x, memory, bias, inputs, jax.random.split(jax.random.key(1), MICROBATCHES)


def through(params, x, memory, bias, inputs, keys):
    """Of all microbatches: what the last layer gives, memories and states of all layers, and the sum of their own."""

    def one(x, memory, inputs, key):
        shared, past = Shared(Mask(), bias, memory), Past(memory=((inputs,),))
        output = STACK.apply({"params": params}, x, shared, past, rngs={"dropout": key}, layers=True)
        return output.hidden, output.memory[0][0], output.layers, output.aux["square"]

    return jax.vmap(one)(x, memory, inputs, keys)


def total(*arguments):
    y, memories, _, squares = found = through(*arguments)
    return jnp.square(y).sum() + jnp.sin(memories).sum() + squares.sum(), found


BOTH = jax.value_and_grad(total, (0, 1, 2, 3, 4), has_aux=True)
"""((the sum, all that goes through), the gradients)."""


@functools.cache
def on(stages, fsdp):
    """The program of `BOTH` for a mesh with stages, and what it gives with the parameters in their place."""
    mesh = meshes.make(MeshConfig(data=1, pipeline=stages, fsdp=fsdp), jax.devices()[: stages * fsdp])
    place = rules.shardings({"kernel": ("layers", "embed", "norm")}, given()[0]["segment_0"]["block_0"], mesh)
    params = {"segment_0": {"block_0": jax.device_put(given()[0]["segment_0"]["block_0"], place)}}
    with meshes.use(mesh):
        compiled = jax.jit(BOTH).lower(params, *given()[1:]).compile()
        return compiled, compiled(params, *given()[1:])


@pytest.mark.slow
@pytest.mark.parametrize("stages", grids.cases([2, 4], 4))
def test_equals_one_stage(stages):
    """Every microbatch, dropout's draws among it, and each layer's own memory, states and sum."""
    ((_, one), _), ((_, several), _) = on(1, 1)[1], on(stages, 1)[1]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), several, one)
    assert not np.allclose(one[0][0], one[0][1], atol=0.1)


@pytest.mark.parametrize(("stages", "fsdp"), grids.cases([(2, 2), (4, 1), (4, 2)], (2, 2), (4, 1)))
def test_gradients_equal_those_of_one_stage(stages, fsdp):
    """Of parameters, what goes in, memories, and of the bias that all microbatches share."""
    (_, one), (_, several) = on(1, 1)[1], on(stages, fsdp)[1]
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(several), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max())


def test_each_stage_has_its_layers_and_hands_on_activations_alone():
    """In the loops nothing goes between devices but the activations of one microbatch, to the next stage or back."""
    compiled, (_, gradients) = on(4, 1)
    assert gradients[0]["segment_0"]["block_0"]["kernel"].addressable_shards[0].data.shape == (1, WIDTH, WIDTH)
    sent = [
        (instruction.opcode, instruction.shape.partition("{")[0], times)
        for _, instruction, times in hlo.Program(compiled.as_text()).runs()
        if instruction.opcode in collectives.KINDS
    ]
    turns = MICROBATCHES + 4 - 1
    assert {one for one in sent if one[2] > 1} == {("collective-permute", f"f32[1,{ROWS},{LENGTH},{WIDTH}]", turns)}


def test_several_models_are_refused():
    params, *rest = given()
    twice = jax.tree.map(lambda x: np.stack([x] * MICROBATCHES), params)
    mesh = meshes.make(MeshConfig(data=1, pipeline=2), jax.devices()[:2])
    with meshes.use(mesh), pytest.raises(NotImplementedError, match="microbatches of one model"):
        shared, past = Shared(Mask(), rest[2], rest[1][0]), Past(memory=((rest[3][0],),))
        jax.vmap(lambda p, x: STACK.apply({"params": p}, x, shared, past))(twice, rest[0])
