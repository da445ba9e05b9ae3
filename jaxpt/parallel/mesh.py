"""The device mesh that a recipe asks for."""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from jaxpt.errors import UserError
from jaxpt.parallel import rules, staged

if TYPE_CHECKING:
    from jaxpt.config import MeshConfig


def make(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arranges the devices in a mesh of (data, pipeline, fsdp, expert, context, tensor), the last between neighbours.

    The network between slices of TPUs is slow: the data axis goes from slice to slice, and the pipeline too if the data
    axis is too short for all of them. All other axes stay inside one slice. If fsdp goes over many TPUs, every second
    device (fourth, …) is a neighbour (`jaxpt.parallel.staged`).

    Args:
      config: sizes of the axes; -1 on one of them takes what the others leave.
      devices: the devices to use, all by default.

    Returns:
      A mesh with Auto axes: XLA places what the code leaves open.

    Raises:
      UserError: the sizes do not multiply to the number of devices, or data and pipeline do not cover the slices.

    Example:
      >>> from jaxpt.config import MeshConfig
      >>> dict(make(MeshConfig(data=-1, tensor=2), jax.devices()[:4]).shape)
      {'data': 2, 'pipeline': 1, 'fsdp': 1, 'expert': 1, 'context': 1, 'tensor': 2}
    """
    devices = list(jax.devices() if devices is None else devices)
    axes, sizes = tuple(config.sizes), [*config.sizes.values()]
    mesh_sizes = ", ".join(f"mesh.{axis}={size}" for axis, size in config.sizes.items())
    known = math.prod(size for size in sizes if size != -1)
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        exact = f"{known} devices (-1 on an axis: the remaining ones)"
        expected = f"a multiple of {known} devices" if -1 in sizes else exact
        raise UserError(f"{mesh_sizes}: the mesh takes {expected}, there are {len(devices)}")
    sizes = [len(devices) // known if size == -1 else size for size in sizes]
    place, count = axes.index("fsdp"), slices(devices)
    groups = staged.far(sizes[place], len(devices)) if devices[0].platform == "tpu" else 1
    across = [*between(dict(zip(axes, sizes)), count).values()]
    if groups > 1:
        across.insert(place, 1)  # of the axis that `arranged` adds

    def arrange(sizes: list[int]) -> np.ndarray:
        if count == 1:
            # Not jax.make_mesh, which refuses an axis that takes a part of a physical one: 8 × 8 of 4 × 4 × 4 chips.
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        inside = [size // n for size, n in zip(sizes, across, strict=True)]
        return mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)

    return Mesh(staged.arranged(sizes, place, groups, arrange), axes, axis_types=(AxisType.Auto,) * len(axes))


def fewer(config: MeshConfig, asked: int, there: int) -> MeshConfig:
    """The mesh of a run that goes on with fewer processes: its data axis is so many times shorter.

    Where -1 stands on an axis, that one takes what is there, and nothing is changed.

    Args:
      config: sizes of the axes for all processes.
      asked: number of all processes.
      there: number of those that go on, which divides it.

    Raises:
      UserError: the data axis cannot be that much shorter.

    Example:
      >>> from jaxpt.config import MeshConfig
      >>> fewer(MeshConfig(data=4, tensor=2), 4, 2).data
      2
    """
    if -1 in config.sizes.values():
        return config
    if config.data * there % asked:
        works = [count for count in range(1, asked) if asked % count == 0 and config.data * count % asked == 0]
        also = f"; {', '.join(map(str, works))} of them could" if works else ""
        raise UserError(f"mesh.data={config.data}: cannot shrink from {asked} processes to {there}{also}")
    return config.model_copy(update={"data": config.data * there // asked})


def slices(devices: Iterable[jax.Device]) -> int:
    """Number of TPU slices that devices lie in; 1 for other devices: any axis may go between machines with GPUs."""
    return len({0 if device.platform == "gpu" else getattr(device, "slice_index", 0) for device in devices})


def machine(devices: Sequence[jax.Device]) -> int | None:
    """Number of GPUs in a machine, for devices whose machine-mates lie side by side; None for other devices."""
    if devices[0].platform != "gpu":
        return None
    return collections.Counter(device.process_index for device in devices)[devices[0].process_index]


def between(sizes: Mapping[str, int], slices: int) -> dict[str, int]:
    """Number of slices that each axis goes over: data takes as many as it can, the pipeline the others.

    Args:
      sizes: sizes of the mesh's axes.
      slices: number of slices.

    Returns:
      {axis: slices}, 1 for axes that stay inside one slice.

    Raises:
      UserError: data and pipeline cannot cover them.

    Example:
      >>> between({"data": 6, "pipeline": 4, "fsdp": 8}, 4)
      {'data': 2, 'pipeline': 2, 'fsdp': 1}
    """
    data = math.gcd(sizes["data"], slices)
    if sizes["pipeline"] % (slices // data):
        raise UserError(
            f"mesh.data={sizes['data']}, mesh.pipeline={sizes['pipeline']}: mesh.data must be a multiple of the "
            f"{slices} slices, or mesh.pipeline of those that it leaves over: only data and pipeline go between them"
        )
    return {**dict.fromkeys(sizes, 1), "data": data, "pipeline": slices // data}


@contextlib.contextmanager
def use(mesh: Mesh, table: rules.Table = rules.DEFAULT) -> Iterator[None]:
    """Makes `mesh` and the table of logical axes current, so that constraints inside of models take effect."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules.flax_rules(table)):
        yield
