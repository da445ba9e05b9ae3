"""Collectives over many devices of a TPU slice, in two stages.

libtpu 0.0.52 has few collectives over all devices of a slice, or over more than 128. A reduce-scatter of them becomes
an all-reduce of whole arrays, and so does an all-gather on most slices of v4 and v5p, and of a part of few rows on the
others: each device sends twice as much. In two stages, among few devices that are far from each other and among the
neighbours of each, both are what they should be, and send the same bytes together as one stage would.

Where a weight is split over two axes of the mesh, each of them is a stage.

Devices that are far from each other lie side by side in the mesh (`arranged`), so that parts of an array need not
change places between the stages: of 16 devices 0, 2, 4, … are neighbours, 0 and 1 are far from each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from jaxpt.parallel import compiler

SMALLEST = 16
"""Smallest number of devices that work in stages."""
LARGEST = 128
"""Maximum number of neighbours."""
LARGEST_PIECE = 8192
"""Maximum number of columns of an array whose rows are scattered. On some slices libtpu makes all-reduces of wider
arrays, such as tables of embeddings: they are cut into pieces."""


def far(devices: int, of_slice: int) -> int:
    """Number of groups of neighbours into which the devices of a mesh axis are divided; 1: one stage is enough.

    Args:
      devices: number of devices of the axis, on TPUs.
      of_slice: number of devices of the slice.

    Returns:
      A power of two.

    Example:
      >>> [far(devices, 256) for devices in (8, 128, 256)], far(512, 1024), far(1024, 1024), far(24, 24)
      ([1, 1, 2], 4, 8, 2)
    """
    if devices < SMALLEST or (devices < of_slice and devices <= LARGEST):
        return 1
    count = 2
    while devices // count > LARGEST:
        count *= 2
    return count if devices % count == 0 else 1


def stages(axes: tuple[str, ...]) -> int:
    """`far` for axes of the mesh in use, several of which are a stage each: 1 on CPUs and GPUs, and without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if not axes or mesh.empty or compiler.platform() != "tpu":
        return 1
    count = far(math.prod(mesh.shape[axis] for axis in axes), mesh.size)
    return count if len(axes) == 1 or count == 1 else len(axes)


def _stages(axes: tuple[str, ...]) -> list[tuple[str, list[list[int]] | None]]:
    """(mesh axis, its groups, None for all of it) of each stage of a scatter; a gather goes through them backwards."""
    steps: list[tuple[str, list[list[int]] | None]] = []
    for axis in axes:
        count = stages((axis,))
        far_apart, neighbours = groups(jax.sharding.get_abstract_mesh().shape[axis], count)
        steps += [(axis, None)] if count == 1 else [(axis, neighbours), (axis, far_apart)]
    return steps


def groups(devices: int, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """(devices that are far from each other, neighbours), as places along the mesh axis.

    Example:
      >>> groups(8, 2)
      ([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]])
    """
    places = np.arange(devices).reshape(-1, count)
    return places.tolist(), places.T.tolist()


def arranged(sizes: list[int], axis: int, count: int, arrange: Callable[[list[int]], np.ndarray]) -> np.ndarray:
    """Arranges the devices of a mesh so that those of one axis are in `count` groups of neighbours.

    Args:
      sizes: sizes of the axes.
      axis: index of the axis.
      count: what `far` returned.
      arrange: from sizes of axes to devices; those of later axes are neighbours.

    Returns:
      An array of devices, with these sizes.

    Example:
      >>> print(arranged([2, 8], 1, 2, lambda sizes: np.arange(16).reshape(sizes)))
      [[ 0  4  1  5  2  6  3  7]
       [ 8 12  9 13 10 14 11 15]]
    """
    if count == 1:
        return arrange(sizes)
    parted = [*sizes[:axis], count, sizes[axis] // count, *sizes[axis + 1 :]]
    return np.moveaxis(arrange(parted), axis, axis + 1).reshape(sizes)


def all_gather(x: jax.Array, axes: tuple[str, ...], dimension: int) -> jax.Array:
    """Gathers the parts of all devices of mesh axes, inside a `jax.shard_map` over these.

    Args:
      x: the device's part.
      axes: mesh axes, the first one outermost.
      dimension: along which the parts are joined.

    Returns:
      The whole array.
    """
    if stages(axes) == 1:
        return jax.lax.all_gather(x, axes, axis=dimension, tiled=True)
    for axis, members in reversed(_stages(axes)):
        x = jax.lax.all_gather(x, axis, axis=dimension, axis_index_groups=members, tiled=True)
    return x


def reduce_scatter(x: jax.Array, axes: tuple[str, ...], dimension: int) -> jax.Array:
    """Sums over the devices of mesh axes, each of which keeps a part, inside a `jax.shard_map` over these.

    Args:
      x: the device's term, a matrix.
      axes: mesh axes, the first one outermost.
      dimension: along which the sum is split.

    Returns:
      The device's part.
    """
    if compiler.platform() != "tpu":
        return jax.lax.psum_scatter(x, axes, scatter_dimension=dimension, tiled=True)
    # libtpu scatters nothing along the axis that lies in lanes: so along rows, one row after the other.
    x_RxC = with_layout_constraint(x.T if dimension else x, Layout((0, 1)))
    if stages(axes) == 1:
        x_RxC = jax.lax.psum_scatter(x_RxC, axes, scatter_dimension=0, tiled=True)
        return x_RxC.T if dimension else x_RxC
    columns = x_RxC.shape[1]
    pieces = next(n for n in range(math.ceil(columns / LARGEST_PIECE), columns + 1) if columns % n == 0)
    parts = jnp.split(x_RxC, pieces, 1)
    for axis, members in _stages(axes):
        parts = [
            jax.lax.psum_scatter(part, axis, scatter_dimension=0, axis_index_groups=members, tiled=True)
            for part in parts
        ]
    x_RxC = jnp.concatenate(parts, 1)
    return x_RxC.T if dimension else x_RxC
