"""What a run took: tokens, FLOPs, seconds and on what, energy, money and CO₂, with the assumptions of each."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxpt.parallel import chips
from jaxpt.report.page.run_data import RunData

CPU_WATTS = 65.0
"""Assumed for a machine without an accelerator: the nominal power of a desktop processor."""
PARTS = ("training", "waiting for data", "evaluating, saving", "starting, ending")
STYLE = """
.times { display: flex; height: 1.1rem; border-radius: .25rem; overflow: hidden; min-width: 12rem }
.times span { print-color-adjust: exact }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px }
"""


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """What the figures rest on; None: of the chip's table."""

    watts: float | None = None
    """Of a chip with its share of the host; of a machine, where it has only CPUs."""
    price: float | None = None
    """US dollars for an hour of the same."""
    carbon: float = chips.CARBON
    """Kilograms of CO₂ for a kilowatt-hour."""
    load: float = 1.0
    """Share of the watts that is drawn, from start to end."""


DEFAULTS = Assumptions()


@dataclasses.dataclass(frozen=True)
class CostEstimate:
    """What is known of a run; None is not known."""

    tokens: float | None
    flops: float | None
    seconds: float | None
    is_whole: bool
    """True if the seconds are those of the whole run, not from the first to the last line of its metrics."""
    device: str
    """In words; "" where it is not known."""
    watts: float | None
    kwh: float | None
    dollars: float | None
    kg_co2: float | None


def estimate(
    receipt: Mapping[str, Any], lines: Sequence[tuple[Mapping[str, Any], float, float]], assumed: Assumptions
) -> CostEstimate:
    """What a run took.

    Args:
      receipt: its run.json; {} where there is none.
      lines: (a line of metrics, tokens of text up to it, FLOPs up to it).
      assumed: watts, price and carbon.
    """
    _, tokens, flops = lines[-1] if lines else ({}, 0.0, 0.0)
    times = [line["time"] for line, _, _ in lines if "time" in line]
    logged = times[-1] - times[0] if len(times) > 1 else None
    environment = receipt.get("environment") or {}
    devices = environment.get("devices") or {}
    kind, count = devices.get("kind", ""), devices.get("count", 1)
    chip, is_cpu = chips.chip(kind), devices.get("platform") == "cpu"
    units = count / chip.devices if chip else float(environment.get("processes", 1) if is_cpu else count)
    watts, price = assumed.watts, assumed.price
    if watts is None:
        watts = chip.watts if chip else CPU_WATTS if is_cpu else None
    if price is None and chip:
        price = chip.price
    seconds = receipt.get("wall_seconds", logged)
    hours = None if seconds is None or not (devices or assumed.watts or assumed.price) else seconds / 3600 * units
    overhead = 1.0 if is_cpu or not devices else chips.PUE
    watt_hours = _product(hours, watts, assumed.load, overhead)
    kwh = None if watt_hours is None else watt_hours / 1000
    return CostEstimate(
        tokens=tokens or None, flops=flops or None, seconds=seconds, is_whole="wall_seconds" in receipt,
        device=(f"{units:g} × {'CPU machine' if is_cpu else kind}" if devices else ""), watts=watts,
        kwh=kwh, dollars=_product(hours, price), kg_co2=_product(kwh, assumed.carbon),
    )  # fmt: skip


def _product(*factors: float | None) -> float | None:
    """None if a factor is not known."""
    return None if None in factors else math.prod(factors)


def total(estimates: Sequence[CostEstimate]) -> CostEstimate:
    """What several runs took together; None where it is not known of one of them."""

    def summed(name: str) -> float | None:
        figures = [getattr(estimate, name) for estimate in estimates]
        return None if None in figures else sum(figures)

    watts = [estimate.watts for estimate in estimates]
    return CostEstimate(
        is_whole=all(estimate.is_whole for estimate in estimates),
        device=", ".join(dict.fromkeys(estimate.device for estimate in estimates)),
        watts=None if None in watts else max(watts),
        **{name: summed(name) for name in ("tokens", "flops", "seconds", "kwh", "dollars", "kg_co2")},
    )


