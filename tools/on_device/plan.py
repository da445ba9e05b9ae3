"""What `jaxpt plan` says of each timed case on one H100 and H200: memory, the least time, and the estimated one.

Needs no GPU, but the compiler for GPUs (extra plan-gpu or cuda).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import shared

KINDS = ("h100", "h200")


def has_compiler() -> bool:
    return importlib.util.find_spec("jax_cuda13_plugin") is not None


def prediction(name: str) -> dict[str, Any]:
    """The plan of a timed case, compiled for an H100; in a dry run for this machine."""
    from jaxpt.plan import program, roofline, topologies

    planned = program.measure(shared.timed_config(name), program.Target(None if shared.IS_DRY else "h100:1"))
    times = {}
    for kind in KINDS:
        bound = roofline.bound(planned, topologies.parse(f"{kind}:1", 1))
        times[kind] = {
            "bound_seconds": bound.seconds, "bound_by": bound.by, "parts": bound.times,
            "estimate_seconds": bound.estimate,
        }  # fmt: skip
    return {
        "total_bytes": planned.total, "limit_bytes": planned.limit, "memory": planned.memory, "times": times,
        "model_flops": planned.model_flops, "program_flops": planned.program_flops, "traffic": planned.traffic,
        "compiler": planned.compiler, "compile_seconds": planned.seconds,
    }  # fmt: skip


def describe(planned: dict[str, Any], kinds: tuple[str, ...] = KINDS) -> str:
    """A prediction for people: lower bound and estimate are two numbers."""
    texts = [f"{planned['total_bytes'] / 2**30:.2f} GiB"]
    for kind in kinds:
        time = planned["times"][kind]
        estimate = time["estimate_seconds"]
        text = f"on {kind} at least {1e3 * time['bound_seconds']:.1f} ms ({time['bound_by']})"
        texts.append(text + (f", estimated {1e3 * estimate:.1f} ms" if estimate else ""))
    return ", ".join(texts)


def known(name: str) -> dict[str, Any] | None:
    """The prediction of a case, if `--pack` or the step `plan` made one."""
    for path in (shared.NEW_PREDICTIONS,) if shared.IS_DRY else (shared.PREDICTIONS, shared.NEW_PREDICTIONS):
        if path.is_file():
            planned = json.loads(path.read_text("utf-8")).get(name)
            if planned and "error" not in planned:
                return planned
    return None


def kind_of(device: str) -> str | None:
    """Which of `KINDS` a device is.

    Example:
      >>> kind_of("NVIDIA H100 80GB HBM3"), kind_of("cpu")
      ('h100', None)
    """
    return next((kind for kind in KINDS if kind in device.lower()), None)


def write(path: Path, report: shared.Report) -> None:
    """Plans all timed cases; the file is written after each."""
    plans: dict[str, Any] = {}
    for name in ["bert"] if shared.IS_DRY else shared.TIMED:
        try:
            plans[name] = prediction(name)
            report.add(name, plans[name], f"{name}: {describe(plans[name])}")
        except Exception as error:
            plans[name] = {"error": shared.describe(error)}
            report.add(name, plans[name], f"{name}: {plans[name]['error']}", is_good=False)
        path.write_text(json.dumps(plans, indent=1, default=float) + "\n", "utf-8")
    report.headline(f"{len(plans) - report.failures} of {len(plans)} cases planned")


def main() -> int:
    report = shared.Report()
    if not shared.IS_DRY and not has_compiler():
        report.add("error", line := "the compiler for GPUs, jax_cuda13_plugin, is not installed", line, is_good=False)
        return report.exit_code()
    write(shared.NEW_PREDICTIONS, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
