"""Results for people: lines, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def table(result: Result) -> str:
    """Lines of a case."""
    if "error" in result:
        return f"{result['case']}: {result['error']}"
    return _packing(result) if "ways" in result else _comparison(result)


def _comparison(result: Result) -> str:
    order = "" if result["interleaved"] else ", one side after the other: not interleaved"
    head = f"{result['case']}: {result['parameters']:,} parameters, {result['tokens']} tokens, {result['dtype']}"
    head += f", {result['device']}{order}"
    more = result["flops_all_logits"] / result["flops"] - 1
    width, lines = max(map(len, [*result["sides"], *result["errors"]])), [head]
    for side, one in result["sides"].items():
        low, high = one["quartiles"]
        notes = [
            f"MFU {one['mfu']:.1%}" if one["mfu"] else "",
            f"{one['peak_bytes'] / 2**30:.2f} GiB",
            f"compiled in {one['compile_seconds']:.0f} s",
            f"{one['largest_rows']} rows at most" if "largest_rows" in one else "",
            f"the largest batch was not found: {one['largest_error']}" if "largest_error" in one else "",
            f"first loss {one['first_loss']:.5f}",
            f"{one['rounds_run']} of {result['rounds']} rounds" if one["rounds_run"] < result["rounds"] else "",
        ]
        logits = f" (computes the logits of all positions, {more:.0%} more FLOPs)" if one["all_logits"] else ""
        lines.append(
            f"  {side:{width}} {1e3 * one['median']:8.1f} ms ({1e3 * low:.1f}–{1e3 * high:.1f}), "
            f"{one['tokens_per_second']:,.0f} tokens/s, "
            + (f"{one['ratio']:.2f} × jaxpt's time{logits}, " if one["ratio"] else "")
            + ", ".join(note for note in notes if note)
        )
    lines += [f"  {side:{width}} {error}" for side, error in result["errors"].items()]
    if result["peak_flops"]:
        lines.append(f"  MFU = {result['mfu_formula']}: {result['flops']:.4g} FLOPs, {result['peak_flops']:.4g} FLOP/s")
    if not all(one["keeps_freed_memory"] for one in result["sides"].values()) and result["device"] == "cpu":
        plain = ", ".join(side for side, one in result["sides"].items() if not one["keeps_freed_memory"])
        lines.append(f"  malloc as it comes: {plain}; the others keep what is freed")
    return "\n".join(lines)


def _packing(result: Result) -> str:
    lines = [
        f"{result['case']}, packing: {result['sentences']:,} sentences, {result['tokens']:,} real tokens a round, "
        f"{result['rows']} rows a step, {result['dtype']}"
    ]
    width = max(map(len, result["ways"]))
    for way, one in result["ways"].items():
        low, high = one["quartiles"]
        line = f"  {way:{width}} {one['real_tokens_per_second']:8,.0f} real tokens/s ({low:,.0f}–{high:,.0f}), "
        line += f"{one['padding']:.1%} padding, {one['steps']} steps of {one['shapes']}"
        if way in result["ratios"]:
            of = result["ratios"][way]
            line += f"; packed is {of['median']:.2f} × as fast ({of['least']:.2f}–{of['most']:.2f})"
        lines.append(line)
    return "\n".join(lines)


def bars(result: Result) -> dict[str, tuple[float, str]]:
    """{side: (its speed, the first one's 1, and what is written beside it)}"""
    key, of = ("real_tokens_per_second", "ways") if "ways" in result else ("tokens_per_second", "sides")
    first = next(iter(result[of].values()))[key]
    unit = key.replace("_per_second", "/s").replace("_", " ")
    return {name: (one[key] / first, f"{name} {one[key]:,.0f} {unit}") for name, one in result[of].items()}


def picture(results: Sequence[Result], path: Path) -> None:
    """Tokens per second of each side, relative to the first one's, a bar for each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [(result["case"], bars(result)) for result in results if "error" not in result]
    names = list(dict.fromkeys(name for _, of in drawn for name in of))
    rows = sum(len(of) + 1 for _, of in drawn)
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.3 * rows), layout="constrained")
    place, ticks = 0, []
    for _, of in drawn:
        ticks.append(place + (len(of) - 1) / 2)
        for name, (value, text) in of.items():
            axes.barh(place, value, 0.8, color=f"C{names.index(name)}")
            axes.text(value, place, f" {text}", va="center", fontsize=8)
            place += 1
        place += 1
    axes.set_yticks(ticks, [case for case, _ in drawn])
    axes.invert_yaxis()
    axes.margins(x=0.4)
    axes.set_xlabel("speed, the first one's = 1")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
