"""Bits that change by themselves: digests of the state, compared among replicas, with a second run of the same step,
and with what was saved.

The digest of an array is Σ_i bits_i · (2i + 1) mod 2³², over the bit patterns of its elements as unsigned integers. One
flipped bit b of element i changes it by ±2^b · (2i + 1), which is not 0 mod 2³², since 2i + 1 is odd. Sums of integers
do not depend on their order, so the digest of a global array is the same on every mesh.

Data-parallel replicas, and devices that deterministic programs run on twice, have to agree in every bit. One that does
not has a faulty core or memory: Meta and Google report some in a thousand machines
(https://arxiv.org/abs/2102.11245, https://research.google/pubs/cores-that-dont-count).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxpt.errors import RetryableError, UserError, listed
from jaxpt.parallel import compiler, rules
from jaxpt.train.state import Setup, State, named_arrays

_UINTS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def digest(x: jax.Array) -> jax.Array:
    """The digest of an array of any shape and type, uint32 [].

    Example:
      >>> int(digest(jnp.array([1, 2, 3], jnp.uint32)))  # 1·1 + 2·3 + 3·5
      22
    """
    size = x.dtype.itemsize
    bits = x if x.dtype == bool else jax.lax.bitcast_convert_type(x, _UINTS[min(size, 4)])
    bits = bits.astype(jnp.uint32)
    index = jnp.zeros((), jnp.uint32)
    for axis in range(bits.ndim):
        stride = math.prod(bits.shape[axis + 1 :]) % 2**32
        index += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
    return (bits * (2 * index + 1)).sum(dtype=jnp.uint32)


def digests(state: State) -> jax.Array:
    """Of each array of a state, uint32 [arrays]."""
    return jnp.stack([digest(x) for x in jax.tree.leaves(state)])


def named(state: State, values: np.ndarray) -> dict[str, int]:
    """Digests by the names of the arrays, for JSON."""
    return dict(zip(named_arrays(state), (int(value) for value in values), strict=True))


def changed(saved: Mapping[str, int], state: State) -> list[str]:
    """The arrays of a restored state that are not what was saved.

    Args:
      saved: what `named` gave, {} of an earlier version.
      state: restored, on any mesh.
    """
    if not saved:
        return []
    now = named(state, jax.device_get(jax.jit(digests)(state)))
    return [name for name, value in saved.items() if now.get(name, value) != value]


def make_local_digests(setup: Setup) -> Callable[[State], jax.Array]:
    """The digests of what each device itself holds of each array, as a jitted function: uint32 [devices, arrays].

    The compiler takes replicas for equal: only a program for each device sees that they are not.
    """
    mesh = setup.mesh
    specs = jax.tree.map(lambda placed: placed.spec, setup.shardings)

    def local(state: State) -> jax.Array:
        return digests(state)[None]

    everywhere = PartitionSpec(mesh.axis_names)
    per_device = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=everywhere, check_vma=False)
    return compiler.jit(per_device, in_shardings=(setup.shardings,), out_shardings=rules.replicated(mesh))


def has_replicas(setup: Setup) -> bool:
    """Whether any array of the state is on several devices as a whole or in parts."""
    shapes, placed = jax.tree.leaves(setup.shapes.params), jax.tree.leaves(setup.shardings.params)
    return any(len(_groups(x.shape, sharding)) < setup.mesh.size for x, sharding in zip(shapes, placed, strict=True))


def _groups(shape: tuple[int, ...], sharding: jax.sharding.Sharding) -> dict[str, list[jax.Device]]:
    """Devices by the part of an array that they hold."""
    groups: dict[str, list[jax.Device]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        groups.setdefault(str(index), []).append(device)
    return groups


def disagreeing(setup: Setup, values: np.ndarray) -> dict[jax.Device, list[str]]:
    """The devices whose replica is not that of most others, and the arrays; of two that differ, both.

    Args:
      setup: of the state.
      values: what `make_local_digests` gave, uint32 [devices, arrays].
    """
    row = {device: n for n, device in enumerate(setup.mesh.devices.ravel())}
    odd: dict[jax.Device, list[str]] = {}
    leaves, placed = jax.tree.leaves(setup.shapes), jax.tree.leaves(setup.shardings)
    for n, (name, x, sharding) in enumerate(zip(named_arrays(setup.shapes), leaves, placed, strict=True)):
        if (values[:, n] == values[0, n]).all():
            continue
        for devices in _groups(x.shape, sharding).values():
            counts = Counter(int(values[row[device], n]) for device in devices)
            (usual, max_count), *others = counts.most_common()
            is_tie = bool(others) and others[0][1] == max_count
            for device in devices:
                if others and (is_tie or values[row[device], n] != usual):
                    odd.setdefault(device, []).append(name)
    return odd


def differing(setup: Setup, first: np.ndarray, second: np.ndarray) -> dict[jax.Device, list[str]]:
    """The devices on which the same step gave other bits the second time, and the arrays."""
    names, devices = list(named_arrays(setup.shapes)), setup.mesh.devices.ravel()
    rows = {device: np.flatnonzero(a != b) for device, a, b in zip(devices, first, second, strict=True)}
    return {device: [names[n] for n in arrays] for device, arrays in rows.items() if len(arrays)}


def error(odd: Mapping[jax.Device, Sequence[str]], where: str, what: str, newest: str) -> RetryableError:
    """What ends a run whose devices do not agree.

    Args:
      odd: the devices, and the names of arrays.
      where: the run and step.
      what: how they differ.
      newest: where the run resumes from.
    """
    places = [f"process {device.process_index}, device {device.id} ({device.device_kind})" for device in odd]
    arrays = sorted({name for names in odd.values() for name in names})
    return RetryableError(
        f"{where}: {listed(places, 4)}: {what} in {listed(arrays, 2)}: its memory or a core may be faulty; {newest}; "
        "re-run the same command to resume"
    )


def check(setup: Setup) -> None:
    """Raises UserError where steps are to be run twice on devices that do not give the same bits again."""
    train = setup.config.train
    if train.recompute_every and setup.mesh.devices.flat[0].platform == "gpu" and not train.deterministic:
        raise UserError("train.recompute_every: on GPUs a step gives the same bits with train.deterministic=true")


class Checks:
    """The comparisons of a phase under way."""

    def __init__(self, setup: Setup, where: str, newest: Callable[[], str]) -> None:
        """Nothing is compiled before the first comparison.

        Args:
          setup: of the phase.
          where: the run's directory, for messages.
          newest: says where the run would resume from.
        """
        train = setup.config.train
        self._setup, self._where, self._newest = setup, where, newest
        every = train.check_replicas_every
        self._every = every if every and train.steps >= every and has_replicas(setup) else None
        self._again_every = train.recompute_every

    @functools.cached_property
    def _local_digests(self) -> Callable[[State], jax.Array]:
        with self._setup.use():
            return make_local_digests(self._setup).lower(self._setup.placed_shapes()).compile()

    @functools.cached_property
    def _copy(self) -> Callable[[State], State]:
        copy = compiler.jit(lambda state: jax.tree.map(jnp.copy, state), out_shardings=self._setup.shardings)
        with self._setup.use():
            return copy.lower(self._setup.placed_shapes()).compile()

    def compare_replicas(self, state: State, done: int, now: bool) -> None:
        """Every few steps, before a save, and where a step was odd, makes sure that all replicas have the same bits.

        Args:
          state: after `done` steps.
          done: steps.
          now: it is about to be saved, or a step was odd.

        Raises:
          RetryableError: names the process, the device and the arrays that differ.
        """
        if self._every is None or not (now or done % self._every == 0):
            return
        values = np.asarray(jax.device_get(self._local_digests(state)))
        if odd := disagreeing(self._setup, values):
            self._fail(odd, done, "its replica differs from the others")

    def kept(self, state: State, done: int) -> State | None:
        """A copy of the state, where the next step is to be run twice; it takes the memory of another state."""
        if self._again_every and (done + 1) % self._again_every == 0:
            return self._copy(state)
        return None

    def compare_again(self, train: Callable[..., Any], before: State, rest: Sequence[Any], after: State) -> None:
        """Runs a step a second time and compares the bits of the states.

        Args:
          train: the step's program.
          before: what `kept` gave; it is donated.
          rest: the step's other arguments.
          after: the state that the first time gave.

        Raises:
          RetryableError: names the process, the device and the arrays that differ.
        """
        again, _ = train(before, *rest)
        first, second = jax.device_get((self._local_digests(after), self._local_digests(again)))
        if odd := differing(self._setup, np.asarray(first), np.asarray(second)):
            self._fail(odd, int(after.step), "a step gave other bits the second time")

    def _fail(self, odd: Mapping[jax.Device, Sequence[str]], done: int, what: str) -> None:
        raise error(odd, f"{self._where}: step {done}", what, self._newest())
