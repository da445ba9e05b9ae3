"""A side of the benchmark as a process of its own: asked and answered in JSON, a line each."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import select
import signal
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

    def write(self, case: Case, folder: Path, dtype: str) -> None:
        """Writes weights and batch for the other side, and prepares nothing."""
        raise NotImplementedError

    def platform(self) -> str:
        """Where it computes: "cpu", "gpu" or "tpu"."""
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
            if asked["do"] == "prepare":
                answer = side.prepare(*_given(asked))
            elif asked["do"] == "write":
                answer = {"written": side.write(*_given(asked))}
            elif asked["do"] == "platform":
                answer = {"platform": side.platform()}
            else:
                answer = {"seconds": [_timed(side) for _ in range(asked["steps"])], "peak_bytes": side.peak_bytes()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


def _given(asked: dict[str, Any]) -> tuple[Case, Path, str]:
    return Case(**asked["case"]), Path(asked["folder"]), asked["dtype"]


def _timed(side: Side) -> float:
    begun = time.perf_counter()
    side.step()
    return time.perf_counter() - begun


def resident_peak() -> int:
    """Peak of this process's resident memory in bytes."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


class Failed(RuntimeError):
    """A side did not do what it was asked for."""


class OutOfMemory(Failed):
    """The memory of a side's device is full."""


class Killed(Failed):
    """A side was ended by SIGKILL: on Linux most likely because the host's memory is full."""


_FULL = re.compile(r"RESOURCE_EXHAUSTED|MemoryError|out of memory|can't allocate memory|_ALLOC_FAILED", re.I)
_KERNEL = re.compile("shared memory", re.I)
"""A kernel that wants more of a multiprocessor's own memory than there is: no smaller batch helps."""


def is_out_of_memory(error: str) -> bool:
    """Whether an error's text, of JAX or torch, says that the device's memory is full.

    Example:
      >>> is_out_of_memory("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
      True
      >>> is_out_of_memory("ValueError: RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 300000")
      False
    """
    return _FULL.search(error) is not None and _KERNEL.search(error) is None


class TooLate(Failed):
    """A side did not answer in time."""


class Worker:
    """A side as the benchmark sees it; at the end of a `with` the process ends."""

    def __init__(self, program: str, *arguments: str, **environment: str) -> None:
        """Starts a file of this folder with an environment in which two may share a GPU."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | environment,
        )  # fmt: skip

    def ask(self, do: str, seconds: float | None = None, **asked: Any) -> dict[str, Any]:
        """The answer within so many seconds; raises TooLate, OutOfMemory, Killed or another Failed if there is none."""
        if "case" in asked:
            asked["case"] = dataclasses.asdict(asked["case"])
        try:
            print(json.dumps({"do": do, **asked}), file=self._process.stdin, flush=True)
            if seconds is not None and not select.select([self._process.stdout], [], [], seconds)[0]:
                raise TooLate(f"not ready after {seconds:.0f} s, which were left of the budget")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise (Killed if code == -signal.SIGKILL else Failed)(f"the process ended with code {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise (OutOfMemory if is_out_of_memory(answer["error"]) else Failed)(answer["error"])
        return answer

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
