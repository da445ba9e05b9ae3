"""Which rows of a batch each process makes, and how all processes stop together."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpt.parallel import rules


@functools.lru_cache(maxsize=8)
def rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a global batch that this process's devices hold.

    Where a model axis spans processes, their devices hold the same rows, and each of them makes these.

    Args:
      mesh: the device mesh.
      batch_size: rows of the global batch.

    Returns:
      int64, ascending.
    """
    held = rules.batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    return np.unique(np.concatenate([np.arange(*index[0].indices(batch_size)) for index in held.values()]))


def put(batch: dict[str, np.ndarray], mesh: Mesh, batch_size: int) -> dict[str, jax.Array]:
    """Makes the global batch; each process gives its rows.

    Args:
      batch: features of the rows that `rows` names, in their order.
      mesh: the device mesh.
      batch_size: rows of the global batch.

    Returns:
      Arrays [batch_size, ...], spread over the mesh.
    """
    sharding = rules.batch_sharding(mesh)
    make = jax.make_array_from_process_local_data
    return {name: make(sharding, x, (batch_size, *x.shape[1:])) for name, x in batch.items()}


def to_host(x: jax.Array) -> np.ndarray:
    """An array as NumPy. If other processes hold parts of it, all of them must call this."""
    if x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


class AnyProcess:
    """The largest wish of all processes: nothing, to save or to stop. All of them see it after the same step.

    The votes of a step are gathered while the next one runs, so that no step waits for them.
    """

    def __init__(self, mesh: Mesh) -> None:
        """Compiles the vote of the processes of a mesh."""
        self._devices = Mesh(mesh.devices.ravel(), ("all",))
        self._any = jax.jit(jnp.max, out_shardings=NamedSharding(self._devices, PartitionSpec()))
        self._pending: Any = None

    def __call__(self, wish: int) -> int:
        """The largest number that any process gave in the step before; a process alone is told that of now."""
        if jax.process_count() == 1:
            return wish
        before, size = self._pending, self._devices.size
        votes = NamedSharding(self._devices, PartitionSpec("all"))
        self._pending = self._any(jax.make_array_from_callback((size,), votes, lambda _: np.array([wish])))
        return 0 if before is None else int(before)
