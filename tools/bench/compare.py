"""A case on all sides: equal first losses, time of steps in turn, memory, and the largest batch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent import futures
from typing import Any

from cases import Case
from worker import Failed, Killed, OutOfMemory, Worker

MASKED = "head on masked positions"
SIDES = {
    "jaxpt": ("ours.py",),
    "torch": ("theirs.py",),
    f"torch, {MASKED}": ("theirs.py", "masked"),
    "torch.compile": ("theirs.py", "compile"),
    f"torch.compile, {MASKED}": ("theirs.py", "compile", "masked"),
}
NAMES = {side.replace(f", {MASKED}", "-masked"): side for side in SIDES}
"""{name on the command line: side}"""
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Of the first losses, relative: rounding of sums in another order."""
MFU = "FLOPs / seconds / bf16 peak; FLOPs: 3 × those of the forward matrix products, causal attention by half"

Result = dict[str, Any]
Sides = dict[str, tuple[str, ...]]
clock = time.monotonic


def sides_of(case: Case, compiles: bool, plain_malloc: bool, named: Collection[str] | None = None) -> Sides:
    """The sides of a case.

    Args:
      case: only masked LMs have sides whose head is on the masked positions alone.
      compiles: with those of torch.compile.
      plain_malloc: torch has glibc's malloc as it comes.
      named: keys of `NAMES`, instead of `compiles`; jaxpt, which makes the weights, is always there.

    Returns:
      {side: its program and words}.
    """
    chosen = {side for side, program in SIDES.items() if compiles or "compile" not in program}
    if named is not None:
        chosen = {"jaxpt", *(NAMES[name] for name in named)}
    return {
        side: (*program, "plain-malloc") if plain_malloc and side != "jaxpt" else program
        for side, program in SIDES.items()
        if side in chosen and (case.objective == "masked_lm" or "masked" not in program)
    }


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long each side runs."""

    rounds: int
    """How often each side is asked, at most."""
    steps: int
    """Of each side in a round."""
    budget: float | None = None
    """Seconds of wall time of a case, preparation included: no round is begun after them, and a side of torch that is
    not ready then is not measured. jaxpt is prepared, and each side that is ready has a round, in any case."""


@dataclasses.dataclass
class Found:
    """What the sides said."""

    said: dict[str, Result] = dataclasses.field(default_factory=dict)
    """Answers when they were ready."""
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    """Of all steps but those of the first round, which warms up."""
    peaks: dict[str, int] = dataclasses.field(default_factory=dict)
    errors: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of sides that failed, whose times are not kept."""

    def fail(self, side: str, error: Exception) -> None:
        """A side is out. jaxpt cannot be before it has made the weights: then it raises the error."""
        if side == "jaxpt" and side not in self.said:
            raise error
        self.errors[side] = str(error)
        self.seconds.pop(side, None)


