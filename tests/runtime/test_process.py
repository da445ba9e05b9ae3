"""Freed memory that malloc keeps, and limits of the system that are said before libraries are loaded."""

import subprocess
import sys

import pytest

from jaxpt.runtime import process

FAULTS = """
import resource, threading
from jaxpt.runtime import process
import numpy as np

assert not KEEP or process.keep_freed_memory({"JAX_PLATFORMS": "cpu"})

def step():
    np.ones(32 << 20, np.uint8)

def count(run):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def in_thread():
    thread = threading.Thread(target=lambda: [step() for _ in range(8)])
    thread.start()
    thread.join()

step(), in_thread()
print(count(lambda: [step() for _ in range(8)]), count(in_thread))
"""
LIMITED = """
import resource, sys
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]),) * 2)
from jaxpt.runtime import process
from jaxpt.errors import UserError
try:
    process.check_limits()
except UserError as error:
    print(error)
"""


def faults(source: str) -> list[int]:
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    return [int(word) for word in run.stdout.split()]


@pytest.mark.skipif(process.platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_by_all_threads():
    # A fresh page is a page fault: 32 MiB have 8,192 pages, or 16 if the kernel hands out pages of 2 MiB.
    assert max(faults(FAULTS.replace("KEEP", "True"))) < 16
    assert min(faults(FAULTS.replace("KEEP", "False"))) > 8 * 16


@pytest.mark.parametrize(
    "environment, files, trains_here",
    [
        ({"JAX_PLATFORMS": "cpu"}, ["nvidia0"], True),
        ({"JAX_PLATFORMS": "cuda"}, [], False),
        ({}, [], True),
        ({}, ["nvidiactl"], True),  # the driver without a GPU
        ({}, ["nvidia0"], False),
        ({}, ["accel0"], False),
        ({}, ["vfio/vfio"], True),  # the driver without a TPU
        ({}, ["vfio/vfio", "vfio/0"], False),
    ],
)
def test_only_where_the_cpu_trains(tmp_path, environment, files, trains_here):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert process.trains_on_cpu(environment, tmp_path) == trains_here


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX"])
def test_the_environment_wins(name):
    assert not process.keep_freed_memory({"JAX_PLATFORMS": "cpu", name: "1"})


@pytest.mark.parametrize(("name", "command"), [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")])
def test_too_little_address_space_is_said(name, command):
    for size, words in ((1_500_000_000, f"{command}: the "), (process.MIN_BYTES, "")):
        argv = [sys.executable, "-c", LIMITED, name, str(size)]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert said.startswith(words) and bool(said) == bool(words)
        assert not words or ("limited to 1.5 GB" in said and f"{command} unlimited" in said)
