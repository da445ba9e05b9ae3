"""Runs steps, each as a process of its own with a limit, and writes their results after each.

The standard library alone: what a step imports may crash or be missing.

A step is a program. It writes JSON into the file that $DEVICE_RESULT names, as often as it has something new: what was
measured before its time ran out is kept. Of that JSON "headline" is its line in the table at the end, and "lines" are
what is printed under the table. Its exit code is 0, 1 if a figure is not as it should be, or another if it failed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LEAST_SECONDS = 20
"""With less time left no step starts."""
RESERVE_SECONDS = 4
"""Of the total, for results and traces."""
LATE = "no time left"
"""The status of such a step."""
LOG_BYTES, LAST_BYTES = 400_000, 2_500
"""Of a step's output in log.txt, and in results.json if it failed."""
RESULT_BYTES = 20_000_000
Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Step:
    """A program, and how long it may take."""

    name: str
    command: tuple[str, ...]
    """Words after the interpreter."""
    limit: float
    """Seconds."""
    group: int = 0
    """Steps of a group run at the same time."""
    is_quick: bool = False
    """Part of `--quick`."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return self.name.replace(":", "-")


@dataclasses.dataclass
class Running:
    """A step under way."""

    step: Step
    process: subprocess.Popen[bytes]
    log: Path
    result: Path
    begun: float
    end: float
    """When it is killed."""


class Runner:
    """Runs groups of steps one after the other, within a total of seconds."""

    def __init__(self, out: Path, scratch: Path, total: float, environment: Mapping[str, str]) -> None:
        """Args:
        out: directory of results.json, summary.txt and log.txt; those of an earlier call are deleted.
        scratch: directory for the files of the steps.
        total: seconds from now in which everything ends.
        environment: of all steps.
        """
        self.out, self.scratch, self.environment = out, scratch, dict(environment)
        self.deadline = time.monotonic() + total
        self.results: dict[str, Result] = {}
        out.mkdir(parents=True, exist_ok=True)
        for name in ("results.json", "summary.txt", "log.txt", "traces.tar.gz"):
            (out / name).unlink(missing_ok=True)

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, groups: Sequence[Sequence[Step]]) -> dict[str, Result]:
        """Runs all groups; what has no time any more is recorded as well.

        Returns:
          {step: {"status", "seconds", "result", "last_lines"}}.
        """
        for group in groups:
            if self.seconds_left() < LEAST_SECONDS:
                for step in group:
                    self._record(step, LATE, 0.0, None, "")
            else:
                self._run_group(group)
        return self.results

    def _run_group(self, group: Sequence[Step]) -> None:
        running: list[Running] = []
        try:
            for step in group:
                try:
                    running.append(self._start(step))
                except OSError as error:
                    self._record(step, f"did not start: {error}", 0.0, None, "")
            while running:
                for process in list(running):
                    if self._has_ended(process):
                        running.remove(process)
                time.sleep(0.05)
        finally:  # an interrupt: nothing of ours stays behind
            for process in running:
                _kill(process.process)

    def _start(self, step: Step) -> Running:
        log, result = (self.scratch / f"{step.file_name}.{end}" for end in ("log", "json"))
        limit = min(step.limit, max(self.seconds_left() - RESERVE_SECONDS, 1))
        environment = self.environment | step.environment
        environment |= {"DEVICE_RESULT": str(result), "DEVICE_LIMIT": f"{limit:.0f}"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *step.command], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True,
            )  # fmt: skip
        return Running(step, process, log, result, begun := time.monotonic(), begun + limit)

    def _has_ended(self, running: Running) -> bool:
        """Records the step if it has ended, or has to."""
        code, now = running.process.poll(), time.monotonic()
        if code is None and now < running.end:
            return False
        _kill(running.process)  # what it started may still be there
        result, problem = read_result(running.result)
        status = status_of(code, running.end - running.begun, problem)
        self._record(running.step, status, now - running.begun, result, tail(running.log, LOG_BYTES))
        return True

    def _record(self, step: Step, status: str, seconds: float, result: Any, output: str) -> None:
        self.results[step.name] = {
            "status": status, "seconds": round(seconds, 1), "result": result,
            "last_lines": "" if status == "ok" else output[-LAST_BYTES:],
        }  # fmt: skip
        with (self.out / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"\n######## {step.name}: {status}\n{output}\n")
        replace(self.out / "results.json", json.dumps(self.results, indent=1, allow_nan=False) + "\n")
        replace(self.out / "summary.txt", summary(self.results) + "\n")
        print(f"{step.name}: {status}, {seconds:.0f} s; {max(self.seconds_left(), 0):.0f} s left", flush=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a step with all that it started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def status_of(code: int | None, limit: float, problem: str) -> str:
    """How a step ended, in words.

    Args:
      code: its exit code, None if it had to be killed.
      limit: its seconds.
      problem: what is wrong with its result, "" if nothing is.

    Example:
      >>> status_of(0, 60, ""), status_of(-11, 60, ""), status_of(None, 60, "")
      ('ok', 'ended by signal 11', 'time out after 60 s')
    """
    if code is None:
        return f"time out after {limit:.0f} s"
    if code < 0:
        return f"ended by signal {-code}"
    if code > 1:
        return f"exit code {code}"
    return problem or ("ok" if code == 0 else "failed")


def read_result(path: Path) -> tuple[Any, str]:
    """What a step wrote.

    Args:
      path: the file.

    Returns:
      (its JSON, or None; what is wrong with it, or ""). NaN and infinities are words, which JSON has no numbers for.
    """
    try:
        if path.stat().st_size > RESULT_BYTES:
            return None, "result too large"
        result = json.loads(path.read_text("utf-8"), parse_constant=str)
    except FileNotFoundError:
        return None, "no result"
    except (OSError, ValueError, RecursionError):
        return None, "result is not JSON"
    return (result, "") if isinstance(result, dict) else (None, "result is not a JSON object")


def tail(path: Path, count: int) -> str:
    """The last bytes of a file as text."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - count, 0))
        return file.read(count).decode("utf-8", "replace")


