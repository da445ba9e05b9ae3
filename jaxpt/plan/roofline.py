"""The least time that a step can take on given chips, which of their parts bounds it, and what a run then costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxpt.parallel.chips import CARBON, PUE
from jaxpt.plan.decode import DecodeResult
from jaxpt.plan.program import PlanResult
from jaxpt.plan.topologies import Topology


@dataclasses.dataclass(frozen=True)
class Bound:
    """A step's least times, in seconds, if each part of the chip did nothing else, and nothing waited for another."""

    flops: float
    memory: float
    ici: float
    dcn: float
    mfu: float
    """Highest possible share of the chips' peak that goes into the model's own FLOPs."""

    @property
    def seconds(self) -> float:
        """Of a step: that of the slowest part."""
        return max(self.times.values())

    @property
    def by(self) -> str:
        """The slowest part."""
        return max(self.times, key=self.times.__getitem__)

    @property
    def times(self) -> dict[str, float]:
        """{part: seconds}."""
        return {"FLOPs": self.flops, "HBM": self.memory, "ICI": self.ici, "DCN": self.dcn}


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

    Real steps take longer: parts wait for each other, and small products miss the peak.

    Args:
      measured: the program.
      topology: the chips.

    Returns:
      The bound.

    Paper: https://doi.org/10.1145/1498765.1498785
    """
    chip = topology.chip
    share = chip.devices  # a device is 1/share of a chip
    sent = {"ICI": 0, "DCN": 0}
    for collective in measured.collectives:
        sent[collective["network"]] += collective["sent"]
    times = {
        "flops": measured.program_flops / measured.devices / (chip.flops / share),
        "memory": measured.traffic / (chip.memory_bandwidth / share),
        "ici": sent["ICI"] / (chip.ici / share),
        "dcn": sent["DCN"] / (chip.dcn / share),
    }
    peak = measured.devices * chip.flops / share
    return Bound(**times, mfu=measured.model_flops / peak / max(times.values()))


def cost(
    steps: Sequence[tuple[float, int]],
    topology: Topology,
    price: float | None = None,
    watts: float | None = None,
    carbon: float = CARBON,
) -> Cost:
    """What a run takes if every step takes as long as its bound says.

    Args:
      steps: for each phase the seconds of a step and the number of steps.
      topology: the chips.
      price: US dollars for a chip-hour; the list's by default.
      watts: of a chip with its share of the host; the table's by default.
      carbon: kilograms of CO₂ for a kilowatt-hour.

    Returns:
      Days, chip-hours, money and CO₂.

    Example:
      >>> from jaxpt.plan.topologies import parse
      >>> round(cost([(0.36, 10_000)], parse("v5e:4x4"), price=2.0).dollars, 2)
      32.0
    """
    chip = topology.chip
    hours = sum(seconds * count for seconds, count in steps) / 3600
    chip_hours = hours * topology.chips
    energy = chip_hours * (chip.watts if watts is None else watts) / 1000 * PUE
    return Cost(hours / 24, chip_hours, chip_hours * (chip.price if price is None else price), energy * carbon)
