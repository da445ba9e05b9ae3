"""Peaks, prices and power of chips, by the names that JAX gives to devices.

A device is what JAX calls one: a whole chip, or half a chip of a tpu7x.
"""

from __future__ import annotations

import dataclasses

GIB = 1 << 30
PUE = 1.1
"""Energy of a data centre for each unit that its machines take (Google's mean: 1.09, environmental report of 2024)."""
CARBON = 0.4
"""Kilograms of CO₂ for a kilowatt-hour; about the mean of the United States' grid."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip's published peaks, in FLOP, bytes, seconds, US dollars and watts."""

    flops: float
    """Dense bf16 FLOP/s."""
    memory: int
    """Bytes of HBM of one device. On a TPU a program may take all of them, as the compiler says when one needs more. On
    a GPU the driver gives them, and JAX takes a share (`jaxpt.plan.gpus.share`)."""
    memory_bandwidth: float
    """HBM, bytes/s."""
    ici: float
    """Bytes/s that a chip can send to its neighbours in the slice or, for GPUs, in the machine, over all its links."""
    dcn: float
    """Bytes/s that a chip can send to other slices or machines: its share of the host's network cards."""
    price: float
    """US dollars for a chip-hour, on demand."""
    watts: float
    """Watts of a chip with its share of the host, under load."""
    devices: int = 1
    """JAX devices of a chip."""
    dimensions: int = 2
    """Dimensions of the torus that the chips form."""
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
# a GPU. Memory: as XLA's descriptions have it (L4: data sheet), see `jaxpt.plan.gpus`. Watts: an eighth of what a DGX
# A100, H100 or B200 draws at the most. Prices as above.
GPUS = {
    "a100-40": Chip(312e12, 42_331_013_120, 1555e9, 300e9, 25e9, 3.00, 810),
    "a100-80": Chip(312e12, 85_100_068_864, 2039e9, 300e9, 25e9, 4.00, 810),
    "h100": Chip(989e12, 84_942_979_072, 3350e9, 450e9, 50e9, 6.00, 1275),
    "h200": Chip(989e12, 151_397_597_184, 4800e9, 450e9, 50e9, 7.00, 1275),
    "b200": Chip(2250e12, 191_514_411_008, 7700e9, 900e9, 50e9, 10.00, 1790),
    "l4": Chip(121e12, 24 * 10**9, 300e9, 32e9, 12.5e9, 0.70, 150),
}
# The keys are the names that JAX gives to devices, or how these begin.
KINDS = {
    "TPU v4": CHIPS["v4"], "TPU v5 lite": CHIPS["v5e"], "TPU v5e": CHIPS["v5e"], "TPU v5": CHIPS["v5p"],
    "TPU v5p": CHIPS["v5p"], "TPU v6 lite": CHIPS["v6e"], "TPU v6e": CHIPS["v6e"], "TPU7x": CHIPS["tpu7x"],
    "NVIDIA A100": GPUS["a100-80"], "NVIDIA A100-SXM4-40GB": GPUS["a100-40"],
    "NVIDIA A100-PCIE-40GB": GPUS["a100-40"], "NVIDIA H100 80GB": GPUS["h100"], "NVIDIA H200": GPUS["h200"],
    "NVIDIA B200": GPUS["b200"], "NVIDIA L4 ": GPUS["l4"],
}  # fmt: skip


def chip(device_kind: str) -> Chip | None:
    """The chip of a device, by the name that JAX gives it; None where its peaks are not in the table (CPUs).

    Example:
      >>> chip("NVIDIA H100 80GB HBM3").flops / 1e12, chip("cpu")
      (989.0, None)
    """
    names = [name for name in KINDS if f"{device_kind} ".startswith(name)]
    return KINDS[max(names, key=len)] if names else None
