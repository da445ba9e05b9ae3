"""The device mesh that a recipe asks for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import flax.linen as nn
import jax
from jax.sharding import AxisType, Mesh

from jaxpt.config import MeshConfig
from jaxpt.errors import UserError
from jaxpt.parallel.rules import flax_rules

AXES = ("data", "fsdp", "tensor")


def make(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arranges the devices in a mesh of (data, fsdp, tensor).

    Args:
      config: sizes of the axes; -1 on one of them takes what the others leave.
      devices: the devices to use, all by default.

    Returns:
      A mesh with Auto axes: XLA places what the code leaves open.

    Raises:
      UserError: the sizes do not multiply to the number of devices.

    Example:
      >>> make(MeshConfig(data=-1, tensor=2), jax.devices()[:4]).shape
      OrderedDict({'data': 2, 'fsdp': 1, 'tensor': 2})
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = [getattr(config, axis) for axis in AXES]
    shown = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes))
    known = math.prod(size for size in sizes if size != -1)
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        hint = "divide" if -1 in sizes else "multiply to"
        raise UserError(f"{shown}: must {hint} the {len(devices)} device(s) here")
    sizes = [len(devices) // known if size == -1 else size for size in sizes]
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Makes `mesh` and the table of logical axes current, so that constraints inside of models take effect."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(flax_rules()):
        yield
