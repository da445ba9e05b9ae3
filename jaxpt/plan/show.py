"""A plan on a terminal: tables of what the step takes, of its buffers, its collectives, and of where parameters lie."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jaxpt.config import Config, dump, phase_starts
from jaxpt.config.plain import leaves
from jaxpt.parallel import rules
from jaxpt.plan.search import Trial, words
from jaxpt.runtime.terminal import console, print_table

PARTS = {
    "parameters": "parameters",
    "optimizer": "optimizer state",
    "average": "averaged parameters",
    "second_state": "second state (train.recompute_every)",
    "batch": "batch",
    "temporaries": "activations, gradients, other temporaries",
}

GPU_NAMES = {"ICI": "NVLink", "DCN": "network"}
"""Names of the links between GPUs: inside of a machine, and between machines."""

FAULTS = {
    "no alias": "is kept beside its successor, not updated in place: it needs that memory twice",
    "copy": "is copied before it is updated: it needs that memory twice for a moment, and the time to copy it",
}


def plan(report: dict[str, Any], shardings: bool = False) -> None:
    """Prints a report of `jaxpt.plan.command`."""
    phases = report["phases"]
    first = phases[0]
    total, active = first["parameters"], first["active_parameters"] or first["parameters"]
    parameters = f"{total:,} parameters" + (f", {active:,} of them for a token" if active < total else "")
    _print(
        f"{report['model']} · {report['objective']} · {parameters} · {report['where']}: "
        f"{_devices(first)}, remat {report['remat']}, "
        f"grad_accum_steps {report['grad_accum_steps']}, compiled by {first['compiler']}"
    )
    names = [f"phase {phase['phase'] + 1}" if len(phases) > 1 else "" for phase in phases]
    _print_figures("a step", names, phases, _step(phases))
    worst = max(phases, key=lambda phase: phase["total"])
    _print_table(("largest buffers of a device at the peak", "shape", "size"), _buffers(worst))
    if worst["collectives"]:
        heads = ("collectives of a step", "axes", "over", "count", "arrays", "a device sends")
        _print_table(heads, _collectives(worst))
    if shardings:
        _print_table(("parameter", "shape", "logical axes", "mesh axes", "of a device"), _placements(first))
    for name in first["large_replicated_params"]:
        axes = next(p["axes"] for p in first["placements"] if p["name"] == name)
        _print(
            f"warning: {name} is fully replicated: none of its axes {', '.join(map(str, axes))} is sharded by this "
            f"mesh; mesh.rules.{next((a for a in axes if a), 'embed')}=[fsdp] would shard it"
        )
    _print_state(phases)
    if first.get("bound") and first["bound"]["by"] in ("ICI", "DCN"):
        _print(f"bounded by {_called(first)[first['bound']['by']]}: --search looks for a mesh that sends less")
    if report.get("cost"):
        _print_cost(report)


def decode(figures: dict[str, Any]) -> None:
    """Prints what a token step of decoding takes."""
    _print(f"{figures['model']} · {figures['parameters']:,} parameters · {figures['where']}: {_devices(figures)}")
    largest = figures["largest"]
    columns = [figures] if largest is None or largest["rows"] == figures["rows"] else [figures, largest]
    names = ["", "largest batch that fits"][: len(columns)]
    _print_figures("decoding, one token of each row", names, columns, _token_step(columns))
    for column in columns:
        rows = column["rows"]
        for copy in column["cache_copies"]:
            size = f"{copy['count']} × {_bytes(copy['bytes'])}"
            _print(f"warning: {rows} rows: {copy['name']} copies the cache: {size} ({copy['path']})")
        for table in column["gathered_tables"]:
            _print(f"warning: {table['name']} is gathered: {table['by']} of {table['shape']} ({table['path']})")
        if not column["cache_copies"] + column["gathered_tables"]:
            _print(f"{rows} rows: the cache is updated in place, no vocabulary table is gathered")
    if largest is not None:
        _print(
            f"largest batch: {largest['rows']} rows, by linear extrapolation from {figures['compiled']} compiled "
            "programs, itself one of them; what prefill takes for a time is not counted"
        )


def _devices(figures: dict[str, Any]) -> str:
    mesh = " × ".join(f"{axis} {size}" for axis, size in figures["mesh"].items() if size > 1) or "one device"
    return f"{figures['devices']} × {figures['device_kind']}, mesh {mesh}, {figures['dtype']}"


_Row = tuple[str, Callable[[dict[str, Any]], str]]
"""The name of a figure, and its text from what was measured."""


def _print_figures(title: str, names: Sequence[str], columns: Sequence[dict[str, Any]], rows: Iterable[_Row]) -> None:
    """Prints a line for each figure, with a column for each program."""
    print_table((title, *names), [(name, *map(to_text, columns)) for name, to_text in rows])


def _token_step(columns: Sequence[dict[str, Any]]) -> Iterator[_Row]:
    encoder = columns[0]["encoder"]
    yield "rows × length", lambda d: f"{d['rows']} × " + (f"{encoder}/" if encoder else "") + f"{d['length']}"
    yield "weights of a device", lambda d: _bytes(d["weights"])
    yield "  of the loop, padded", lambda d: f"{_bytes(d['weights_read'])}, {_bytes(d['weights_padded'])}"
    yield "cache of a device, padded", lambda d: f"{_bytes(d['cache'])}, {_bytes(d['cache_padded'])}"
    yield "memory of a device", _memory
    yield "moved (estimate), padded", lambda d: f"{_bytes(d['traffic'])}, {_bytes(d['traffic_padded'])}"
    yield "  / (weights of the loop + cache)", lambda d: f"{d['ratio']:.3f}"
    yield "  for a token, by all devices", lambda d: _bytes(d["token_bytes"])
    yield "FLOPs of a device", lambda d: _number(d["program_flops"] / d["devices"])
    yield "sent by a device", _sent
    yield from _least_times(columns, "least time")
    if all("bound" in column for column in columns):
        yield "tokens/s at the most", lambda d: f"{d['tokens_per_second']:,.0f}"
    yield "compiled in", lambda d: f"{d['seconds']:.0f} s"


def _step(phases: Sequence[dict[str, Any]]) -> Iterator[_Row]:
    yield "rows × length, tokens", lambda p: f"{p['rows']} × {p['length']}, {p['tokens']:,}"
    yield "steps", lambda p: f"{p['steps']:,}"
    for key, name in PARTS.items():
        if any(phase["memory"][key] for phase in phases):
            yield f"  {name}", lambda p, key=key: _bytes(p["memory"][key])
    yield "memory of a device", _memory
    yield "FLOPs of a device", lambda p: _number(p["program_flops"] / p["devices"])
    multiplies = all(phase["model_flops"] for phase in phases)  # GloVe has no matrix products
    if multiplies:
        yield "  needed by the model (6·N·D + attention)", lambda p: _number(p["model_flops"] / p["devices"])
        yield "  taken / needed", lambda p: f"{p['program_flops'] / p['model_flops']:.3f}"
    yield "to and from memory (estimate)", lambda p: _bytes(p["traffic"])
    yield "sent by a device", _sent
    if phases[0]["imbalance"]:
        yield "  tokens to experts and back", lambda p: _bytes(tokens_sent(p))
        yield "imbalance of experts that fits", _imbalance
    yield from _least_times(phases, "least time of a step")
    if all("bound" in phase for phase in phases):
        called = _called(phases[0])
        yield "  of it waiting for", lambda p: _shares(p["bound"]["shares"], called)
        if all(phase["bound"]["estimate"] for phase in phases):
            yield "likely time of a step", lambda p: f"{duration(p['bound']['estimate'])} (fitted on one H200)"
        if multiplies:
            yield "highest possible MFU", lambda p: f"{p['bound']['mfu']:.1%}"
        yield "tokens/s at the most", lambda p: f"{p['tokens'] / p['bound']['seconds']:,.0f}"
    yield "compiled in", lambda p: f"{p['seconds']:.0f} s"


def _least_times(columns: Sequence[dict[str, Any]], name: str) -> Iterator[_Row]:
    """The times of the parts of the chip, where they are known, and of all together under a name."""
    if all("bound" in column for column in columns):
        called = _called(columns[0])
        for part, device in called.items():
            yield f"  least time, {device}", lambda d, part=part: duration(d["bound"]["times"][part])
        yield name, lambda d: f"{duration(d['bound']['seconds'])}, bounded by {called[d['bound']['by']]}"


def _called(phase: dict[str, Any]) -> dict[str, str]:
    """{part of the roofline: its name on these devices}."""
    names = {part: part for part in ("FLOPs", "HBM", "ICI", "DCN")}
    return names | (GPU_NAMES if phase["platform"] == "gpu" else {})


def _shares(shares: dict[str, float], called: dict[str, str]) -> str:
    """The parts of a step's least time, which is their sum, but those below 0.1 % of it.

    Example:
      >>> _shares({"FLOPs": 0.0403, "HBM": 3e-10, "ICI": 0.0375}, {"FLOPs": "FLOPs", "HBM": "HBM", "ICI": "NVLink"})
      'FLOPs 40.3 ms, NVLink 37.5 ms'
    """
    min_seconds = sum(shares.values()) / 1000
    return ", ".join(f"{called[name]} {duration(seconds)}" for name, seconds in shares.items() if seconds > min_seconds)


def _buffers(phase: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    alike = collections.Counter((b["name"], b["shape"], b["bytes"]) for b in phase["buffers"])
    for (name, shape, size), count in alike.items():
        yield name, shape, (f"{count} × " if count > 1 else "") + _bytes(size)


def _collectives(phase: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    called = _called(phase)
    for c in phase["collectives"]:
        axes = " × ".join(c["axes"]) or "others"
        network = "-" if phase["platform"] == "cpu" else called[c["network"]]
        kind = f"{c['kind']} of tokens to experts" if c.get("has_tokens") else c["kind"]
        yield kind, axes, network, str(c["count"]), _bytes(c["bytes"]), _bytes(c["sent"])


def _placements(phase: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for parameter in phase["placements"]:
        shape, axes = "×".join(map(str, parameter["shape"])), ", ".join(axis or "-" for axis in parameter["axes"])
        mesh_axes = ", ".join("-" if entry is None else "+".join(entry) for entry in parameter["placement"])
        yield parameter["name"], shape, axes, mesh_axes, _bytes(parameter["bytes"])


def _print_state(phases: Sequence[dict[str, Any]]) -> None:
    buffers = [buffer for phase in phases for buffer in phase["copied_donated_buffers"]]
    faults = {(buffer["name"], buffer["bytes"], buffer["reason"]) for buffer in buffers}
    for name, size, reason in sorted(faults, key=lambda fault: -fault[1]):
        if reason in FAULTS:
            _print(f"warning: {name} of {_bytes(size)} {FAULTS[reason]}")
    if not any(reason in FAULTS for *_, reason in faults):
        names = ", ".join(name for name, *_ in faults)
        copied = f"; copied to another layout, which the compiler chose for the update: {names}" if names else ""
        _print(f"\nstate: donated in place{copied}")


def _print_cost(report: dict[str, Any]) -> None:
    cost, assumptions, phases = report["cost"], report["assumptions"], report["phases"]
    likely = ""
    if all(phase["bound"]["estimate"] for phase in phases):
        bound_seconds = sum(phase["steps"] * phase["bound"]["seconds"] for phase in phases)
        ratio = sum(phase["steps"] * phase["bound"]["estimate"] for phase in phases) / bound_seconds
        likely = f"by the likely time of a step {_span(ratio * cost['days'])}, ${rounded(ratio * cost['dollars'])}\n"
    _print(
        f"\n{_number(report['tokens'])} tokens: at least {_span(cost['days'])}, "
        f"{rounded(cost['chip_hours'])} chip-hours, ${rounded(cost['dollars'])}, {rounded(cost['kg_co2'])} kg CO₂\n"
        f"{likely}"
        f"at ${assumptions['dollars_per_chip_hour']:.2f} a chip-hour (--price), {assumptions['watts_per_chip']:.0f} W "
        f"a chip (--watts), PUE {assumptions['pue']}, {assumptions['kg_co2_per_kwh']} kg CO₂ a kWh (--carbon)"
    )


def ranked(config: Config, trials: Sequence[Trial]) -> None:
    """Prints what a search found for the last phase, the best first, with what differs from the recipe's settings."""
    phases = len(phase_starts(config))
    step = f"step of phase {phases}" if phases > 1 else "step"
    print_table((step, "memory", "rows a device", "settings", "why"), [_ranked(config, trial) for trial in trials])


