import dataclasses
import itertools

import jax
import pytest

from jaxpt.config import MeshConfig
from jaxpt.errors import UserError
from jaxpt.parallel import mesh as meshes


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({}, (8, 1, 1, 1, 1, 1)),
        ({"tensor": 2}, (4, 1, 1, 1, 1, 2)),
        ({"data": 2, "fsdp": -1}, (2, 1, 4, 1, 1, 1)),
        ({"data": 2, "fsdp": 2, "context": 2}, (2, 1, 2, 1, 2, 1)),
        ({"pipeline": 4}, (2, 4, 1, 1, 1, 1)),
        ({"expert": 4}, (2, 1, 1, 4, 1, 1)),
    ],
)
def test_sizes(sizes, shape):
    assert tuple(meshes.make(MeshConfig(**sizes), jax.devices()[:8]).shape.values()) == shape


@pytest.mark.parametrize("sizes", [{"tensor": 3}, {"data": 2}, {"data": 16}, {"data": 2, "fsdp": 2, "tensor": 4}])
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes):
    with pytest.raises(UserError, match=r"mesh\.data="):
        meshes.make(MeshConfig(**sizes), jax.devices()[:8])


def test_the_mesh_of_fewer_processes_has_a_shorter_data_axis():
    assert meshes.fewer(MeshConfig(data=8, tensor=2), 4, 2) == MeshConfig(data=4, tensor=2)
    for free in (MeshConfig(), MeshConfig(data=2, fsdp=-1)):
        assert meshes.fewer(free, 4, 1) == free
    with pytest.raises(UserError, match=r"^mesh\.data=2: cannot shrink from 4 processes to 1; 2 of them could$"):
        meshes.fewer(MeshConfig(data=2, fsdp=4), 4, 1)


@dataclasses.dataclass(frozen=True)
class Chip:
    """What `make` looks at in a device of one of several slices."""

    id: int
    slice_index: int
    process_index: int = 0
    platform: str = "chip"
    device_kind: str = "chip"
    core_on_chip: int = 0

    @property
    def coords(self) -> tuple[int, int, int]:
        """In a slice of 16 × 16."""
        return self.id % 16, self.id % 256 // 16, 0


def test_data_goes_from_slice_to_slice():
    chips = [Chip(n, n // 8) for n in range(16)]
    mesh = meshes.make(MeshConfig(data=-1, fsdp=2, tensor=2), chips)
    assert dict(mesh.shape) == {"data": 4, "pipeline": 1, "fsdp": 2, "expert": 1, "context": 1, "tensor": 2}
    for half in (0, 1):
        assert {chip.slice_index for chip in mesh.devices[2 * half : 2 * half + 2].ravel()} == {half}
    with pytest.raises(UserError, match=r"mesh\.data=1, mesh\.pipeline=1: .* multiple of the 2 slices"):
        meshes.make(MeshConfig(data=1, fsdp=16), chips)


@pytest.mark.parametrize("data", [1, 2])
def test_of_fsdp_over_many_tpus_every_second_one_is_a_neighbour(data):
    """On each slice the even places are one half of the chips, the odd ones the other."""
    devices = [Chip(n, n // 256, platform="tpu") for n in range(data * 256)]
    mesh = meshes.make(MeshConfig(data=data, fsdp=256), devices)
    for row in mesh.devices.reshape(data, 256):
        for half in (row[::2], row[1::2]):
            x, y = ({chip.coords[axis] for chip in half} for axis in (0, 1))
            assert len(x) * len(y) == 128 and max(x) - min(x) < len(x) and max(y) - min(y) < len(y)
    others = meshes.make(MeshConfig(data=data, fsdp=256), [dataclasses.replace(d, platform="gpu") for d in devices])
    assert [chip.id for chip in others.devices.ravel()] == list(range(data * 256))


@pytest.mark.parametrize(("data", "stages"), [(1, 4), (2, 2), (2, 4)])
def test_stages_go_from_slice_to_slice_where_data_leaves_slices_over(data, stages):
    chips = [Chip(n, n // 8) for n in range(32)]
    mesh = meshes.make(MeshConfig(data=data, pipeline=stages, fsdp=-1), chips)
    slices = {(d, s): {c.slice_index for c in mesh.devices[d, s].ravel()} for d in range(data) for s in range(stages)}
    assert all(len(found) == 1 for found in slices.values()) and set().union(*slices.values()) == {0, 1, 2, 3}
    for d in range(data):  # stages of one copy that lie in one slice are neighbours
        order = [min(slices[d, s]) for s in range(stages)]
        assert sum(a != b for a, b in itertools.pairwise(order)) == max(4 // data, 1) - 1


@dataclasses.dataclass(frozen=True)
class TorusChip(Chip):
    """What `make` looks at in a chip of a TPU's torus."""

    platform: str = "tpu"
    device_kind: str = "TPU v5"
    coords: tuple[int, ...] = ()
    core_on_chip: int = 0


@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"fsdp": 32, "tensor": 2}, {"data": 4, "fsdp": 8, "tensor": 2}])
def test_an_axis_may_take_a_part_of_a_torus(sizes):
    chips = [TorusChip(n, 0, coords=(n % 4, n // 4 % 4, n // 16)) for n in range(64)]
    mesh = meshes.make(MeshConfig(**sizes), chips)
    assert mesh.size == 64 and {chip.id for chip in mesh.devices.flat} == set(range(64))


def test_constraints_take_effect_inside_use():
    import flax.linen as nn
    import jax.numpy as jnp

    mesh = meshes.make(MeshConfig(data=4, tensor=2), jax.devices()[:8])
    with meshes.use(mesh):
        x = jax.jit(lambda x: nn.with_logical_constraint(x, ("batch", "act_mlp")))(jnp.zeros((8, 4)))
    assert x.sharding.shard_shape(x.shape) == (2, 2)


def test_any_axis_may_go_between_machines_with_gpus():
    gpus = [Chip(n, n // 8, n // 8, "gpu") for n in range(16)]
    mesh = meshes.make(MeshConfig(data=1, fsdp=-1), gpus)
    assert mesh.shape["fsdp"] == 16 and [gpu.id for gpu in mesh.devices.flat] == list(range(16))
    assert meshes.machine(mesh.devices.flat) == 8 and meshes.machine(jax.devices()) is None
