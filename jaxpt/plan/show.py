"""A plan on a terminal: tables of what the step takes, of its buffers, its collectives, and of where parameters lie."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpt.config import Config
from jaxpt.plan.search import Trial, words

PARTS = {
    "parameters": "parameters",
    "optimizer": "optimizer state",
    "average": "averaged parameters",
    "batch": "batch",
    "temporaries": "activations, gradients, other temporaries",
}

GPU_NAMES = {"ICI": "NVLink", "DCN": "network"}
"""Of what joins GPUs inside of a machine, and machines."""

FAULTS = {
    "no alias": "is kept beside its successor, not updated in place",
    "copy": "is copied, not updated in place",
}


def plan(report: dict[str, Any], console: Console, shardings: bool = False) -> None:
    """Prints a report of `jaxpt.plan.command`."""
    phases = report["phases"]
    first = phases[0]
    mesh = " × ".join(f"{axis} {size}" for axis, size in first["mesh"].items() if size > 1) or "one device"
    _print(
        console,
        f"{report['model']} · {report['objective']} · {first['parameters']:,} parameters · {report['where']}: "
        f"{first['devices']} × {first['device_kind']}, mesh {mesh}, {first['dtype']}, remat {report['remat']}, "
        f"grad_accum_steps {report['grad_accum_steps']}, compiled by {first['compiler']}",
    )
    console.print(_step(phases))
    worst = max(phases, key=lambda phase: phase["total"])
    console.print(_buffers(worst))
    if worst["collectives"]:
        console.print(_collectives(worst))
    if shardings:
        console.print(_placements(first))
    for name in first["large_replicated_params"]:
        axes = next(p["axes"] for p in first["placements"] if p["name"] == name)
        _print(
            console,
            f"warning: {name} is fully replicated: none of its axes {', '.join(map(str, axes))} is sharded by this "
            f"mesh; mesh.rules.{next((a for a in axes if a), 'embed')}=[fsdp] would shard it",
        )
    _state(phases, console)
    if report.get("cost"):
        _cost(report, console)


def decode(figures: dict[str, Any], console: Console) -> None:
    """Prints what a token step of decoding takes."""
    mesh = " × ".join(f"{axis} {size}" for axis, size in figures["mesh"].items() if size > 1) or "one device"
    _print(
        console,
        f"{figures['model']} · {figures['parameters']:,} parameters · {figures['where']}: "
        f"{figures['devices']} × {figures['device_kind']}, mesh {mesh}, {figures['dtype']}",
    )
    largest = figures["largest"]
    columns = [figures] if largest is None or largest["rows"] == figures["rows"] else [figures, largest]
    names = ["", "largest batch that fits"][: len(columns)]
    table = Table("decoding, one token of each row", *names, box=None, title_justify="left", pad_edge=False)

    def row(name: str, value: Any, style: str = "") -> None:
        table.add_row(name, *[Text(value(column)) for column in columns], style=style)

    encoder = figures["encoder"]
    row("rows × length", lambda d: f"{d['rows']} × " + (f"{encoder}/" if encoder else "") + f"{d['length']}")
    row("weights of a device", lambda d: _bytes(d["weights"]))
    row("  of the loop, padded", lambda d: f"{_bytes(d['weights_read'])}, {_bytes(d['weights_padded'])}")
    row("cache of a device, padded", lambda d: f"{_bytes(d['cache'])}, {_bytes(d['cache_padded'])}")
    row("memory of a device", lambda d: f"{_bytes(d['total'])} of {_bytes(d['limit'])}{_share(d)}", "bold")
    row("moved (estimate), padded", lambda d: f"{_bytes(d['traffic'])}, {_bytes(d['traffic_padded'])}")
    row("  / (weights of the loop + cache)", lambda d: f"{d['ratio']:.3f}", "bold")
    row("  for a token, by all devices", lambda d: _bytes(d["token_bytes"]))
    row("FLOPs of a device", lambda d: _number(d["program_flops"] / d["devices"]))
    row("sent by a device", lambda d: _bytes(sum(c["sent"] for c in d["collectives"])))
    if all("bound" in column for column in columns):
        called = _called(figures)
        for part, name in called.items():
            row(f"  least time, {name}", lambda d, part=part: duration(d["bound"]["times"][part]))
        row("least time", lambda d: f"{duration(d['bound']['seconds'])}, bounded by {called[d['bound']['by']]}", "bold")
        row("tokens/s at the most", lambda d: f"{d['tokens_per_second']:,.0f}")
    row("compiled in", lambda d: f"{d['seconds']:.0f} s")
    console.print(table)
    for column in columns:
        _decode_faults(column, console)
    if largest is not None:
        _print(
            console,
            f"largest batch: {largest['rows']} rows, by linear extrapolation from {figures['compiled']} compiled "
            "programs, itself one of them; what prefill takes for a time is not counted",
        )


def _decode_faults(figures: dict[str, Any], console: Console) -> None:
    for copy in figures["cache_copies"]:
        size = f"{copy['count']} × {_bytes(copy['bytes'])}"
        _print(console, f"warning: {figures['rows']} rows: {copy['name']} copies the cache: {size} ({copy['path']})")
    for table in figures["gathered_tables"]:
        _print(console, f"warning: {table['name']} is gathered: {table['by']} of {table['shape']} ({table['path']})")
    if not figures["cache_copies"] + figures["gathered_tables"]:
        _print(console, f"{figures['rows']} rows: the cache is updated in place, no vocabulary table is gathered")


def _step(phases: Sequence[dict[str, Any]]) -> Table:
    names = [f"phase {phase['phase'] + 1}" if len(phases) > 1 else "" for phase in phases]
    table = Table("a step", *names, box=None, title_justify="left", pad_edge=False)

    def row(name: str, value: Any, style: str = "") -> None:
        table.add_row(name, *[Text(value(phase)) for phase in phases], style=style)

    row("rows × length, tokens", lambda p: f"{p['rows']} × {p['length']}, {p['tokens']:,}")
    row("steps", lambda p: f"{p['steps']:,}")
    for key, name in PARTS.items():
        if any(phase["memory"][key] for phase in phases):
            row(f"  {name}", lambda p, key=key: _bytes(p["memory"][key]))
    row("memory of a device", lambda p: f"{_bytes(p['total'])} of {_bytes(p['limit'])}{_share(p)}", "bold")
    row("FLOPs of a device", lambda p: _number(p["program_flops"] / p["devices"]))
    row("  needed by the model (6·N·D + attention)", lambda p: _number(p["model_flops"] / p["devices"]))
    row("  taken / needed", lambda p: f"{p['program_flops'] / p['model_flops']:.3f}")
    row("to and from memory (estimate)", lambda p: _bytes(p["traffic"]))
    row("sent by a device", lambda p: _bytes(sum(c["sent"] for c in p["collectives"])))
    if all("bound" in phase for phase in phases):
        called = _called(phases[0])
        for part, name in called.items():
            row(f"  least time, {name}", lambda p, part=part: duration(p["bound"]["times"][part]))
        row(
            "least time of a step",
            lambda p: f"{duration(p['bound']['seconds'])}, bounded by {called[p['bound']['by']]}",
            "bold",
        )
        row("  of it waiting for", lambda p: _shares(p["bound"]["shares"], called))
        if all(phase["bound"]["estimate"] for phase in phases):
            row("likely time of a step", lambda p: f"{duration(p['bound']['estimate'])} (fitted on one H200)", "bold")
        row("highest possible MFU", lambda p: f"{p['bound']['mfu']:.1%}")
        row("tokens/s at the most", lambda p: f"{p['tokens'] / p['bound']['seconds']:,.0f}")
    row("compiled in", lambda p: f"{p['seconds']:.0f} s")
    return table


def _called(phase: dict[str, Any]) -> dict[str, str]:
    """{part of the roofline: its name on these devices}."""
    names = {part: part for part in ("FLOPs", "HBM", "ICI", "DCN")}
    return names | (GPU_NAMES if phase["platform"] == "gpu" else {})


def _shares(shares: dict[str, float], called: dict[str, str]) -> str:
    """FLOPs 40.3 ms, HBM 37.5 ms: the parts of a step's least time, which is their sum."""
    return ", ".join(f"{called[name]} {duration(seconds)}" for name, seconds in shares.items() if seconds)


