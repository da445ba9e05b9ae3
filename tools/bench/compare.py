"""A case on all sides: equal first losses, time of steps in turn, memory, and the largest batch."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from cases import Case
from worker import Killed, OutOfMemory, Worker

MASKED = "head on masked positions"
SIDES = {
    "jaxpt": ("ours.py",),
    "torch": ("theirs.py",),
    f"torch, {MASKED}": ("theirs.py", "masked"),
    "torch.compile": ("theirs.py", "compile"),
    f"torch.compile, {MASKED}": ("theirs.py", "compile", "masked"),
}
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Of the first losses, relative: rounding of sums in another order."""

Result = dict[str, Any]
Sides = dict[str, tuple[str, ...]]


def sides_of(case: Case, compiles: bool, plain_malloc: bool) -> Sides:
    """{side: its program and words}; those whose head is on masked positions only of masked LMs."""
    return {
        side: (*program, "plain-malloc") if plain_malloc and side != "jaxpt" else program
        for side, program in SIDES.items()
        if (compiles or "compile" not in program) and (case.objective == "masked_lm" or "masked" not in program)
    }


@dataclasses.dataclass
class Found:
    """What the sides said."""

    said: dict[str, Result] = dataclasses.field(default_factory=dict)
    """Answers when they were ready."""
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    """Of all steps but those of the first round, which warms up."""
    peaks: dict[str, int] = dataclasses.field(default_factory=dict)


def measured(name: str, case: Case, sides: Sides, dtype: str, rounds: int, steps: int) -> Result:
    """One case on all sides, in turn; if memory is too small for all of them at once, one side after the other.

    Args:
      name: of the case.
      case: what is measured.
      sides: as `sides_of` gives them; jaxpt comes first and makes the weights.
      dtype: in which is computed.
      rounds: how often each side is asked.
      steps: of each side in a round.

    Returns:
      What goes into the JSON.

    Raises:
      RuntimeError: a side failed, the sides are on unlike devices, or their first losses differ.
    """
    interleaved = True
    try:
        found = _run([sides], case, dtype, rounds, steps)
    except (OutOfMemory, Killed) as error:
        print(f"{name}: {error}; one side after the other", file=sys.stderr)
        found = _run([{side: program} for side, program in sides.items()], case, dtype, rounds, steps)
        interleaved = False
    said, ours = found.said, found.said["jaxpt"]
    peak = ours["peak_flops"] if dtype == "bfloat16" else None
    return {
        "case": name, **dataclasses.asdict(case), "dtype": dtype, "device": ours["device"], "interleaved": interleaved,
        "versions": [one["version"] for one in said.values()], "parameters": ours["parameters"],
        "flops": ours["flops"], "flops_all_logits": ours["flops_all_logits"], "tokens": ours["tokens"],
        "sides": {
            side: {
                "first_loss": said[side]["loss"], "compile_seconds": said[side]["compile_seconds"],
                "peak_bytes": found.peaks[side], "keeps_freed_memory": said[side]["keeps_freed_memory"],
                "seconds": seconds, "median": (median := statistics.median(seconds)), "quartiles": quartiles(seconds),
                "tokens_per_second": ours["tokens"] / median,
                "mfu": peak and ours["flops"] / median / peak,
                "ratio": median / statistics.median(found.seconds["jaxpt"]),
                "all_logits": case.objective == "masked_lm" and side != "jaxpt" and "masked" not in sides[side],
            }
            for side, seconds in found.seconds.items()
        },
    }  # fmt: skip


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third quartile; of one value itself.

    Example:
      >>> quartiles([3.0]), quartiles([1.0, 2.0, 3.0])
      ([3.0, 3.0], [1.5, 2.5])
    """
    return statistics.quantiles(values, n=4, method="inclusive")[::2] if len(values) > 1 else [values[0]] * 2


def _run(groups: Sequence[Sides], case: Case, dtype: str, rounds: int, steps: int) -> Found:
    """Each group of sides has processes at the same time; the first one begins with jaxpt."""
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        for group in groups:
            workers = {side: Worker(*program) for side, program in group.items()}
            try:
                for side, one in workers.items():
                    found.said[side] = one.ask("prepare", case=case, folder=folder, dtype=dtype)
                    _check(side, found.said[side], found.said["jaxpt"], TOLERANCE[dtype])
                for round_ in range(rounds + 1):
                    for side, one in workers.items():
                        answer = one.ask("steps", steps=steps)
                        found.peaks[side] = answer["peak_bytes"]
                        if round_:  # the first warms up
                            found.seconds.setdefault(side, []).extend(answer["seconds"])
            finally:
                for one in workers.values():
                    one.stop()
    return found


def _check(side: str, said: Result, ours: Result, tolerance: float) -> None:
    """Raises RuntimeError where a side computes elsewhere, or something else, than jaxpt."""
    if said["platform"] != ours["platform"]:
        raise RuntimeError(f"jaxpt computes on the {ours['platform']}, {side} on the {said['platform']}")
    if not abs(said["loss"] - ours["loss"]) <= tolerance * ours["loss"]:
        raise RuntimeError(f"the first losses differ: jaxpt {ours['loss']}, {side} {said['loss']}")


def platform() -> str:
    """Where jaxpt computes."""
    with Worker(*SIDES["jaxpt"]) as one:
        return one.ask("platform")["platform"]


def largest(side: str, program: Sequence[str], case: Case, dtype: str) -> int:
    """Rows of a side's largest batch, by doubling, that takes three steps; each try is a process of its own.

    Weights and batches of another side than jaxpt are written on the CPU: where jaxpt's memory is full is not its end.

    Args:
      side: "jaxpt" or another.
      program: of the side.
      case: whose rows are not looked at.
      dtype: in which is computed.

    Returns:
      The rows, at most 8,192; 0 if not one fits.

    Raises:
      RuntimeError: the side failed, and not because memory was full.
    """
    rows = 0
    with tempfile.TemporaryDirectory() as folder, Worker(*SIDES["jaxpt"], JAX_PLATFORMS="cpu") as writer:
        for power in range(14):
            tried = {"case": dataclasses.replace(case, rows=2**power), "folder": folder, "dtype": dtype}
            if side != "jaxpt":
                writer.ask("write", **tried)
            try:
                with Worker(*program) as one:
                    one.ask("prepare", **tried)
                    one.ask("steps", steps=3)
            except OutOfMemory as error:
                print(f"{side}: {2**power} rows: {error}", file=sys.stderr)
                break
            rows = 2**power
    return rows
