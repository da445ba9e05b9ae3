"""A case of tools/bench on this device: jaxpt beside torch in turn, in bfloat16, and beside what `jaxpt plan` says.

python tools/on_device/speed.py gpt2|bert|t5|llama
"""

from __future__ import annotations

import os
import sys
from typing import Any

import plan
import shared

RESERVE_SECONDS = 15
"""Of the limit, for the last round."""


def sides(name: str) -> list[str]:
    """Those of a case that this machine and the time allow."""
    chosen = list(shared.TIMED[name].sides)
    if not shared.has_torch():
        return ["jaxpt"]
    return [side for side in chosen if "compile" not in side] if shared.IS_DRY or shared.IS_QUICK else chosen


def measure(name: str, limit: float) -> dict[str, Any]:
    """The case within so many seconds; what is not ready then is left out."""
    (compare,) = shared.bench("compare")
    timed = shared.TIMED[name]
    rounds, steps = (1, 1) if shared.IS_DRY else (3, 3) if shared.IS_QUICK else (timed.rounds, timed.steps)
    programs = {side: compare.SIDES[side] for side in sides(name)}
    budget = max(limit - RESERVE_SECONDS, 1)
    case = shared.timed_case(name)
    return compare.measured(timed.case, case, programs, shared.timed_dtype(), rounds, steps, budget)


def plan_lines(result: dict[str, Any], planned: dict[str, Any] | None) -> list[str]:
    """Memory and time of jaxpt's step beside the plan's: lower bound and estimate are two numbers."""
    ours = result["sides"]["jaxpt"]
    if planned is None:
        return ["no plan: neither --pack nor the step plan made one"]
    gib, total = ours["peak_bytes"] / 2**30, planned["total_bytes"] / 2**30
    lines = [f"memory: {gib:.2f} GiB, planned {total:.2f} GiB ({gib / total:.2f} ×)"]
    if kind := plan.kind_of(result["device"]):
        time = planned["times"][kind]
        parts = [f"time: {1e3 * ours['median']:.1f} ms"]
        for what, seconds in (("lower bound", time["bound_seconds"]), ("estimate", time["estimate_seconds"])):
            if seconds:
                parts.append(f"planned {what} {1e3 * seconds:.1f} ms ({ours['median'] / seconds:.2f} ×)")
        if ours["median"] < time["bound_seconds"]:
            parts.append("BELOW the lower bound, which is wrong")
        lines.append(", ".join(parts))
    return lines


def headline(result: dict[str, Any]) -> str:
    """Tokens per second, MFU and memory, and those of each other side."""
    ours = result["sides"]["jaxpt"]
    texts = [f"{ours['tokens_per_second']:,.0f} tokens/s"]
    texts += [f"MFU {ours['mfu']:.1%}"] if ours["mfu"] else []
    texts.append(f"{ours['peak_bytes'] / 2**30:.2f} GiB")
    for side, figures in result["sides"].items():
        if side != "jaxpt":
            texts.append(f"{figures['ratio']:.2f} × the speed of {side} ({figures['peak_bytes'] / 2**30:.2f} GiB)")
    return ", ".join(texts)


def main() -> int:
    name = sys.argv[1]
    report = shared.Report()
    (show,) = shared.bench("show")
    try:
        result = measure(name, float(os.environ.get("DEVICE_LIMIT", 600)))
    except RuntimeError as error:
        report.add("error", shared.describe(error), shared.describe(error), is_good=False)
        return report.exit_code()
    planned = plan.known(name)
    report.add("planned", planned)
    report.add("bench", result, show.table(result), is_good=not result["errors"])
    if "jaxpt" in result["sides"]:
        report.headline(headline(result))
        report.add("beside_plan", lines := plan_lines(result, planned), "\n".join(lines))
    if not shared.has_torch():
        report.add("note", line := "torch or transformers is not installed: jaxpt alone", line)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