def _ranked(config: Config, trial: Trial) -> tuple[str, ...]:
    measured, memory, rows = trial.measured, "-", "-"
    if measured is not None:
        accumulation = int(trial.settings.get("train.grad_accum_steps", config.train.grad_accum_steps))
        memory = _bytes(measured.total)
        ways = math.prod(measured.mesh[axis] for axis in rules.BATCH)
        rows = str(measured.rows // ways // accumulation)
    tree = dict(leaves(dump(config)))
    changed = words({key: setting for key, setting in trial.settings.items() if setting != tree[key]})
    return "-" if trial.seconds == math.inf else duration(trial.seconds), memory, rows, changed, trial.reason


def _print(text: str) -> None:
    console().print(text)


def _print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print()
    print_table(heads, rows)


def tokens_sent(phase: dict[str, Any]) -> int:
    """Bytes that a device sends in a step to bring tokens to their experts, and what these return back."""
    return sum(collective["sent"] for collective in phase["collectives"] if collective["has_tokens"])


def _imbalance(phase: dict[str, Any]) -> str:
    return f"any, up to {phase['imbalance']:.3g} × the mean" if _fits(phase) else "none"


def _fits(figures: dict[str, Any]) -> bool:
    return figures["total"] <= figures["limit"]


def _memory(figures: dict[str, Any]) -> str:
    share = f" ({figures['total'] / figures['limit']:.0%})"
    fits = "" if _fits(figures) else ": DOES NOT FIT"
    return f"{_bytes(figures['total'])} of {_bytes(figures['limit'])}{share}{fits}"


def _sent(figures: dict[str, Any]) -> str:
    return _bytes(sum(collective["sent"] for collective in figures["collectives"]))


def _bytes(value: float) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


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
