"""`jaxpt doctor`: checks if training works on this machine, and lists what to install if not."""

from __future__ import annotations

import collections
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpt import disk

PROBES = {
    "devices": """
import json, jax, jax.numpy as jnp
total = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8))))
assert total == 512, total
memory = lambda d: (d.memory_stats() or {}).get("bytes_limit")
print(json.dumps([[d.platform, d.device_kind, memory(d)] for d in jax.local_devices()]))
""",
    "pipeline": """
import json, seqio, tensorflow as tf
tf.config.set_visible_devices([], "GPU")
print(json.dumps(sum(int(x) for x in tf.data.Dataset.range(8).map(lambda x: 2 * x).batch(2).unbatch())))
""",
    "attention": """
import json, jax
from jaxpt.models import kernel_check
from jaxpt.parallel import compiler
print(json.dumps(kernel_check.differences(compiler.platform())))
""",
}
"""{what is tried: its code, whose last line is the answer}. Each is a subprocess, so a library that crashes, hangs or
prints does not affect the others."""
FAR = 0.05
"""Of attention kernels; rounding is about 0.01."""


class Check(NamedTuple):
    """A check, its result, and advice if it failed."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""


def doctor(console: Console | None = None, probes: Mapping[str, str] = PROBES) -> int:
    """Prints all checks.

    Args:
      console: output; default standard output.
      probes: as PROBES.

    Returns:
      0 if training works, 1 otherwise.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    started = {name: start(probes[name]) for name in ("devices", "pipeline")}
    packages = _packages()
    _print(console, "Python packages", packages)
    machine = _machine()
    _print(console, "Machine", machine)
    work = [*_devices(started["devices"]), _pipeline(started["pipeline"])]
    work += _attention(start(probes["attention"]))  # after the first probe: only one process at a time can have a TPU
    _print(console, "A compiled step, a data pipeline", work)
    bad = [row for row in (*packages, *machine, *work) if not row.ok]
    console.print("Training works on this machine." if not bad else f"Training does not work; fix: {_names(bad)}.")
    return 1 if bad else 0


def _names(rows: list[Check]) -> str:
    return ", ".join(row.what for row in rows)


def _print(console: Console, title: str, rows: list[Check]) -> None:
    table = Table("", "", "", "", title=title, title_justify="left", show_header=False, box=None)
    for row in rows:
        mark = (
            Text("ok", "green") if row.ok and not row.advice else Text("-", "yellow") if row.ok else Text("!!", "red")
        )
        table.add_row(mark, Text(row.what), Text(row.found), Text(row.advice, "bold"))
    console.print(table)


# ---- packages -------------------------------------------------------------------------------------------------------


def _packages() -> list[Check]:
    """Python and every package that jaxpt's metadata requires."""
    python = sys.version_info
    good = (3, 11) <= python[:2] < (3, 14)
    rows = [Check("python", platform.python_version(), good, "" if good else "install Python 3.11 to 3.13")]
    try:
        wanted = importlib.metadata.requires("jaxpt") or []
    except importlib.metadata.PackageNotFoundError:
        return [*rows, Check("jaxpt", "not installed", True, "pip install -e . (in the repository)")]
    return rows + [package(text) for text in wanted if "extra ==" not in text]


def package(requirement: str) -> Check:
    """Checks one requirement, such as `jax>=0.10`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]  # type: ignore[index]
    least = re.search(r">=\s*([0-9.]+)", requirement)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "missing", False, f"pip install '{requirement}'")
    if least and _numbers(version) < _numbers(least[1]):
        return Check(name, f"{version}, requires {least[1]} or later", False, f"pip install -U '{requirement}'")
    return Check(name, version)


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: "0.12.8rc1" is (0, 12, 8)."""
    return tuple(int(part) for part in re.findall(r"(?:^|\.)(\d+)", version))


# ---- machine --------------------------------------------------------------------------------------------------------


def _machine() -> list[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxpt"
    return [
        Check("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        Check("CPU cores", str(cores)),
        Check("memory", _memory()),
        space("disk here", Path.cwd()),
        space("disk of the data cache", cache),
    ]


def _memory() -> str:
    try:
        return _gigabytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return "unknown"


def space(what: str, path: Path) -> Check:
    """Free space at a path, or at its nearest existing parent, which must be writable."""
    existing = disk.nearest_existing(path)
    writable = os.access(existing, os.W_OK)
    found = f"{_gigabytes(shutil.disk_usage(existing).free)} free at {path}"
    return Check(what, found, writable, "" if writable else f"{existing} is not writable")


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


# ---- probes ---------------------------------------------------------------------------------------------------------


def start(code: str) -> subprocess.Popen[str]:
    """Starts a probe."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=environment)


def finish(process: subprocess.Popen[str], seconds: float = 180) -> tuple[object, str]:
    """(Output of the probe, None if it failed or takes longer; reason of failure)."""
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, f"no answer within {seconds} s; is another process using the device?"
    if process.returncode:
        return None, (error.strip().splitlines() or [f"exit code {process.returncode}"])[-1][:200]
    return json.loads(out.strip().splitlines()[-1]), ""


def _devices(process: subprocess.Popen[str]) -> list[Check]:
    found, why = finish(process)
    if not isinstance(found, list):
        return [Check("a jitted step", "failed", False, why)]
    kinds = collections.Counter(tuple(device) for device in found)
    rows = [
        Check("devices", f"{count} × {kind} ({where})" + (f", {_gigabytes(memory)} each" if memory else ""))
        for (where, kind, memory), count in kinds.items()
    ]
    return [Check("a jitted step", "runs"), *rows, *_missing_accelerator({where for where, *_ in kinds})]


def _missing_accelerator(platforms: set[str]) -> list[Check]:
    """Reports an accelerator that jax does not use."""
    if "gpu" not in platforms and (shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()):
        return [Check("CUDA", "there is an NVIDIA GPU, but jax does not use it", True, "pip install 'jaxpt[cuda]'")]
    if "tpu" not in platforms and (Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists()):
        return [Check("TPU", "there is a TPU, but jax does not use it", True, "pip install 'jaxpt[tpu]'")]
    if platforms == {"cpu"}:
        return [Check("accelerator", "none; the smoke recipes run on a CPU")]
    return []


def _attention(process: subprocess.Popen[str]) -> list[Check]:
    """The attention kernels of the device beside plain attention; none on a CPU."""
    found, why = finish(process)
    advice = "set model.attention=xla"
    if not isinstance(found, dict):
        return [Check("attention kernels", "failed", False, f"{why}; {advice}")]
    return [
        Check(
            f"attention, {name}",
            f"{far:.4f} of the largest value from plain attention",
            far < FAR,
            advice * (far >= FAR),
        )
        for name, far in found.items()
    ]


def _pipeline(process: subprocess.Popen[str]) -> Check:
    found, why = finish(process)
    good = found == 56
    return Check(
        "a tf.data pipeline", "runs" if good else "failed", good, "" if good else why or f"expected 56, got {found}"
    )
