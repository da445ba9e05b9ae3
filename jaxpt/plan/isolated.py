"""Runs the compiler in a subprocess.

libtpu ends a process on some errors, and a compilation for TPUs can be left as soon as XLA has placed all buffers.
Making machine code takes several times as long as all before it, and changes nothing of what a plan measures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxpt.errors import UserError
from jaxpt.plan import gpus
from jaxpt.runtime import disk

_NEEDED = ("memory-usage-report", "live-range", "buffer-assignment", "after_optimizations")
_WRITTEN_LAST = ("after_optimizations-buffer-assignment-values.txt", "after_optimizations.txt")


def ask(module: str, job: dict[str, Any], where: str) -> dict[str, Any]:
    """Runs a module with a job in a subprocess.

    Args:
      module: name of a module that calls `answer` when it is run.
      job: plain values; `topology` is None for this machine's devices.
      where: the devices, for messages.

    Returns:
      The module's answer.

    Raises:
      UserError: the module's own, or that the process ended without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="jaxpt-plan-") as directory:
        Path(directory, "job.json").write_text(json.dumps(job), "utf-8")
        command, environment = [sys.executable, "-m", module, directory], _environment(job["topology"])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        answer = Path(directory, "answer.json")
        if not answer.exists():
            line = f"compiling the step for {where} ended with code {done.returncode}: {_reason(done.stderr)}"
            raise UserError(line) from RuntimeError(done.stderr)
        result = json.loads(answer.read_text("utf-8"))
    if "error" in result:
        raise UserError(result["error"])
    return result


def _reason(stderr: str) -> str:
    """The line that says why a process ended: libtpu's failed check, else the last error, else the last one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no word"]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return next((line for line in lines if "Check failed" in line), (errors or lines)[-1])


def _environment(topology: str | None) -> dict[str, str]:
    # A kept program would not be compiled, and so say nothing.
    environment = dict(os.environ, JAX_ENABLE_COMPILATION_CACHE="false", TF_CPP_MIN_LOG_LEVEL="3")
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    if topology is not None:
        environment.pop("XLA_FLAGS", None)  # libtpu ends the process at a flag that it does not know
        if gpus.is_gpu(topology):
            environment["XLA_FLAGS"] = gpus.XLA_FLAGS
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


# ---- in the subprocess ----------------------------------------------------------------------------------------------


def answer(function: Callable[[dict[str, Any], Path], dict[str, Any]]) -> None:
    """Answers the job of this process with function(job, directory), and ends the process."""
    directory = Path(sys.argv[1])
    job = json.loads((directory / "job.json").read_text("utf-8"))
    try:
        result = function(job, directory)
    except UserError as error:
        result = {"error": str(error)}
    disk.write_text(directory / "answer.json", json.dumps(result))
    os._exit(0)  # the compiler may still be at work in its thread


def compile_(lowered: Any, directory: Path, module: str, platform: str) -> dict[str, str]:
    """What XLA writes about a program until all buffers have their places.

    Args:
      lowered: of a jitted function.
      directory: where it may write.
      module: the program's name, such as `jit_step`.
      platform: of the devices. A GPU's products that have no default tiles are left to cuBLAS.

    Returns:
      {ending of the file's name: text}; also of a program that does not fit.

    Raises:
      UserError: the compiler refused the program.
    """
    try:
        return _compile(lowered, directory / "dump", module)
    except UserError as error:
        if platform != "gpu" or "tile sizes" not in str(error):
            raise
        return _compile(lowered, directory / "cublas", module, gpus.CUBLAS)


def _compile(lowered: Any, dump: Path, module: str, options: Mapping[str, Any] | None = None) -> dict[str, str]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            dumping = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
            lowered.compile(compiler_options=dumping | dict(options or {}))
        except Exception as error:  # of any class of XLA's; memory that does not suffice is one of them
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def find(ending: str) -> Path | None:
        return next((path for path in dump.glob(f"*{module}.*{ending}") if path.stat().st_size), None)

    while thread.is_alive() and not all(map(find, _WRITTEN_LAST)):
        thread.join(0.2)
    if is_refused := not all(map(find, (f"{name}.txt" for name in _NEEDED))):
        thread.join()  # on a busy machine the last file may be there before another one
        is_refused = not all(map(find, (f"{name}.txt" for name in _NEEDED)))
    if is_refused:
        raise UserError(f"the compiler refused the step: {' '.join(str(failed[0]).split()) if failed else 'no word'}")
    thread.join(0.5)  # the last file may be half written
    return {name: find(f"{name}.txt").read_text("utf-8") for name in _NEEDED}


def limit(device: Any) -> int:
    """Memory of a device that is here; CPUs share the machine's."""
    import jax

    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()
