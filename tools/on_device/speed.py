"""A case of tools/bench on this device: jaxpt beside torch in turn, in bfloat16, and beside what `jaxpt plan` says.

    python tools/on_device/speed.py gpt2|bert|t5|llama
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import plan
import shared

ALONE_SECONDS = 40
"""Kept for jaxpt alone where a side of torch takes too long."""


class TookTooLong(RuntimeError):
    """A side was not ready in time."""


def sides(name: str) -> list[str]:
    """Those of a case that this machine and the time allow."""
    chosen = list(shared.TIMED[name].sides)
    if not shared.has_torch():
        chosen = ["jaxpt"]
    elif shared.IS_DRY or shared.IS_QUICK:
        chosen = [side for side in chosen if "compile" not in side]
    return chosen


def measure(name: str, chosen: list[str]) -> dict[str, Any]:
    """The case on these sides, as tools/bench has it."""
    (compare,) = shared.bench("compare")
    timed = shared.TIMED[name]
    rounds, steps = (1, 1) if shared.IS_DRY else (3, 3) if shared.IS_QUICK else (timed.rounds, timed.steps)
    programs = {side: compare.SIDES[side] for side in chosen}
    return compare.measured(timed.case, shared.timed_case(name), programs, shared.timed_dtype(), rounds, steps)


def measure_in_time(name: str, limit: float) -> dict[str, Any]:
    """As `measure`; jaxpt alone if a side of torch fails, or is not ready in time. "torch_error" says why."""
    chosen = sides(name)
    if len(chosen) == 1:
        return measure(name, chosen)

    def stop(*_: object) -> None:
        raise TookTooLong(f"no result after {limit - ALONE_SECONDS:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(max(int(limit - ALONE_SECONDS), 1))
    try:
        return measure(name, chosen)
    except RuntimeError as error:
        problem = shared.describe(error)
        print(f"{', '.join(chosen)}: {problem}; now jaxpt alone", flush=True)
    finally:
        signal.alarm(0)
    return measure(name, ["jaxpt"]) | {"torch_error": problem}


def mfu_line(result: dict[str, Any]) -> str:
    """MFU with its formula, its numbers and the card; "" where the peak is not known."""
    ours = result["sides"]["jaxpt"]
    if not ours["mfu"]:
        return ""
    peak = result["flops"] / ours["median"] / ours["mfu"]
    return (
        f"MFU {ours['mfu']:.1%} = 3 × FLOPs of the forward products / seconds / bf16 peak = {result['flops']:.4g} / "
        f"{ours['median']:.4f} / {peak:.4g} on {result['device']}; causal attention counts by half"
    )


def plan_lines(result: dict[str, Any], planned: dict[str, Any] | None) -> list[str]:
    """Memory and time of the step beside the plan's."""
    ours = result["sides"]["jaxpt"]
    if planned is None:
        return ["no plan: neither --pack nor the step plan made one"]
    gib, total = ours["peak_bytes"] / 2**30, planned["total_bytes"] / 2**30
    lines = [f"memory: {gib:.2f} GiB, planned {total:.2f} GiB ({gib / total:.2f} ×)"]
    if kind := plan.kind_of(result["device"]):
        time = planned["times"][kind]
        milliseconds, bound, estimate = (1e3 * (x or 0) for x in (ours["median"], time["bound_seconds"], time["estimate_seconds"]))
        text = f"time: {milliseconds:.1f} ms; planned lower bound {bound:.1f} ms ({milliseconds / bound:.2f} ×)"
        lines.append(text + (f", planned estimate {estimate:.1f} ms ({milliseconds / estimate:.2f} ×)" if estimate else ""))
    return lines


def headline(result: dict[str, Any]) -> str:
    """Tokens per second, MFU, and each other side's share of them and memory."""
    ours = result["sides"]["jaxpt"]
    texts = [f"{ours['tokens_per_second']:,.0f} tokens/s"]
    texts += [f"MFU {ours['mfu']:.1%}"] if ours["mfu"] else []
    texts.append(f"{ours['peak_bytes'] / 2**30:.2f} GiB")
    for side, figures in result["sides"].items():
        if side != "jaxpt":
            texts.append(f"{figures['ratio']:.2f} × {side} ({figures['peak_bytes'] / 2**30:.2f} GiB)")
    return ", ".join(texts)


def main() -> int:
    name = sys.argv[1]
    report = shared.Report()
    result = measure_in_time(name, float(os.environ.get("DEVICE_LIMIT", "inf" if len(sides(name)) == 1 else "600")))
    (show,) = shared.bench("show")
    report.add("bench", result)
    planned = plan.known(name)
    lines = [*show.table(result).splitlines(), mfu_line(result), *plan_lines(result, planned)]
    for line in filter(None, lines):
        report.result["lines"].append(line)
        print(line, flush=True)
    report.headline(headline(result))
    if problem := result.get("torch_error"):
        report.add("torch_error", problem, f"torch: {problem}", is_good=False)
    elif "torch" not in str(list(result["sides"])):
        report.add("note", "torch or transformers is not installed: jaxpt alone", "torch is not installed: jaxpt alone")
    report.add("planned", planned)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
