import jax
import pytest

from jaxpt.config import MeshConfig
from jaxpt.errors import UserError
from jaxpt.parallel import mesh as meshes


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({}, (8, 1, 1)),
        ({"tensor": 2}, (4, 1, 2)),
        ({"data": 2, "fsdp": -1}, (2, 4, 1)),
        ({"data": 2, "fsdp": 2, "tensor": 2}, (2, 2, 2)),
    ],
)
def test_sizes(sizes, shape):
    assert tuple(meshes.make(MeshConfig(**sizes), jax.devices()[:8]).shape.values()) == shape


@pytest.mark.parametrize("sizes", [{"tensor": 3}, {"data": 2}, {"data": 16}, {"data": 2, "fsdp": 2, "tensor": 4}])
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes):
    with pytest.raises(UserError, match=r"mesh\.data="):
        meshes.make(MeshConfig(**sizes), jax.devices()[:8])


def test_constraints_take_effect_inside_use():
    import flax.linen as nn
    import jax.numpy as jnp

    mesh = meshes.make(MeshConfig(data=4, tensor=2), jax.devices()[:8])
    with meshes.use(mesh):
        x = jax.jit(lambda x: nn.with_logical_constraint(x, ("batch", "act_mlp")))(jnp.zeros((8, 4)))
    assert x.sharding.shard_shape(x.shape) == (2, 2)
