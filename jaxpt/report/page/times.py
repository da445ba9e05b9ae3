"""Where the time of a run went, from the lines of its metrics and its receipt."""

from __future__ import annotations

import itertools

from jaxpt.report.page.run_data import RunData

PARTS = ("training", "waiting for data", "evaluating, saving", "starting, ending")
STYLE = """
.times { display: flex; height: 1.1rem; border-radius: .25rem; overflow: hidden; min-width: 12rem }
.times span { print-color-adjust: exact }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px }
"""


def seconds(run: RunData) -> dict[str, float]:
    """Seconds of each of `PARTS`; {} where the run has logged no step.

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


def bar(parts: dict[str, float]) -> str:
    """The parts as a bar: HTML."""
    whole = sum(parts.values())
    return f'<div class="times">{"".join(_part(name, value / whole) for name, value in parts.items())}</div>'


def swatch(name: str) -> str:
    """The colour of a part: HTML."""
    return f'<span class="swatch" style="background: var(--c{PARTS.index(name)})"></span>'


def _part(name: str, share: float) -> str:
    colour = PARTS.index(name)
    return f'<span style="width: {share:.2%}; background: var(--c{colour})" title="{name}: {share:.1%}"></span>'
