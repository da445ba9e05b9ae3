"""A small sample of what `tools/flips.py` and `tools/full_disk.py` try: damaged files, and disks that are full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import grids

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import full_disk  # noqa: E402

SAMPLE = """
import pathlib, shutil, sys
import flips, full_disk

kept, made = pathlib.Path(sys.argv[1]), flips.prepare

def prepare():
    made()
    shutil.copytree(".", kept)
    (kept / "new").mkdir()

flips.prepare = prepare
assert flips.main(int(sys.argv[2]), seed=3, jobs=1) == 0
full_disk.WRITERS = {name: full_disk.WRITERS[name] for name in ("export", "cache")}
full_disk.prepare = lambda: shutil.copytree(kept, ".", dirs_exist_ok=True) and None
sys.exit(full_disk.main(6, seed=0, jobs=1, only=None))
"""
"""Both tools in one process, on the run that the first has trained: imports and training are most of what they cost."""


@pytest.mark.slow
@pytest.mark.parametrize("count", grids.cases([6, 40], 6))
def test_no_flip_of_a_bit_is_silent_and_a_full_disk_is_a_line(tmp_path, count):
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"}
    argv = [sys.executable, "-c", SAMPLE, str(tmp_path / "kept"), str(count)]
    found = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
    assert f"0 of {count} wrong" in found.stdout and "0 of 12 wrong" in found.stdout


@pytest.mark.parametrize("gap", [" ", "\n      "], ids=["one line", "a broken line"])
def test_a_study_tells_of_its_rows(gap):
    whole, said = (0, "", "all"), f"[one] failed:{gap}f: File too large\none failed:{gap}f: File too large\n"
    assert full_disk.judge((1, said, ""), whole, whole) == "refused, then done"
    assert full_disk.judge((1, said.replace("one failed:", ""), ""), whole, whole) == "EXIT CODE 1"
    assert full_disk.judge((1, said, ""), (0, "", "other"), whole) == "REFUSED, THEN OTHERWISE"
