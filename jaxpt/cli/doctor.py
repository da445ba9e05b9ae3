"""`jaxpt doctor`: checks what computes and what prepares data on this machine, and lists what to install if not."""

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
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpt.errors import UserError
from jaxpt.runtime import disk, packages
from jaxpt.runtime.exit_codes import MISTAKE

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
PREPARES = ("seqio", "tensorflow", "tensorflow-datasets", "importlib-resources")
"""Packages that prepare data; training from prepared batches needs none of them."""
SOME = {
    "tensorboardX": "curves for TensorBoard", "pyarrow": "Parquet files", "matplotlib": "pictures of reports",
    "scikit-learn": "probes and baselines", "sacrebleu": "BLEU and chrF", "rouge-score": "ROUGE",
    "seqeval": "scores of entities", "py3langid": "languages in `jaxpt data`", "jinja2": "chat templates",
}  # fmt: skip
"""{package: what needs it}; all else works without."""
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
      0 if training works, also where it needs prepared batches because nothing that prepares data is installed; else 2.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    started = {name: start(probes[name]) for name in ("devices", "pipeline")}
    machine, packages = _machine(), _packages()
    _print(console, "Machine", machine)
    computes = [row for row in packages if row.what not in PREPARES] + _devices(started["devices"])
    computes += _attention(start(probes["attention"]))  # after the first: only one process at a time can have a TPU
    _print(console, "What computes", computes)
    prepares = [*(row for row in packages if row.what in PREPARES), _pipeline(started["pipeline"])]
    _print(console, "What prepares data", prepares)
    bad, unprepared = ([row for row in rows if not row.ok] for rows in ((*machine, *computes), prepares))
    if bad or not unprepared:
        lost = _names([*bad, *unprepared])
        console.print(f"Training does not work; fix: {lost}." if lost else "Training works on this machine.")
        return MISTAKE if lost else 0
    console.print(
        f"Training works from prepared batches (data.source: batches); to prepare data, fix: {_names(unprepared)}."
    )
    return 0 if "tensorflow" in [row.what for row in unprepared] else MISTAKE


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
    """Python and every package that jaxpt requires."""
    python = sys.version_info
    good = (3, 11) <= python[:2] < (3, 14)
    rows = [Check("python", platform.python_version(), good, "" if good else "install Python 3.11 to 3.13")]
    return rows + [package(text) for text in requirements() if "extra ==" not in text]


def requirements() -> list[str]:
    """What jaxpt requires, by its metadata, or by `pyproject.toml` where it runs from the repository."""
    try:
        return importlib.metadata.requires("jaxpt") or []
    except importlib.metadata.PackageNotFoundError:
        file = Path(__file__).parents[2] / "pyproject.toml"
        return tomllib.loads(file.read_text("utf-8"))["project"]["dependencies"] if file.is_file() else []


def package(requirement: str) -> Check:
    """Checks one requirement, such as `jax>=0.10`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]  # type: ignore[index]
    min_version = re.search(r">=\s*([0-9.]+)", requirement)
    if (version := packages.version(name)) is None:
        if name in SOME:
            return Check(name, f"missing; {SOME[name]} need it", True, f"pip install '{requirement}'")
        return Check(name, "missing", False, f"pip install '{requirement}'")
    if min_version and _numbers(version) < _numbers(min_version[1]):
        return Check(name, f"{version}, requires {min_version[1]} or later", False, f"pip install -U '{requirement}'")
    return Check(name, version)


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: "0.12.8rc1" is (0, 12, 8)."""
    return tuple(int(part) for part in re.findall(r"(?:^|\.)(\d+)", version))


# ---- machine --------------------------------------------------------------------------------------------------------


def _machine() -> list[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        cache = disk.cache_home() / "jaxpt"
    except UserError:
        cache = Path("/")
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
    free_space = f"{_gigabytes(shutil.disk_usage(existing).free)} free at {path}"
    return Check(what, free_space, writable, "" if writable else f"{existing} is not writable")


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
    devices, why = finish(process)
    if not isinstance(devices, list):
        return [Check("a jitted step", "failed", False, why)]
    kinds = collections.Counter(tuple(device) for device in devices)
    rows = [
        Check("devices", f"{count} × {kind} ({where})" + (f", {_gigabytes(memory)} each" if memory else ""))
        for (where, kind, memory), count in kinds.items()
    ]
    return [Check("a jitted step", "runs"), *rows, *_missing_accelerator({where for where, *_ in kinds})]


def _missing_accelerator(platforms: set[str]) -> list[Check]:
    """Reports an accelerator that jax does not use."""
    if "gpu" not in platforms and (shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()):
        return [
            Check("CUDA", "there is an NVIDIA GPU, but jax does not use it", True, packages.install_command("cuda"))
        ]
    if "tpu" not in platforms and (Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists()):
        return [Check("TPU", "there is a TPU, but jax does not use it", True, packages.install_command("tpu"))]
    if platforms == {"cpu"}:
        return [Check("accelerator", "none; the smoke recipes run on a CPU")]
    return []


def _attention(process: subprocess.Popen[str]) -> list[Check]:
    """The attention kernels of the device beside plain attention; none on a CPU."""
    differences, why = finish(process)
    advice = "set model.attention=xla"
    if not isinstance(differences, dict):
        return [Check("attention kernels", "failed", False, f"{why}; {advice}")]
    return [
        Check(
            f"attention, {name}",
            f"{far:.4f} of the largest value from plain attention",
            far < FAR,
            advice * (far >= FAR),
        )
        for name, far in differences.items()
    ]


def _pipeline(process: subprocess.Popen[str]) -> Check:
    actual, why = finish(process)
    good = actual == 56
    return Check(
        "a tf.data pipeline", "runs" if good else "failed", good, "" if good else why or f"expected 56, got {actual}"
    )
