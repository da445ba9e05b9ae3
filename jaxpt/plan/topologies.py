"""TPU slices and machines with GPUs by name, with none of them here: their devices to compile for."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import math
import os
import re
import warnings
from typing import Any

import jax

from jaxpt.errors import UserError
from jaxpt.parallel import chips
from jaxpt.parallel.chips import CHIPS, GPUS, Chip
from jaxpt.plan import gpus, vendor_names
from jaxpt.runtime import packages


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several slices of one kind of TPU, or machines with one kind of GPU."""

    name: str
    """One slice, such as v5e:16x16, or all machines, such as h100:2x8."""
    chip: Chip
    slices: int
    chips: int
    """In all slices."""
    machine: int | None = None
    """GPUs of a machine; None of TPUs."""
    network: float | None = None
    """Bytes/s that a GPU of a cloud's machines can send to other machines; None: as its kind of chip."""

    @property
    def memory(self) -> int:
        """Bytes of one device that a program may take."""
        return self.chip.memory if self.machine is None else int(self.chip.memory * gpus.share())

    @property
    def size(self) -> int:
        """JAX devices in all slices."""
        return self.chips * self.chip.devices

    @property
    def ici(self) -> float:
        """Bytes/s that a chip can send to its neighbours: less where an axis of the slice has no wrap-around links.

        A v5e or v6e has them along 16 chips alone; the others, made of cubes of 4x4x4, along all axes or none. Without
        them a ring goes back the way that it came, and each device has one link for it instead of two; an axis of one
        chip has none.

        Example:
          >>> [parse(name).ici / 1e9 for name in ("v5e:16x16", "v5e:8x16", "v5e:4x4", "v5p:4x4x4", "v5p:2x2x4")]
          [200.0, 150.0, 100.0, 600.0, 300.0]
        """
        sizes = [int(n) for n in re.findall(r"\d+", self.name.partition(":")[2])]
        if self.chip not in CHIPS.values() or not sizes or self.chips == self.slices:
            return self.chip.ici
        cubes = self.chip.dimensions == 3 and all(n % 4 == 0 for n in sizes)
        wraps = [cubes or (self.chip.dimensions == 2 and n == 16) for n in sizes]
        return self.chip.ici * sum(0.0 if n == 1 else 1.0 if w else 0.5 for n, w in zip(sizes, wraps)) / len(sizes)

    @property
    def dcn(self) -> float:
        """Bytes/s that a chip can send to other slices or machines."""
        return self.chip.dcn if self.network is None else self.network

    def check_compiler(self) -> None:
        """Raises UserError if the compiler of its chips is not installed; it is not imported."""
        if self.machine is not None:
            gpus.check_compiler()
        elif importlib.util.find_spec("libtpu") is None:
            raise UserError(f"compiling for TPUs needs their compiler, libtpu: {packages.install_command('plan')}")

    def devices(self) -> list[jax.Device]:
        """The devices to compile for; nothing can run on them.

        Raises:
          UserError: the compiler is not installed, or knows no slice of this shape.
        """
        self.check_compiler()
        if self.machine is not None:
            return gpus.devices(self.name.partition(":")[0], self.chips // self.machine, self.machine)
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # other processes may compile too
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # ask no metadata server which TPU this is: there is none
        jax.config.update("jax_platforms", "cpu")  # a TPU that is here stays free
        from jax.experimental import topologies

        options: dict[str, Any] = {"num_slices": self.slices} if self.slices > 1 else {}
        if self.chips == self.slices:  # libtpu takes the machine of four or eight chips as the least
            options["chips_per_host_bounds"] = (1, 1, 1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # jax's, that it could not look for a TPU
                described = topologies.get_topology_desc(
                    self.name, platform="tpu", chip_config_name=self.chip.variant, **options
                )
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
            raise UserError(f"--topology {self.name}: libtpu: {reason}") from None
        return list(described.devices)


def local(device_kind: str, devices: int) -> Topology | None:
    """The devices of this machine, as one slice; None where their chip is not in the table."""
    chip = chips.chip(device_kind)
    return None if chip is None else Topology(device_kind, chip, 1, devices // chip.devices)


def parse(name: str, slices: int = 1) -> Topology:
    """Reads a topology's name.

    Args:
      name: kind of chip and shape of a slice in chips: v4:4x4x4, v5e:16x16, v5p:4x4x4, v6e:16x16, tpu7x:4x4x4; kind of
        GPU and their number, or that of machines and of GPUs in each: h100:8, h200:2x8, a100-80:8, b200:9x8. Or a
        cloud's name: v5p-128, v6e-64, a3-highgpu-8g (`vendor_names`).
      slices: number of such slices, joined by the data centre's network; 1 of GPUs.

    Returns:
      The topology; no compiler is asked yet.

    Raises:
      UserError: an unknown chip, or a shape that is none.

    Example:
      >>> parse("v5e:16x16", slices=2).size, parse("tpu7x:4x4x4").size, parse("h100:2x8").size
      (512, 128, 16)
      >>> parse("v5p-128").name
      'v5p:4x4x4'
    """
    network = vendor_names.network(name)
    name = vendor_names.to_topology(name)
    kind, _, shape = name.partition(":")
    known = [*CHIPS, *gpus.TARGETS]
    if kind not in known:
        begun = [name for name in known if kind and name.startswith(kind)]  # a100: of 40 or of 80 GB
        near = begun or difflib.get_close_matches(kind, [*known, *vendor_names.MACHINE_TYPES], n=1, cutoff=0.3)
        hint = f", do you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"--topology {name}: {kind!r} is none of {', '.join(known)}{hint}")
    sizes = [int(n) for n in shape.split("x")] if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) else []
    if kind in gpus.TARGETS:
        return dataclasses.replace(_gpus(name, kind, sizes, slices), network=network)
    chip = CHIPS[kind]
    if len(sizes) != chip.dimensions:
        example = "x".join(["4"] * chip.dimensions)
        raise UserError(f"--topology {name}: wants {chip.dimensions} numbers of chips, such as {kind}:{example}")
    return Topology(name, chip, slices, slices * math.prod(sizes))


def _gpus(name: str, kind: str, sizes: list[int], slices: int) -> Topology:
    if len(sizes) not in (1, 2):
        raise UserError(f"--topology {name}: wants the number of GPUs, or machines and GPUs of each: {kind}:2x8")
    if slices != 1:
        raise UserError(f"--slices {slices}: are of TPUs; for so many machines: --topology {kind}:{slices}x{sizes[-1]}")
    return Topology(name, GPUS[kind], 1, math.prod(sizes), sizes[-1])