def _buffers(phase: dict[str, Any]) -> Table:
    table = Table("\nlargest buffers of a device at the peak", "\nshape", "\nsize", box=None, pad_edge=False)
    alike = collections.Counter((b["name"], b["shape"], b["bytes"]) for b in phase["buffers"])
    for (name, shape, size), count in alike.items():
        times = f"{count} × " if count > 1 else ""
        table.add_row(Text(name), Text(shape), f"{times}{_bytes(size)}")
    return table


def _collectives(phase: dict[str, Any]) -> Table:
    names = ("collectives of a step", "axes", "over", "count", "arrays", "a device sends")
    table, called = Table(*(f"\n{name}" for name in names), box=None, pad_edge=False), _called(phase)
    for collective in phase["collectives"]:
        axes = " × ".join(collective["axes"]) or "others"
        network = "-" if phase["platform"] == "cpu" else called[collective["network"]]
        table.add_row(
            collective["kind"],
            axes,
            network,
            str(collective["count"]),
            _bytes(collective["bytes"]),
            _bytes(collective["sent"]),
        )
    return table


def _placements(phase: dict[str, Any]) -> Table:
    table = Table("\nparameter", "\nshape", "\nlogical axes", "\nmesh axes", "\nof a device", box=None, pad_edge=False)
    for parameter in phase["placements"]:
        table.add_row(
            Text(parameter["name"]),
            "×".join(map(str, parameter["shape"])),
            ", ".join(str(axis or "-") for axis in parameter["axes"]),
            ", ".join("-" if entry is None else "+".join(entry) for entry in parameter["placement"]),
            _bytes(parameter["bytes"]),
        )
    return table