def measured(
    name: str, case: Case, sides: Sides, dtype: str, rounds: int, steps: int, budget: float | None = None
) -> Result:
    """One case on all sides, in turn; if memory is too small for all of them at once, one side after the other.

    Args:
      name: of the case.
      case: what is measured.
      sides: as `sides_of` gives them; jaxpt comes first and makes the weights.
      dtype: in which is computed.
      rounds: as in `Plan`.
      steps: as in `Plan`.
      budget: as in `Plan`.

    Returns:
      What goes into the JSON. "errors" has the sides that failed, are on another device than jaxpt, or have another
      first loss; "sides" has the others.

    Raises:
      Failed: jaxpt failed before it had made the weights, or no side was measured.
    """
    plan, interleaved, found = Plan(rounds, steps, budget), True, Found()
    end = None if budget is None else clock() + budget
    try:
        _run(found, [sides], case, dtype, plan, end)
    except (OutOfMemory, Killed) as error:
        print(f"{name}: {error}; one side after the other", file=sys.stderr)
        found, interleaved = Found(errors=found.errors), False
        left = [{side: program} for side, program in sides.items() if side not in found.errors]
        _run(found, left, case, dtype, plan, end)
    if not found.seconds:
        raise Failed("; ".join(f"{side}: {error}" for side, error in found.errors.items()))
    said, ours = found.said, found.said["jaxpt"]
    peak = ours["peak_flops"] if dtype == "bfloat16" else None
    medians = {side: statistics.median(seconds) for side, seconds in found.seconds.items()}
    return {
        "case": name, **dataclasses.asdict(case), "dtype": dtype, "device": ours["device"], "interleaved": interleaved,
        "versions": [one["version"] for one in said.values()], "parameters": ours["parameters"],
        "flops": ours["flops"], "flops_all_logits": ours["flops_all_logits"], "tokens": ours["tokens"],
        "peak_flops": peak, "mfu_formula": MFU, "rounds": rounds, "budget": budget,
        "sides": {
            side: {
                "first_loss": said[side]["loss"], "compile_seconds": said[side]["compile_seconds"],
                "peak_bytes": found.peaks[side], "keeps_freed_memory": said[side]["keeps_freed_memory"],
                "rounds_run": len(seconds) // steps, "seconds": seconds, "median": medians[side],
                "quartiles": quartiles(seconds), "tokens_per_second": ours["tokens"] / medians[side],
                "mfu": peak and ours["flops"] / medians[side] / peak,
                "ratio": medians[side] / medians["jaxpt"] if "jaxpt" in medians else None,
                "all_logits": case.objective == "masked_lm" and side != "jaxpt" and "masked" not in sides[side],
            }
            for side, seconds in found.seconds.items()
        },
        "errors": found.errors,
    }  # fmt: skip


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third quartile; of one value itself.

    Example:
      >>> quartiles([3.0]), quartiles([1.0, 2.0, 3.0])
      ([3.0, 3.0], [1.5, 2.5])
    """
    return statistics.quantiles(values, n=4, method="inclusive")[::2] if len(values) > 1 else [values[0]] * 2


def _run(found: Found, groups: Sequence[Sides], case: Case, dtype: str, plan: Plan, end: float | None) -> None:
    """Each group of sides has processes at the same time; the first one begins with jaxpt. Groups share the time left.

    Raises:
      OutOfMemory, Killed: memory is too small, and other sides of the group have some of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number, group in enumerate(groups):
            now = clock()
            own_end = None if end is None else now + max(end - now, 0) / (len(groups) - number)
            workers = {side: Worker(*program) for side, program in group.items()}
            try:
                given = {"case": case, "folder": folder, "dtype": dtype}
                if "jaxpt" in group:
                    workers["jaxpt"].ask("write", **given)
                _prepare(found, workers, given, plan, own_end)
                for round_ in range(plan.rounds + 1):
                    if round_ > 1 and own_end is not None and clock() >= own_end:
                        break
                    for side in list(workers):
                        with _recorded(found, side, workers):
                            answer = workers[side].ask("steps", steps=plan.steps)
                            found.peaks[side] = answer["peak_bytes"]
                            if round_:  # the first warms up
                                found.seconds.setdefault(side, []).extend(answer["seconds"])
            finally:
                for one in workers.values():
                    one.stop()


def _prepare(found: Found, workers: dict[str, Worker], given: dict[str, Any], plan: Plan, end: float | None) -> None:
    """All sides at the same time: each of them compiles, which takes up to a minute."""
    left = None if end is None else end - clock()

    def ask(side: str) -> Result:
        if side != "jaxpt" and left is not None and left <= 0:
            raise Failed(f"not prepared: the budget of {plan.budget:g} s was used up before")
        return workers[side].ask("prepare", None if side == "jaxpt" else left, **given)

    with futures.ThreadPoolExecutor(len(workers)) as pool:
        asked = {side: pool.submit(ask, side) for side in workers}
    for side, answer in asked.items():
        with _recorded(found, side, workers):
            said = answer.result()
            _check(side, said, found.said.get("jaxpt", said), TOLERANCE[given["dtype"]])
            found.said[side] = said


@contextlib.contextmanager
def _recorded(found: Found, side: str, workers: dict[str, Worker]) -> Iterator[None]:
    """A side that fails is recorded and stopped, unless memory might be enough for it alone."""
    try:
        yield
    except Failed as error:
        if isinstance(error, OutOfMemory | Killed) and len(workers) > 1:
            raise
        found.fail(side, error)
        workers.pop(side).stop()


def _check(side: str, said: Result, ours: Result, tolerance: float) -> None:
    """Raises Failed where a side computes elsewhere, or something else, than jaxpt."""
    if said["platform"] != ours["platform"]:
        raise Failed(f"jaxpt computes on the {ours['platform']}, {side} on the {said['platform']}")
    if not abs(said["loss"] - ours["loss"]) <= tolerance * ours["loss"]:
        raise Failed(f"the first losses differ: jaxpt {ours['loss']}, {side} {said['loss']}")


def platform() -> str:
    """Where jaxpt computes; a process of its own looks, unless the environment says it."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return "cpu"
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
      Failed: the side failed, and not because memory was full.
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
