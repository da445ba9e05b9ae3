"""What chips can do, cost and draw; TPU slices by name, with no TPU here: their devices to compile for.

A device is what JAX calls one: a whole chip, or half a chip of a tpu7x.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import math
import os
import re
import warnings

import jax

from jaxpt.errors import UserError

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip's published peaks, in FLOP, bytes, seconds, US dollars and watts."""

    flops: float
    """Dense bf16 FLOP/s."""
    memory: int
    """Bytes of HBM of one device that a program may take, as the compiler says when one needs more."""
    memory_bandwidth: float
    """HBM, bytes/s."""
    ici: float
    """Bytes/s that a chip can send to its neighbours in the slice, over all its links; of GPUs inside of a machine."""
    dcn: float
    """Bytes/s that a chip can send to other slices or machines: its share of the host's network cards."""
    price: float
    """US dollars for a chip-hour, on demand."""
    watts: float
    """Of a chip with its share of the host, under load."""
    devices: int = 1
    """JAX devices of a chip."""
    dimensions: int = 2
    """Of the torus that the chips form."""
    variant: str = "default"
    """libtpu's configuration of the chip: on a v4 both cores are one device."""


# Peaks: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, read in 2026. ICI is given there as 2,400, 1,600, 4,800
# and 3,200 Gbit/s of a chip, and for a tpu7x as 1,200 GB/s of both directions; DCN of a chip as 50, 25 (two cards of
# 100 Gbit/s to 8 chips), 50, 100 and 100 Gbit/s.
# Prices and power are rough: on-demand dollars of about 2025, watts with the host's share; no list was read for them.
# `--price` and `--watts` take what holds for you.
CHIPS = {
    "v4": Chip(275e12, int(30.75 * GIB), 1228e9, 300e9, 6.25e9, 3.22, 300, dimensions=3, variant="megacore"),
    "v5e": Chip(197e12, int(15.75 * GIB), 819e9, 200e9, 3.125e9, 1.20, 250),
    "v5p": Chip(459e12, int(95.73 * GIB), 2765e9, 600e9, 6.25e9, 4.20, 600, dimensions=3),
    "v6e": Chip(918e12, int(31.24 * GIB), 1638e9, 400e9, 12.5e9, 2.70, 450),
    "tpu7x": Chip(2307e12, int(94.74 * GIB), 7380e9, 600e9, 12.5e9, 12.00, 1100, devices=2, dimensions=3),
}

# Peaks: NVIDIA's data sheets; FLOP/s without sparsity, NVLink (L4: PCIe) one way, network cards of 200 or 400 Gbit/s to
# a GPU. Watts: an eighth of what a DGX A100, H100 or B200 draws at the most. Prices as above. How much of its memory a
# program may take is asked of the GPU itself.
GPUS = {
    "A100 40GB": Chip(312e12, 40 * 10**9, 1555e9, 300e9, 25e9, 3.00, 810),
    "A100 80GB": Chip(312e12, 80 * 10**9, 2039e9, 300e9, 25e9, 4.00, 810),
    "H100": Chip(989e12, 80 * 10**9, 3350e9, 450e9, 50e9, 6.00, 1275),
    "H200": Chip(989e12, 141 * 10**9, 4800e9, 450e9, 50e9, 7.00, 1275),
    "B200": Chip(2250e12, 180 * 10**9, 7700e9, 900e9, 50e9, 10.00, 1790),
    "L4": Chip(121e12, 24 * 10**9, 300e9, 32e9, 12.5e9, 0.70, 150),
}
# By the names that JAX gives to devices, or how these begin.
KINDS = {
    "TPU v4": CHIPS["v4"], "TPU v5 lite": CHIPS["v5e"], "TPU v5e": CHIPS["v5e"], "TPU v5": CHIPS["v5p"],
    "TPU v5p": CHIPS["v5p"], "TPU v6 lite": CHIPS["v6e"], "TPU v6e": CHIPS["v6e"], "TPU7x": CHIPS["tpu7x"],
    "NVIDIA A100": GPUS["A100 80GB"], "NVIDIA A100-SXM4-40GB": GPUS["A100 40GB"],
    "NVIDIA A100-PCIE-40GB": GPUS["A100 40GB"], "NVIDIA H100 80GB": GPUS["H100"], "NVIDIA H200": GPUS["H200"],
    "NVIDIA B200": GPUS["B200"], "NVIDIA L4 ": GPUS["L4"],
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several slices of one kind of chip."""

    name: str
    """Of one slice, such as v5e:16x16."""
    chip: Chip
    slices: int
    chips: int
    """In all slices."""

    @property
    def size(self) -> int:
        """JAX devices in all slices."""
        return self.chips * self.chip.devices

    def devices(self) -> list[jax.Device]:
        """The devices to compile for; nothing can run on them.

        Raises:
          UserError: libtpu, the compiler, is not installed, or knows no slice of this shape.
        """
        if importlib.util.find_spec("libtpu") is None:
            raise UserError("compiling for TPUs needs their compiler, libtpu: pip install 'jaxpt[plan]'")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # other processes may compile too
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # ask no metadata server which TPU this is: there is none
        jax.config.update("jax_platforms", "cpu")  # a TPU that is here stays free
        from jax.experimental import topologies

        options = {"num_slices": self.slices} if self.slices > 1 else {}
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


def chip(device_kind: str) -> Chip | None:
    """The chip of a device, by the name that JAX gives it; None where its peaks are not in the table (CPUs).

    Example:
      >>> chip("NVIDIA H100 80GB HBM3").flops / 1e12, chip("cpu")
      (989.0, None)
    """
    names = [name for name in KINDS if f"{device_kind} ".startswith(name)]
    return KINDS[max(names, key=len)] if names else None


def local(device_kind: str, devices: int) -> Topology | None:
    """The devices of this machine, as one slice; None where their chip is not in the table."""
    found = chip(device_kind)
    return None if found is None else Topology(device_kind, found, 1, devices // found.devices)


def parse(name: str, slices: int = 1) -> Topology:
    """Reads a topology's name.

    Args:
      name: kind of chip and shape of a slice in chips: v4:4x4x4, v5e:16x16, v5p:4x4x4, v6e:16x16, tpu7x:4x4x4.
      slices: number of such slices, joined by the data centre's network.

    Returns:
      The topology; libtpu is not asked yet.

    Raises:
      UserError: an unknown chip, or a shape that is none.

    Example:
      >>> parse("v5e:16x16", slices=2).size, parse("tpu7x:4x4x4").size
      (512, 128)
    """
    kind, _, shape = name.partition(":")
    if kind.upper() in {gpu.partition(" ")[0] for gpu in GPUS}:
        raise UserError(f"--topology {name}: nothing compiles for GPUs without one; on one, leave --topology out")
    if kind not in CHIPS:
        near = difflib.get_close_matches(kind, CHIPS, n=1, cutoff=0.3)
        hint = f", do you mean {near[0]}?" if near else ""
        raise UserError(f"--topology {name}: {kind!r} is none of {', '.join(CHIPS)}{hint}")
    chip = CHIPS[kind]
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) or shape.count("x") + 1 != chip.dimensions:
        example = "x".join(["4"] * chip.dimensions)
        raise UserError(f"--topology {name}: wants {chip.dimensions} numbers of chips, such as {kind}:{example}")
    return Topology(name, chip, slices, slices * math.prod(map(int, shape.split("x"))))
