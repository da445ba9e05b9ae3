"""A side of the benchmark as a process of its own: asked and answered in JSON, a line each."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cases import Case


class Side:
    """What each side does."""

    def prepare(self, case: Case, folder: Path, dtype: str) -> dict[str, Any]:
        """Gets ready for steps; returns {"loss": before the first step, without dropout, …}."""
        raise NotImplementedError

    def step(self) -> None:
        """One update; returns when it is done."""
        raise NotImplementedError

    def peak_bytes(self) -> int:
        """Most memory taken so far: of the GPU, or of this process."""
        raise NotImplementedError


def serve(side: Side) -> None:
    """Answers on what was stdout; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            if "case" in asked:
                answer = side.prepare(Case(**asked["case"]), Path(asked["folder"]), asked["dtype"])
            else:
                answer = {"seconds": [_timed(side) for _ in range(asked["steps"])], "peak_bytes": side.peak_bytes()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


def _timed(side: Side) -> float:
    begun = time.perf_counter()
    side.step()
    return time.perf_counter() - begun


def resident_peak() -> int:
    """Peak of this process's resident memory in bytes."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


class Worker:
    """A side as the benchmark sees it."""

    def __init__(self, program: str, *arguments: str) -> None:
        """Starts a file of this folder with an environment in which two may share a GPU."""
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def ask(self, **asked: Any) -> dict[str, Any]:
        """The answer; raises RuntimeError if it failed."""
        if "case" in asked:
            asked["case"] = dataclasses.asdict(asked["case"])
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"ended with code {self._process.wait()}"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