def replace(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, "utf-8", "replace")
    partial.replace(path)


def summary(results: Mapping[str, Result]) -> str:
    """What is not well, a table of all steps, and under it the lines of each: a failed step's last ones."""
    width = max((len(name) for name in results), default=0)
    status_width = max((len(record["status"]) for record in results.values()), default=0)
    rows, details = [], []
    for name, record in results.items():
        result = record["result"] or {}
        headline = str(result.get("headline", ""))[:300]
        row = f"{name:{width}}  {record['status']:{status_width}}  {record['seconds']:6.1f} s  {headline}"
        rows.append(row.rstrip())
        lines = result.get("lines")
        lines = [str(line)[:300] for line in lines] if isinstance(lines, list) else []
        if record["status"] != "ok":
            lines += [f"| {line[:300]}" for line in record["last_lines"].splitlines()[-12:]]
        if lines:
            details += ["", f"{name}:", *(f"  {line}" for line in lines)]
    return "\n".join([verdict({name: record["status"] for name, record in results.items()}), "", *rows, *details])


def verdict(statuses: Mapping[str, str]) -> str:
    """How many steps are well, and which are not.

    Args:
      statuses: how each step ended.

    Example:
      >>> verdict({"facts": "ok", "kernels": "failed", "speed:t5": "no time left"})
      '1 of 3 steps ok; look at kernels; no time for speed:t5'
    """
    wrong = [name for name, status in statuses.items() if status not in ("ok", LATE)]
    late = [name for name, status in statuses.items() if status == LATE]
    parts = [f"{len(statuses) - len(wrong) - len(late)} of {len(statuses)} steps ok"]
    parts += [f"look at {', '.join(wrong)}"] if wrong else []
    parts += [f"no time for {', '.join(late)}"] if late else []
    return "; ".join(parts)
