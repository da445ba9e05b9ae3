"""Weights that are gathered, and gradients that are scattered, by hand: the same values, gradients and products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import MeshConfig
from jaxpt.models import split
from jaxpt.models.network import Network
from jaxpt.objectives import losses
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import rules, staged
from jaxpt.train import flops
from tests import grids
from tests.models.helpers import EVERY, drawn, tokens

MESHES = {
    "fsdp": {"data": 1, "fsdp": 8},
    "data and fsdp": {"data": 2, "fsdp": 4},
    "fsdp and tensor": {"data": 1, "fsdp": 4, "tensor": 2},
}
FIRST = ("llama", "t5", "bert")
CASES = [(name, mesh) for name in FIRST for mesh in MESHES]
CASES += [(name, "fsdp and tensor") for name in sorted(EVERY) if name not in FIRST]
SLOW = [
    ("llama", "fsdp"), ("bert", "data and fsdp"),
    *((name, "fsdp and tensor") for name in ("t5", "deberta", "xlnet")),
]  # fmt: skip
"""Each mesh once, and products of all kinds: rotated, tied to embeddings, with biases, beside those of `Dense`."""


@pytest.fixture(autouse=True)
def two_stages(monkeypatch):
    """As on a TPU slice, for whatever fsdp is split over."""
    monkeypatch.setattr(staged, "stages", lambda axes: 2 if axes == ("fsdp",) else 1)


def use(sizes):
    return meshes.use(meshes.make(MeshConfig(**sizes), jax.devices()[:8]))


def loss(name, remat="none"):
    model = EVERY[name](remat=remat, embed_dim=24, heads=4, mlp_dim=48).build()
    ids, family = tokens(8, 12), model.config.family

    def total(params):
        bound = Network(model).bind({"model": params}, {})
        if family == "encoder_decoder":
            hidden = bound.decode(ids, bound.encode(ids).hidden).hidden
        else:
            hidden = (bound.decode if family == "decoder" else bound.encode)(ids).hidden
        projection = bound.output_projection() if hasattr(model, "output_projection") else None
        if projection is None or projection.kernel.shape[1 if projection.tied else 0] != hidden.shape[-1]:
            return jnp.sin(hidden).sum()  # a head would transform the states before a narrower table
        return losses.token_loss(hidden, projection, ids, jnp.ones(ids.shape))[0]

    return total, drawn(model)


@functools.cache
def of_one_device(name):
    total, params = loss(name)
    return jax.jit(jax.value_and_grad(total))(params)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *grids.cases([case for case in CASES if case not in SLOW]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_gradients_are_those_of_one_device(name, mesh):
    (total, params), want = loss(name), of_one_device(name)
    with use(MESHES[mesh]):
        got = jax.jit(jax.value_and_grad(total))(params)
    largest = [float(jnp.abs(x).max()) for x in jax.tree.leaves(want)]
    for (path, a), b, own in zip(jax.tree.leaves_with_path(want), jax.tree.leaves(got), largest, strict=True):
        scale = max(own, max(largest[1:]) / 100)  # a key's bias has no gradient but rounding errors
        np.testing.assert_allclose(b / scale, a / scale, atol=2e-5, err_msg=jax.tree_util.keystr(path))


def test_the_backward_pass_computes_again_what_it_does_of_plain_products(monkeypatch):
    """A product inside of another function would be computed again, whatever `model.remat` keeps."""

    def work(remat):
        total, params = loss("llama", remat)
        with use(MESHES["fsdp"]):
            return flops.matmul_flops(jax.grad(total), params)

    by_hand = [work(remat) for remat in ("dots", "names", "full")]
    monkeypatch.setattr(staged, "stages", lambda axes: 1)
    assert by_hand == [work(remat) for remat in ("dots", "names", "full")]


def test_a_weight_that_is_not_split_is_left_to_the_compiler():
    from jaxpt.models import layers

    x = jnp.zeros((8, 4, 16))
    with use({"data": 1, "fsdp": 8}):
        assert layers.split_of(("embed", "mlp"), x) == split.Split(("fsdp",), ("fsdp",), 0)
        assert layers.split_of(("mlp", "embed"), x) == split.Split(("fsdp",), ("fsdp",), 1)
        assert layers.split_of(("mlp", "heads"), x) is None
        assert layers.split_of(("embed", "mlp"), x[:3]) is None, "three rows on eight devices"
    with use({"data": 1, "fsdp": 4, "context": 2}):
        assert layers.split_of(("embed", "mlp"), x) is None
    with use({"data": 1, "fsdp": 4, "tensor": 2}):
        assert layers.split_of(("mlp", "embed"), x) == split.Split(("fsdp",), ("fsdp",), 1, ("tensor",))
        assert layers.split_of(("vocab", "embed"), x) is None, "each device has some rows of the table"
    mesh = meshes.make(MeshConfig(data=2, fsdp=4), jax.devices()[:8])
    with meshes.use(mesh, {**rules.DEFAULT, "embed": ("fsdp",), "mlp": ("data",)}):
        assert layers.split_of(("embed", "mlp"), x) is None, "a mesh axis for rows and for the other dimension"
        assert layers.split_of(("embed", "heads"), x) == split.Split(("data", "fsdp"), ("fsdp",), 0)
    assert layers.split_of(("embed", "mlp"), x) is None, "no mesh"
