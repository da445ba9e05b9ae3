"""This process as the system runs it: memory that malloc keeps, limits (`ulimit`), children that it spawns."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from jaxpt.errors import UserError

# mallopt's parameters, of malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_GROWTH = 64 << 20
_ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*", "kfd")
"""Device files of TPUs (two generations of drivers) and of GPUs."""
MIN_BYTES = 3_000_000_000
"""Address space that JAX and TensorFlow take before they do anything; not all of it is ever memory."""
_SPAWNING = threading.Lock()


def keep_freed_memory(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> bool:
    """Has malloc keep what is freed. Call it before threads are started: each may get a heap of its own.

    XLA's CPU client asks malloc for the temporaries of each step, and glibc takes blocks that large from the kernel and
    gives them back at once. So each step meets fresh pages, which the kernel fills with zeros: 280,000 page faults a
    second and 30 % of the processors' time with a 4 × 256 encoder.

    The process stays as large as its largest step. Nothing changes if the step runs on an accelerator (the host's
    memory is then the data pipeline's, whose threads want heaps of their own), if the environment sets malloc's
    options, and with other C libraries.

    Args:
      environment: variables of the process.
      devices: the directory of device files.

    Returns:
      True if it is set.
    """
    is_set = "GLIBC_TUNABLES" in environment or any(name.startswith("MALLOC_") for name in environment)
    if is_set or platform.libc_ver()[0] != "glibc" or not trains_on_cpu(environment, devices):
        return False
    set_option = ctypes.CDLL(None).mallopt
    # There is one heap, which grows and is never trimmed (-1), and no block has a mapping of its own.
    options = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, _GROWTH))
    return sum(set_option(parameter, value) for parameter, value in options) == len(options)


def trains_on_cpu(environment: Mapping[str, str], devices: Path) -> bool:
    """True if steps will run on this host's CPU, as far as the environment and the device files say."""
    chosen = environment.get("JAX_PLATFORMS")
    return chosen == "cpu" if chosen else not any(any(devices.glob(pattern)) for pattern in _ACCELERATORS)


def check_limits() -> None:
    """Raises UserError where the address space is too small to load the libraries in.

    Under such a limit they crash or hang rather than say what they lack.
    """
    for number, name, command in (
        (resource.RLIMIT_AS, "address space", "ulimit -v"),
        (resource.RLIMIT_DATA, "data segment", "ulimit -d"),
    ):
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY and limit < MIN_BYTES:
            raise UserError(
                f"{command}: the {name} of a process is limited to {limit / 1e9:.1f} GB; JAX and TensorFlow want "
                f"{MIN_BYTES / 1e9:.1f} GB or more: {command} unlimited"
            )


@contextlib.contextmanager
def without_script() -> Iterator[None]:
    """Keeps processes that are started within it from importing the script that is running.

    `multiprocessing` has each of them import it, for what is defined there. A script without `if __name__ ==
    "__main__":` would run again in every one of them, and wait there for the work that they were started for.
    """
    with _SPAWNING:  # all threads see the change: a second one would take the stand-in for the script
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script
