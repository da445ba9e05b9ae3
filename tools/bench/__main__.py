"""Time and memory of a training step of jaxpt beside transformers on torch, on this machine, in one interleaved run.

    python tools/bench [CASE …] [--gpu] [--rounds 5] [--steps 3] [--dtype auto] [--compile] [--largest] [--out bench]

Both sides have the same weights, the same random batch, AdamW (torch's fused one), clipped gradients and dropout;
torch has its scaled dot-product attention where the model's class takes it. Before the first step the losses without
dropout have to be equal. Each round runs some steps of each side in turn, and a figure is the median over all of a
side's steps, with quartiles. Each side is a process of its own; memory is the peak of the GPU, or of the process on a
CPU. `--compile` adds torch.compile as a third side. `--largest` doubles the rows until a side's memory is full (GPUs
only).

MFU = FLOPs / seconds / the chip's peak. FLOPs are three times those of the forward pass's matrix products, of which the
masked-LM head counts on masked positions alone and causal attention by half; both sides have the same. Where the peak
is not known (CPUs) there is none.

Needs torch and transformers for the other side; neither needs TensorFlow. Cases: `python tools/bench --list`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from cases import CASES, CPU, GPU, Case
from worker import Worker

SIDES = {"jaxpt": ("ours.py",), "torch": ("theirs.py",), "torch.compile": ("theirs.py", "compile")}
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Of the first losses, relative: rounding of sums in another order."""

Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tools/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("case", nargs="*", help="by default those for a CPU, with --gpu those for a GPU")
    parser.add_argument("--gpu", action="store_true", help="the cases for a GPU, in bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each side in a round")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action="store_true", help="torch.compile as a third side")
    parser.add_argument("--largest", action="store_true", help="the largest batch of each side")
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.png")
    parser.add_argument("--list", action="store_true")
    a = parser.parse_args()
    if a.list:
        print("\n".join(f"{name}: {case}" for name, case in CASES.items()))
        return 0
    if unknown := [name for name in a.case if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    names = a.case or list(GPU if a.gpu else CPU)
    dtype = a.dtype or ("bfloat16" if a.gpu else "float32")
    sides = [name for name in SIDES if a.compile or name != "torch.compile"]
    results = []
    for name in names:
        results.append(measured(name, CASES[name], sides, dtype, a.rounds, a.steps))
        if a.largest:
            results[-1]["largest_rows"] = {side: largest(side, CASES[name], dtype) for side in sides}
        print(table(results[-1:]), flush=True)
    if a.out:
        a.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        picture(results, a.out.with_suffix(".png"))
    return 0


def measured(name: str, case: Case, sides: list[str], dtype: str, rounds: int, steps: int) -> Result:
    """One case on all sides, in turn."""
    workers = {side: Worker(*SIDES[side]) for side in sides}
    try:
        with tempfile.TemporaryDirectory() as folder:
            said = {side: one.ask(case=case, folder=folder, dtype=dtype) for side, one in workers.items()}
        losses = {side: one["loss"] for side, one in said.items()}
        for side, loss in losses.items():
            if abs(loss - losses["jaxpt"]) > TOLERANCE[dtype] * losses["jaxpt"]:
                raise SystemExit(f"{name}: the first losses differ: jaxpt {losses['jaxpt']}, {side} {loss}")
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        peaks: dict[str, int] = {}
        for round_ in range(rounds + 1):
            for side, one in workers.items():
                found = one.ask(steps=steps)
                peaks[side] = found["peak_bytes"]
                if round_:  # the first warms up
                    seconds[side] += found["seconds"]
    finally:
        for one in workers.values():
            one.stop()
    ours = said["jaxpt"]
    return {
        "case": name, **dataclasses.asdict(case), "dtype": dtype, "device": ours["device"],
        "versions": [said[side]["version"] for side in sides], "parameters": ours["parameters"],
        "flops": ours["flops"], "tokens": ours["tokens"],
        "sides": {
            side: {
                "first_loss": losses[side], "compile_seconds": said[side]["compile_seconds"], "peak_bytes": peaks[side],
                "seconds": seconds[side], "median": (median := statistics.median(seconds[side])),
                "quartiles": statistics.quantiles(seconds[side], n=4)[::2],
                "tokens_per_second": ours["tokens"] / median,
                "mfu": ours["peak_flops"] and ours["flops"] / median / ours["peak_flops"],
                "ratio": median / statistics.median(seconds["jaxpt"]),
            }
            for side in sides
        },
    }  # fmt: skip


def largest(side: str, case: Case, dtype: str) -> int:
    """Rows of the largest batch, by doubling, that takes three steps; each try is a process of its own."""
    rows = 0
    for power in range(14):
        tried = dataclasses.replace(case, rows=2**power)
        ours, one = Worker(*SIDES["jaxpt"]), Worker(*SIDES[side])
        try:
            with tempfile.TemporaryDirectory() as folder:
                if side != "jaxpt":  # whose weights and batch it wants
                    ours.ask(case=tried, folder=folder, dtype=dtype)
                    ours.stop()
                one.ask(case=tried, folder=folder, dtype=dtype)
            one.ask(steps=3)
        except RuntimeError as error:
            print(f"{side}: {tried.rows} rows: {error}", file=sys.stderr)
            break
        finally:
            ours.stop()
            one.stop()
        rows = tried.rows
    return rows


def table(results: list[Result]) -> str:
    """Lines for people."""
    lines = []
    for result in results:
        lines.append(
            f"{result['case']}: {result['parameters']:,} parameters, {result['tokens']} tokens, {result['dtype']}"
        )
        for side, one in result["sides"].items():
            low, high = one["quartiles"]
            mfu = f", MFU {one['mfu']:.1%}" if one["mfu"] else ""
            most = f", {result['largest_rows'][side]} rows at most" if "largest_rows" in result else ""
            lines.append(
                f"  {side:13} {1e3 * one['median']:8.1f} ms ({1e3 * low:.1f}–{1e3 * high:.1f}), "
                f"{one['tokens_per_second']:,.0f} tokens/s, {one['ratio']:.2f} × jaxpt's time{mfu}, "
                f"{one['peak_bytes'] / 2**30:.2f} GiB, compiled in {one['compile_seconds']:.0f} s{most}, "
                f"first loss {one['first_loss']:.5f}"
            )
    return "\n".join(lines)


def picture(results: list[Result], path: Path) -> None:
    """Tokens per second of each side, relative to jaxpt's, a bar for each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.7 * len(results)), layout="constrained")
    sides = list(results[0]["sides"])
    for index, side in enumerate(sides):
        values = [1 / result["sides"][side]["ratio"] for result in results]
        places = [place + 0.25 * (index - (len(sides) - 1) / 2) for place in range(len(results))]
        axes.barh(places, values, 0.22, label=side)
        for place, value, result in zip(places, values, results, strict=True):
            speed = result["sides"][side]["tokens_per_second"]
            axes.text(value, place, f" {side} {speed:,.0f} tokens/s", va="center", fontsize=8)
    axes.set_yticks(range(len(results)), [result["case"] for result in results])
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("speed, jaxpt = 1")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
