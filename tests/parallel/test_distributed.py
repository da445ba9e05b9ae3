"""Rows of a batch by the devices that hold them. See also tests/train/test_elastic."""

import jax
import numpy as np
import pytest

from jaxpt.config import MeshConfig
from jaxpt.parallel import distributed
from jaxpt.parallel import mesh as meshes


@pytest.mark.parametrize("sizes", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"tensor": 8, "data": 1}])
def test_one_process_makes_all_rows(sizes):
    mesh = meshes.make(MeshConfig(**sizes), jax.devices()[:8])
    assert distributed.rows(mesh, 16).tolist() == list(range(16))
    batch = {"x": np.arange(48).reshape(16, 3), "y": np.arange(16.0)}
    placed = distributed.put(batch, mesh, 16)
    for name, x in batch.items():
        np.testing.assert_array_equal(np.asarray(placed[name]), x)
        assert placed[name].sharding.shard_shape(x.shape)[0] == 16 // (sizes["data"] * sizes.get("fsdp", 1))


@pytest.mark.parametrize("axes", [("data",), ("data", "tensor"), ()])
def test_an_array_comes_to_the_host_whole(axes):
    mesh = meshes.make(MeshConfig(data=4, tensor=2), jax.devices()[:8])
    x = np.arange(48).reshape(16, 3)
    spread = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axes)))
    np.testing.assert_array_equal(distributed.to_host(spread), x)


def test_alone_a_process_agrees_with_itself():
    agreed = distributed.AnyProcess(meshes.make(MeshConfig(), jax.devices()[:8]))
    assert [agreed(wish) for wish in (0, 2, 1, 0)] == [0, 2, 1, 0]
