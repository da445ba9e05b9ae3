"""A small sample of what `tools/flips.py` and `tools/full_disk.py` try: damaged files, and disks that are full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import full_disk  # noqa: E402


def ended(tool, *arguments):
    """What a tool printed; it found nothing wrong."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
    argv = [sys.executable, ROOT / "tools" / tool, "--jobs", "1", *arguments]
    found = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
    return found.stdout


@pytest.mark.slow
def test_no_flip_of_a_bit_is_silent():
    assert "0 of 20 wrong" in ended("flips.py", "--flips", "20", "--seed", "3")


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["export", "cache"])
def test_a_full_disk_is_a_line(writer):
    assert "0 of 6 wrong" in ended("full_disk.py", "--sizes", "6", "--only", writer)


@pytest.mark.parametrize("gap", [" ", "\n      "], ids=["one line", "a broken line"])
def test_a_study_tells_of_its_rows(gap):
    whole, said = (0, "", "all"), f"[one] failed:{gap}f: File too large\none failed:{gap}f: File too large\n"
    assert full_disk.judge((1, said, ""), whole, whole) == "refused, then done"
    assert full_disk.judge((1, said.replace("one failed:", ""), ""), whole, whole) == "EXIT CODE 1"
    assert full_disk.judge((1, said, ""), (0, "", "other"), whole) == "REFUSED, THEN OTHERWISE"
