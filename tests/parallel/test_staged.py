"""Gathers and scatters in two stages are those in one, and the order of devices that makes them cheap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxpt.parallel import staged


@pytest.mark.parametrize("of_slice", [8, 16, 24, 64, 256, 1024, 2048])
def test_neighbours_are_as_many_as_the_compiler_takes(of_slice):
    for devices in (2**n for n in range(12)):
        if devices > of_slice:
            continue
        count = staged.far(devices, of_slice)
        assert devices % count == 0 and devices // count <= staged.LARGEST
        assert (count == 1) == ((devices < of_slice and devices <= staged.LARGEST) or devices < staged.SMALLEST)
    assert staged.far(17, 17) == 1, "nothing divides them"


@pytest.mark.parametrize("count", [2, 4, 8])
def test_each_device_is_in_one_group_of_each_stage(count):
    for groups in staged.groups(32, count):
        assert sorted(place for group in groups for place in group) == list(range(32))
    far_apart, neighbours = staged.groups(32, count)
    assert {len(group) for group in far_apart} == {count} and {len(group) for group in neighbours} == {32 // count}
    assert all(len(set(one) & set(other)) == 1 for one in far_apart for other in neighbours)


@pytest.mark.parametrize(("sizes", "axis"), [([1, 16, 1], 1), ([2, 16, 3], 1), ([16], 0)])
def test_neighbours_of_the_mesh_lie_side_by_side(sizes, axis):
    """Devices are numbered as they lie; each group of neighbours must have those that one axis of half the size has."""
    lie = functools.partial(lambda sizes: np.arange(np.prod(sizes)).reshape(sizes))
    mesh = np.moveaxis(staged.arranged(sizes, axis, 2, lie), axis, -1)
    halves = np.moveaxis(lie([*sizes[:axis], 2, 8, *sizes[axis + 1 :]]), (axis, axis + 1), (-2, -1))
    _, neighbours = staged.groups(16, 2)
    for half, group in enumerate(neighbours):
        np.testing.assert_array_equal(mesh[..., group], halves[..., half, :])
    np.testing.assert_array_equal(staged.arranged(sizes, axis, 1, lie), lie(sizes))


@pytest.fixture
def mesh(monkeypatch):
    """Eight devices in one axis, of which two are far from each other."""
    monkeypatch.setattr(staged, "stages", lambda axes: 2)
    return Mesh(np.array(jax.devices()[:8]), ("fsdp",), axis_types=(AxisType.Auto,))


def over(mesh, function, given, to):
    mapped = jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=to, check_vma=False)

    def run(x):
        with jax.set_mesh(mesh):
            return jax.jit(mapped)(x)

    return run


def axes(dimension):
    return PartitionSpec(*[None] * dimension, "fsdp")


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_gather_gives_the_parts_in_their_order(mesh, dimension):
    x = np.arange(48 * 16, dtype=np.float32).reshape(48, 16)
    gather = functools.partial(staged.all_gather, axes=("fsdp",), dimension=dimension)
    run = over(mesh, gather, axes(dimension), PartitionSpec())
    np.testing.assert_array_equal(run(x), x)


@pytest.mark.parametrize("piece", [4, 16, 8192])
@pytest.mark.parametrize("dimension", [0, 1])
def test_a_scatter_gives_each_device_its_part_of_the_sum(mesh, dimension, piece, monkeypatch):
    monkeypatch.setattr(staged, "LARGEST_PIECE", piece)
    terms = np.random.default_rng(0).integers(-9, 9, (8, 48, 16)).astype(np.float32)
    run = over(
        mesh, lambda x: staged.reduce_scatter(x[0], ("fsdp",), dimension), PartitionSpec("fsdp"), axes(dimension)
    )  # fmt: skip
    np.testing.assert_array_equal(run(terms), terms.sum(0))


def test_one_stage_where_devices_are_no_tpus():
    mesh = Mesh(np.array(jax.devices()[:8]), ("fsdp",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert staged.stages(("fsdp",)) == staged.stages(()) == 1
    assert staged.stages(("fsdp",)) == 1
    gather = functools.partial(staged.all_gather, axes=("fsdp",), dimension=0)
    np.testing.assert_array_equal(over(mesh, gather, PartitionSpec("fsdp"), PartitionSpec())(jnp.arange(8)), range(8))