def _state(phases: Sequence[dict[str, Any]], console: Console) -> None:
    faults = {
        (fault["name"], fault["bytes"], fault["reason"])
        for phase in phases
        for fault in phase["copied_donated_buffers"]
    }
    for name, size, reason in sorted(faults, key=lambda fault: -fault[1]):
        if reason in FAULTS:
            _print(console, f"warning: {name} of {_bytes(size)} {FAULTS[reason]}")
    if not any(reason in FAULTS for *_, reason in faults):
        others = [name for name, _, reason in faults]
        _print(
            console,
            "\nstate: donated in place"
            + (
                f"; copied to another layout, which the compiler chose for the update: {', '.join(others)}"
                if others
                else ""
            ),
        )


def _cost(report: dict[str, Any], console: Console) -> None:
    cost, assumptions = report["cost"], report["assumptions"]
    _print(
        console,
        f"\n{_number(report['tokens'])} tokens: at least {_span(cost['days'])}, "
        f"{rounded(cost['chip_hours'])} chip-hours, ${rounded(cost['dollars'])}, {rounded(cost['kg_co2'])} kg CO₂\n"
        f"at ${assumptions['dollars_per_chip_hour']:.2f} a chip-hour (--price), {assumptions['watts_per_chip']:.0f} W "
        f"a chip (--watts), PUE {assumptions['pue']}, {assumptions['kg_co2_per_kwh']} kg CO₂ a kWh (--carbon)",
    )


def tried(one: Trial) -> str:
    """A line on settings that were tried."""
    return f"{words(one.settings)}: {one.reason}"


def ranked(config: Config, found: Sequence[Trial], console: Console) -> None:
    """Prints what a search found, the best first, with the settings that differ from the recipe's."""
    table = Table("step", "memory", "rows a device", "settings", "why", box=None, pad_edge=False)
    for trial in found:
        measured = trial.measured
        rows = "-"
        if measured is not None:
            accumulation = int(trial.settings.get("train.grad_accum_steps", config.train.grad_accum_steps))
            rows = str(measured.rows // (measured.mesh["data"] * measured.mesh["fsdp"]) // accumulation)
        table.add_row(
            "-" if trial.seconds == float("inf") else duration(trial.seconds),
            "-" if measured is None else _bytes(measured.total),
            rows,
            Text(" ".join(f"{key}={value}" for key, value in trial.settings.items() if value != _own(config, key))),
            Text(trial.reason),
        )
    console.print(table)


def _own(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False)


def _bytes(value: float) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def _share(phase: dict[str, Any]) -> str:
    return f" ({phase['total'] / phase['limit']:.0%})" + ("" if phase["total"] <= phase["limit"] else ": DOES NOT FIT")


def duration(seconds: float) -> str:
    """In seconds, or in milliseconds what takes less than one."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _span(days: float) -> str:
    units = ((1.0, "days"), (1 / 24, "hours"), (1 / 1440, "minutes"))
    size, unit = next((pair for pair in units if days >= pair[0]), (1 / 86400, "seconds"))
    return f"{rounded(days / size)} {unit}"


def rounded(value: float) -> str:
    """A number to three digits, or to whole ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float) -> str:
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.4g} {letter}"
    return f"{value:.4g}"
