"""A segment in parts is the same model: same outputs, same random draws, and joined again it is the same tree."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from jaxpt.models import parts
from jaxpt.models.network import Network
from tests import families, grids
from tests.models.helpers import drawn

PARTS = {
    "encoder/segment_0": (parts.Part("layers_0-0", 0, 1), parts.Part("layers_1-2", 1, 3)),
    "decoder/segment_0": (parts.Part("layers_0-1", 0, 2), parts.Part("layers_2-2", 2, 3)),
}


def test_doctests():
    assert doctest.testmod(parts).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", grids.cases(["gpt2", "t5", "bert"], "t5"))
def test_the_same_function_in_parts(family):
    config = families.config(family, model={"layers": 3, "dropout": 0.3}).model
    model = config.build()
    params = drawn(model)
    split = parts.split(params, PARTS)
    tokens = jnp.arange(16).reshape(2, 8)

    def run(params):
        bound = Network(model).bind({"model": params}, {"dropout": jax.random.key(1)})
        if family == "t5":
            return bound.decode(tokens, bound.encode(tokens).hidden)
        return (bound.encode if family == "bert" else bound.decode)(tokens, layers=True)

    jax.tree.map(np.testing.assert_array_equal, *jax.jit(lambda *trees: [run(tree) for tree in trees])(params, split))


def test_joined_it_is_the_same_tree():
    model = families.config("t5", model={"layers": 12}).model.build()
    cuts = {"encoder/segment_0": (parts.Part("layers_0-8", 0, 9), parts.Part("layers_9-10", 9, 11),
                                  parts.Part("layers_11-11", 11, 12))}  # fmt: skip
    params = jax.tree.map(lambda x: np.random.default_rng(0).normal(size=x.shape), Network(model).shapes()["model"])
    split = traverse_util.flatten_dict(parts.split(params, cuts), sep="/")
    assert split["encoder/segment_0/layers_9-10/block_0/attention/query/kernel"].shape[0] == 2
    joined = traverse_util.unflatten_dict(parts.join(split, np.concatenate), sep="/")
    jax.tree.map(np.testing.assert_array_equal, joined, params)
    assert parts.split(params, {}) is params
