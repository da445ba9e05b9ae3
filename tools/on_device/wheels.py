"""Installs those packages of `requirements.txt` that this machine lacks, from wheels, into a folder. No network.

The standard library alone.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
IMPORTS = "import filelock, psutil, pydantic, pytest, rich.console, safetensors, sentencepiece, tokenizers, xdist, yaml"
"""What has to work at the end."""


def requirements(path: Path = REQUIREMENTS) -> list[str]:
    """The lines of a requirements file: "name==version"."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


def missing(lines: Sequence[str]) -> list[str]:
    """Those requirements of which no version is installed."""

    def is_installed(name: str) -> bool:
        try:
            return bool(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            return False

    return [line for line in lines if not is_installed(line.partition("==")[0])]


def install(wheels: Path, target: Path) -> str:
    """Installs what is missing; where that does not fit to what is installed, all of it.

    Args:
      wheels: directory of wheels, as `--pack` collects them.
      target: a new directory; it goes into PYTHONPATH.

    Returns:
      A line that says what was installed, or why not.
    """
    everything = requirements()
    wanted = missing(everything)
    problem = _problem(target)
    if not problem:
        return "all packages are installed"
    for lines in (wanted, everything) if wanted != everything else (everything,):
        if lines:
            error = _pip(wheels, target, lines)
            problem = error or _problem(target)
            if not problem:
                return f"installed {', '.join(lines)}"
    return f"not installed: {problem}; run --pack where there is a network"


def _pip(wheels: Path, target: Path, lines: Sequence[str]) -> str:
    """Runs pip; returns its last line if it failed."""
    options = ("--no-index", "--no-deps", "--no-cache-dir", "--no-compile", "--upgrade", "--disable-pip-version-check")
    folders = ("--find-links", str(wheels), "--target", str(target))
    command = [sys.executable, "-m", "pip", "install", "-q", *options, *folders, *lines]
    done = subprocess.run(command, capture_output=True, text=True)
    return _last_line(done.stderr or done.stdout) if done.returncode else ""


def _problem(target: Path) -> str:
    """Why what is needed cannot be imported with this folder first; "" if it can."""
    code = f"import sys; sys.path.insert(0, {str(target)!r}); {IMPORTS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return _last_line(done.stderr) if done.returncode else ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
