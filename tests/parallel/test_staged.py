"""Gathers and scatters in two stages are those in one, and the order of devices that makes them cheap."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, PartitionSpec

from jaxpt.parallel import compiler, staged


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


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [  # of fsdp, of expert, of both
        ((8, 1), (1, 1, 1)),
        ((16, 1), (2, 1, 2)),
        ((256, 1), (2, 1, 2)),
        ((512, 1), (4, 1, 2)),
        ((4, 4), (1, 1, 2)),
        ((32, 8), (1, 1, 2)),
        ((2, 256), (1, 2, 2)),
    ],
)
def test_stages_are_those_of_the_mesh_in_use(sizes, counts):
    """Of TPUs that nobody has here. Two axes that need stages are one each."""
    for platform, expected in (("tpu", counts), ("gpu", (1, 1, 1))):
        device = AbstractDevice(f"a {platform}", None, platform)
        types = (AxisType.Auto,) * 2
        with jax.sharding.use_abstract_mesh(AbstractMesh(sizes, ("fsdp", "expert"), types, abstract_device=device)):
            assert tuple(map(staged.stages, (("fsdp",), ("expert",), ("fsdp", "expert")))) == expected
            assert staged.stages(()) == 1


MESHES = {  # sizes of fsdp and expert, what `staged` takes for its smallest and largest number of devices, stages
    "one stage": ((8, 1), 16, 128, 1),
    "one axis": ((8, 1), 8, 4, 2),
    "two axes": ((4, 2), 8, 8, 2),
    "two axes, one of them in two stages": ((4, 2), 4, 2, 3),
}


@pytest.fixture(params=MESHES)
def mesh(request, monkeypatch):
    """Eight devices that count as TPUs, and the number of stages that all of them together take."""
    sizes, smallest, largest, stages = MESHES[request.param]
    monkeypatch.setattr(compiler, "platform", lambda: "tpu")
    monkeypatch.setattr(staged, "SMALLEST", smallest)
    monkeypatch.setattr(staged, "LARGEST", largest)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(sizes), ("fsdp", "expert"), axis_types=(AxisType.Auto,) * 2)
    return mesh, stages


def over(mesh, function, x, given, to):
    """(what the function makes of the devices' parts of x, the program)."""
    mapped = jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=to, check_vma=False)
    with jax.set_mesh(mesh):
        lowered = jax.jit(mapped).lower(x)
        return lowered.compile()(x), lowered.as_text()


def used(mesh):
    """The axes that have more than one device."""
    return tuple(axis for axis, size in mesh.shape.items() if size > 1)


def along(mesh, dimension):
    return PartitionSpec(*[None] * dimension, used(mesh))


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_gather_gives_the_parts_in_their_order(mesh, dimension):
    mesh, stages = mesh
    x = np.arange(48 * 16, dtype=np.float32).reshape(48, 16)
    gather = functools.partial(staged.all_gather, axes=used(mesh), dimension=dimension)
    whole, program = over(mesh, gather, x, along(mesh, dimension), PartitionSpec())
    np.testing.assert_array_equal(whole, x)
    assert program.count("stablehlo.all_gather") == stages


@pytest.mark.parametrize(("dimension", "piece", "pieces"), [(0, 7, 4), (1, 7, 8), (0, 8192, 1), (1, 8192, 1)])
def test_a_scatter_gives_each_device_its_part_of_the_sum(mesh, dimension, piece, pieces, monkeypatch):
    """Of 16 or 48 columns, 4 or 8 pieces are the fewest of equal size that have at most 7."""
    monkeypatch.setattr(staged, "LARGEST_PIECE", piece)
    mesh, stages = mesh
    terms = np.random.default_rng(0).integers(-9, 9, (8, 48, 16)).astype(np.float32)
    scatter = lambda x: staged.reduce_scatter(x[0], used(mesh), dimension)  # noqa: E731
    parts, program = over(mesh, scatter, terms, PartitionSpec(used(mesh)), along(mesh, dimension))
    np.testing.assert_array_equal(parts, terms.sum(0))
    assert parts.sharding.shard_shape(parts.shape)[dimension] == terms.shape[1 + dimension] // 8
    assert program.count("stablehlo.reduce_scatter") == (stages * pieces if stages > 1 else 1)


def test_one_stage_where_devices_are_no_tpus():
    mesh = Mesh(np.array(jax.devices()[:8]), ("fsdp",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert staged.stages(("fsdp",)) == staged.stages(()) == 1
    assert staged.stages(("fsdp",)) == 1
    gather = functools.partial(staged.all_gather, axes=("fsdp",), dimension=0)
    whole, program = over(mesh, gather, np.arange(8), PartitionSpec("fsdp"), PartitionSpec())
    np.testing.assert_array_equal(whole, range(8))
    scatter = lambda x: staged.reduce_scatter(x[0], ("fsdp",), 0)  # noqa: E731
    terms = np.arange(64).reshape(8, 8, 1)
    parts, other = over(mesh, scatter, terms, PartitionSpec("fsdp"), PartitionSpec("fsdp"))
    np.testing.assert_array_equal(parts, terms.sum(0))
    assert program.count("stablehlo.all_gather") == other.count("stablehlo.reduce_scatter") == 1
