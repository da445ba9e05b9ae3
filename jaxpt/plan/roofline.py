"""The least time that a step can take on given chips, which of their parts bounds it, and what a run then costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxpt.parallel.chips import GPUS, PUE
from jaxpt.plan.decode import DecodeResult
from jaxpt.plan.program import PlanResult
from jaxpt.plan.topologies import Topology

LATENCY = 1e-6
"""Seconds that a collective takes at the least, whatever its size; about that of one hop between chips."""
GPU_EFFICIENCY, GPU_OPERATION = 0.74, 7.5e-6
"""Share of a GPU's peaks that its operations reach, and the seconds that each takes besides: fitted on steps of GPT-2
124M and Llama 1B on one H200 (see README.md)."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """A step's least times, in seconds: of each part of the chip for all that it has to do, and of the step."""

    times: dict[str, float]
    """{part of the chip: seconds}."""
    mfu: float
    """Highest possible share of the chips' peak that goes into the model's own FLOPs."""
    shares: dict[str, float]
    """{part: time in which the step waits for it}."""
    estimate: float | None = None
    """Seconds that a step is likely to take; None where nothing was measured on such chips."""

    @property
    def seconds(self) -> float:
        """Of a step."""
        return sum(self.shares.values())

    @property
    def by(self) -> str:
        """The part that the step waits for most."""
        return max(self.shares, key=self.shares.__getitem__)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a whole run takes at the least."""

    days: float
    chip_hours: float
    dollars: float
    kg_co2: float


def bound(measured: PlanResult | DecodeResult, topology: Topology) -> Bound:
    """The roofline of a step.

        FLOPs: program FLOPs / devices / peak    HBM: bytes to and from memory / bandwidth
        ICI, DCN: bytes that a device sends inside of its slice, and to other slices / bandwidth

    An operation takes the longer one of its FLOPs' and its bytes' time, and operations follow each other; collectives
    overlap with those of the same loop (or of the program outside of loops). The times of the regions add up: a phase
    bound by memory does not hide behind another one's FLOPs. Real steps take longer: small products miss the peak. On
    GPUs the estimate says how much: the same sum with `GPU_EFFICIENCY` of the peaks, and `GPU_OPERATION` for each
    operation that takes or gives bytes.

    Args:
      measured: the program; where it has no regions (decoding) each part of the chip is busy by itself.
      topology: the chips.

    Returns:
      The bound.

    Paper: https://doi.org/10.1145/1498765.1498785
    """
    chip = topology.chip
    share = chip.devices  # a device is 1/share of a chip
    peak, bandwidth = chip.flops / share, chip.memory_bandwidth / share
    links = {"ICI": topology.ici / share, "DCN": topology.dcn / share}
    sent = {"ICI": 0, "DCN": 0}
    for collective in measured.collectives:
        sent[collective["network"]] += collective["sent"]
    times = {
        "FLOPs": measured.program_flops / measured.devices / peak,
        "HBM": measured.traffic / bandwidth,
        **{name: sent[name] / links[name] for name in sent},
    }
    slowest = max(times, key=times.__getitem__)
    shares = _waits(measured, peak, bandwidth, links)
    estimate = None
    if chip in GPUS.values() and getattr(measured, "regions", ()):
        likely = _waits(measured, GPU_EFFICIENCY * peak, GPU_EFFICIENCY * bandwidth, links, GPU_OPERATION)
        estimate = max(sum(likely.values()), times[slowest])
    if sum(shares.values()) < times[slowest]:  # as where a program's FLOPs are not all found in it
        shares = {**dict.fromkeys(times, 0.0), slowest: times[slowest]}
    mfu = measured.model_flops / measured.devices / peak / sum(shares.values())
    return Bound(times, mfu, shares, estimate)


def _waits(
    measured: PlanResult | DecodeResult, peak: float, bandwidth: float, links: dict[str, float], operation: float = 0.0
) -> dict[str, float]:
    """{part: seconds in which a step waits for it}, operation by operation; each takes `operation` seconds besides."""
    waits = dict.fromkeys(("FLOPs", "HBM", *links), 0.0)
    kernels = _kernel_intensity(measured)
    for region in getattr(measured, "regions", ()):
        ours = dict.fromkeys(waits, 0.0)
        for flops, moved in region["work"]:
            flops = -flops * kernels if flops < 0 else flops
            part = "FLOPs" if flops / peak > moved / bandwidth else "HBM"
            ours[part] += max(flops / peak, moved / bandwidth) + operation * (moved > 0)
        network = {name: size / links[name] for name, size in region["sent"].items()}
        waiting = sum(network.values()) + LATENCY * region["messages"]
        busy = ours["FLOPs"] + ours["HBM"]
        if waiting > busy:  # all that is computed hides behind what is sent
            ours = {**dict.fromkeys(waits, 0.0), max(network, key=network.__getitem__): waiting}
        for name in waits:
            waits[name] += region["times"] * ours[name]
    return waits


def _kernel_intensity(measured: PlanResult | DecodeResult) -> float:
    """FLOPs for a byte that kernels take or give: what is counted in the traced program and not found in the products
    of the other, shared out among all kernels."""
    work = [(r["times"], *costs) for r in getattr(measured, "regions", ()) for costs in r["work"]]
    taken = -sum(times * flops for times, flops, _ in work if flops < 0)
    product_flops = sum(times * flops for times, flops, _ in work if flops > 0)
    return max(0.0, measured.program_flops / measured.devices - product_flops) / taken if taken else 0.0


def cost(steps: Sequence[tuple[float, int]], topology: Topology, price: float, watts: float, carbon: float) -> Cost:
    """What a run takes if every step takes as long as its bound says.

    Args:
      steps: for each phase the seconds of a step and the number of steps.
      topology: the chips.
      price: US dollars for a chip-hour.
      watts: of a chip with its share of the host.
      carbon: kilograms of CO₂ for a kilowatt-hour.

    Returns:
      Days, chip-hours, money and CO₂.

    Example:
      >>> from jaxpt.plan.topologies import parse
      >>> round(cost([(0.36, 10_000)], parse("v5e:4x4"), 2.0, watts=300, carbon=0.4).dollars, 2)
      32.0
    """
    hours = sum(seconds * count for seconds, count in steps) / 3600
    chip_hours = hours * topology.chips
    return Cost(hours / 24, chip_hours, chip_hours * price, chip_hours * watts / 1000 * PUE * carbon)
