"""Several processes: how they find each other, which rows of a batch each one makes, how they stop together."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpt.config import DistributedConfig
from jaxpt.errors import UserError
from jaxpt.parallel import rules

_VARIABLES = {"coordinator": "JAXPT_COORDINATOR", "processes": "JAXPT_PROCESSES", "process": "JAXPT_PROCESS"}


def start(config: DistributedConfig) -> None:
    """Joins the processes of a run; returns at once where there is one alone, or where it was done before.

    Args:
      config: where process 0 listens, how many there are, which this one is; what it leaves out is taken from
        JAXPT_COORDINATOR, JAXPT_PROCESSES and JAXPT_PROCESS.

    Raises:
      UserError: one of the three is missing or wrong, or the others did not come.
    """
    given = {name: getattr(config, name) for name in _VARIABLES}
    found = {name: os.environ.get(v) if given[name] is None else given[name] for name, v in _VARIABLES.items()}
    if found["coordinator"] is None or jax.distributed.is_initialized():
        return
    for name, variable in _VARIABLES.items():
        if found[name] is None:
            raise UserError(f"distributed.{name} is missing: with distributed.coordinator, give it or {variable}")
    try:
        processes, process = int(found["processes"]), int(found["process"])
    except ValueError:
        raise UserError("JAXPT_PROCESSES and JAXPT_PROCESS want whole numbers") from None
    if not 0 <= process < processes:
        raise UserError(f"distributed.process: {process} is none of 0 … {processes - 1}")
    # JAX's own handler of SIGTERM would take the place of ours.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(found["coordinator"], processes, process)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"distributed.coordinator: {found['coordinator']}: {reason}") from None


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
    """The global batch, of which this process gives its rows.

    Args:
      batch: features of the rows that `rows` names, in their order.
      mesh: the device mesh.
      batch_size: rows of the global batch.

    Returns:
      Arrays [batch_size, ...], spread over the mesh.
    """
    sharding, own = rules.batch_sharding(mesh), rows(mesh, batch_size)

    def place(x: np.ndarray) -> jax.Array:
        def part(index: tuple[slice, ...]) -> np.ndarray:
            first, end, _ = index[0].indices(batch_size)
            at = np.searchsorted(own, first)
            return x[at : at + end - first]

        return jax.make_array_from_callback((batch_size, *x.shape[1:]), sharding, part)

    return {name: place(x) for name, x in batch.items()}


def fetched(x: jax.Array) -> np.ndarray:
    """An array as NumPy, also where other processes hold parts of it; all of them have to ask for it."""
    if x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


class Agreement:
    """Whether any process wishes to stop: all learn of it after the same step.

    The votes of a step are gathered while the next one runs, so that no step waits for them.
    """

    def __init__(self, mesh: Mesh) -> None:
        """For the processes of a mesh."""
        self._devices = Mesh(mesh.devices.ravel(), ("all",))
        self._any = jax.jit(jnp.max, out_shardings=NamedSharding(self._devices, PartitionSpec()))
        self._pending: Any = None

    def __call__(self, wish: bool) -> bool:
        """Whether a process wished it in the step before; of one process alone, whether it does now."""
        if jax.process_count() == 1:
            return wish
        before, size = self._pending, self._devices.size
        votes = NamedSharding(self._devices, PartitionSpec("all"))
        self._pending = self._any(jax.make_array_from_callback((size,), votes, lambda _: np.array([wish])))
        return before is not None and bool(before)