def grounds(estimates: Sequence[CostEstimate], assumed: Assumptions) -> dict[str, str]:
    """What each figure rests on, in words.

    Args:
      estimates: of the runs.
      assumed: watts, price and carbon.

    Returns:
      {"tokens", "flops", "seconds", "kwh", "dollars", "kg_co2": a sentence}
    """
    are_known = [
        estimate.watts is not None and (estimate.device or assumed.watts is not None) for estimate in estimates
    ]
    tables = [estimate for estimate in estimates if estimate.device and "CPU machine" not in estimate.device]
    cpus = any("CPU machine" in estimate.device for estimate in estimates)
    if assumed.watts is not None:
        power = f"{assumed.watts:g} W for each chip, or machine with CPUs alone, as given by --watts"
    else:
        each = [f"{watts:g} W for a chip with its share of the host, a rough figure of jaxpt's table"
                for watts in sorted({estimate.watts for estimate in tables if estimate.watts})]  # fmt: skip
        each += [f"{CPU_WATTS:g} W assumed for a machine with CPUs alone"] * cpus
        power = "; ".join(each) + (" (--watts changes it)" if each else "")
    if not all(are_known):
        power += ("; " if power else "") + "of a run whose device or its power is not known nothing is said; --watts"
    overhead = f", × {chips.PUE:g} for the data centre" if tables else ""
    if assumed.price is not None:
        price = f"${assumed.price:g} for an hour of a chip, or of a machine with CPUs alone, as given by --price"
    else:
        priced = any(estimate.dollars is not None for estimate in tables)
        each = ["on-demand list prices of about 2025, rough (--price changes them)"] * priced
        each += ["no price of a machine with CPUs is known: --price DOLLARS gives that of an hour"] * cpus
        price = "; ".join(each) or "the device is not known: --price and --watts tell of it"
    seconds = "all starts together, a killed one to its last heartbeat: data, compiling and evaluating included"
    if not all(estimate.is_whole for estimate in estimates):
        seconds += "; of a run without run.json from the first to the last line of its metrics"
    return {
        "tokens": "tokens of text that the training steps read, repetitions included, padding and special tokens not",
        "flops": "matrix products of training steps, forward × 3, attention as masked; evaluation not included",
        "seconds": seconds,
        "kwh": f"{power}{overhead}, drawn at {assumed.load:.0%} from start to end (--load)",
        "dollars": price,
        "kg_co2": f"{assumed.carbon:g} kg of CO₂ for a kWh (--carbon); the making of the hardware not included",
    }


# ---- where the time went, from the lines of metrics and the receipt -------------------------------------------------


def time_of_parts(run: RunData) -> dict[str, float]:
    """Where the time of a run went: seconds of each of `PARTS`; {} where the run has logged no step.

    Between the first and the last line of a stretch, which starts with a line of what a step takes, time is that of
    steps at the speed that was logged, or of evaluations and checkpoints. The rest of the receipt's time is before and
    after: preparing data, compiling, the last evaluations. Without a receipt the rest is not known.

    Args:
      run: the run.
    """
    steps = waiting = inside = 0.0
    stretches = _stretches(run)
    for lines in stretches:
        for before, line in itertools.pairwise(lines):
            inside += max(line["time"] - before["time"], 0.0)
        logged = [line for line in lines if line.get("speed/steps_per_second")]
        done = lines[0]["step"]
        for line in logged:
            taken = max(line["step"] - done, 0) / line["speed/steps_per_second"]
            steps, done = steps + taken, line["step"]
            waiting += taken * (line.get("speed/input_wait") or 0.0)
    if not steps:
        return {}
    whole = max(run.receipt.get("wall_seconds", 0.0), steps)
    durations = (steps - waiting, waiting, max(inside - steps, 0.0), whole - max(inside, steps))
    return {name: value for name, value in zip(PARTS, durations) if value > 0}


def _stretches(run: RunData) -> list[list[dict[str, float]]]:
    """The lines of each stretch without a pause."""
    stretches: list[list[dict[str, float]]] = []
    for line, _, _ in run.lines:
        if "time" not in line:
            continue
        if any(name.startswith("phase/") for name in line) or not stretches:
            stretches.append([])
        stretches[-1].append(line)
    return stretches


def time_bar(parts: dict[str, float]) -> str:
    """The parts as a bar: HTML."""
    whole = sum(parts.values())
    return f'<div class="times">{"".join(_part(name, value / whole) for name, value in parts.items())}</div>'


def swatch(name: str) -> str:
    """The colour of a part: HTML."""
    return f'<span class="swatch" style="background: var(--c{PARTS.index(name)})"></span>'


def _part(name: str, share: float) -> str:
    colour = PARTS.index(name)
    return f'<span style="width: {share:.2%}; background: var(--c{colour})" title="{name}: {share:.1%}"></span>'
