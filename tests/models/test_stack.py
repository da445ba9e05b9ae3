"""Scanned stacks: equal to their layers one after the other, whatever is rematerialised."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models.base import unstack
from jaxpt.models.mask import Mask
from jaxpt.models.stack import Segment, Shared, Stack, layer_inputs


class Block(nn.Module):
    """Adds a projection of its input, and its own input if it has one; gives back the mean."""

    slope: float

    @nn.compact
    def __call__(self, x, inputs, shared):
        kernel = self.param(
            "kernel", nn.with_logical_partitioning(nn.initializers.normal(0.3), ("embed", "norm")), (4, 4)
        )
        x = x + self.slope * jnp.tanh(x @ kernel)
        x = x if inputs is None else x + inputs
        return x, x.mean()


FAST, SLOW = functools.partial(Block, 1.0), functools.partial(Block, 0.1)
SEGMENTS = (Segment((FAST, FAST, SLOW), 3), Segment((SLOW,), 2))


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (2, 3, 4))


def test_equals_its_layers_in_order(x):
    stack, shared = Stack(SEGMENTS), Shared(Mask())
    boxed = stack.init(jax.random.key(1), x, shared)
    assert boxed["params"]["segment_0"]["block_2"]["kernel"].names == ("layers", "embed", "norm")
    variables = nn.unbox(boxed)
    (y, outputs), sown = stack.apply(variables, x, shared, mutable=["layers"])
    means, inputs = [], []
    for s, segment in enumerate(SEGMENTS):
        for layer in unstack(variables["params"][f"segment_{s}"]):
            for b, make in enumerate(segment.blocks):
                inputs.append(x)
                x, mean = make().apply({"params": layer[f"block_{b}"]}, x, None, shared)
                means.append(mean)
    np.testing.assert_allclose(y, x, atol=1e-6)
    first, second = np.stack(outputs[0], axis=1).ravel(), np.asarray(outputs[1][0])
    np.testing.assert_allclose(np.concatenate([first, second]), means, atol=1e-6)
    np.testing.assert_allclose(layer_inputs(sown["layers"]), inputs, atol=1e-6)


def test_unrolled_layers_are_the_same_layers(x):
    """3 repetitions at 2 a turn leave one over, and 2 at a turn are all of the second segment."""
    variables = nn.unbox(Stack(SEGMENTS).init(jax.random.key(1), x, Shared(Mask())))
    want = Stack(SEGMENTS).apply(variables, x, Shared(Mask()))
    got = Stack(SEGMENTS, unroll=2).apply(variables, x, Shared(Mask()))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), got, want)


def test_layers_start_different(x):
    params = nn.unbox(Stack(SEGMENTS).init(jax.random.key(1), x, Shared(Mask())))["params"]
    first, second, _ = params["segment_0"]["block_0"]["kernel"]
    assert float(jnp.abs(first - second).max()) > 0.1


def test_layers_have_inputs_of_their_own(x):
    stack, shared = Stack((Segment((FAST,), 2),)), Shared(Mask())
    variables = nn.unbox(stack.init(jax.random.key(1), x, shared))
    one, two = unstack(variables["params"]["segment_0"]["block_0"])
    given = jnp.array([10.0, 20.0])
    y, _ = stack.apply(variables, x, shared, (((given),),))
    x, _ = FAST().apply({"params": one}, x, 10.0, shared)
    x, _ = FAST().apply({"params": two}, x, 20.0, shared)
    np.testing.assert_allclose(y, x, atol=1e-6)
