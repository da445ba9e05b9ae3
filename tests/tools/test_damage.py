"""A small sample of what `tools/flips.py` and `tools/full_disk.py` try: damaged files, and disks that are full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ended(tool, *arguments):
    """What a tool printed; it found nothing wrong."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
    argv = [sys.executable, ROOT / "tools" / tool, "--jobs", "1", *arguments]
    found = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
    return found.stdout


@pytest.mark.slow
def test_no_flip_of_a_bit_is_silent():
    assert "0 of 40 wrong" in ended("flips.py", "--flips", "40", "--seed", "3")


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["export", "cache"])
def test_a_full_disk_is_a_line(writer):
    assert "0 of 6 wrong" in ended("full_disk.py", "--sizes", "6", "--only", writer)
