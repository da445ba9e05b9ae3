"""Keeps freed memory in the C library's allocator for the next step, on hosts whose CPU trains.

XLA's CPU client asks malloc for the temporaries of each step, and glibc takes blocks that large from the kernel and
gives them back at once. So each step meets fresh pages, which the kernel fills with zeros: 280,000 page faults a
second and 30 % of the processors' time with a 4 × 256 encoder.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from pathlib import Path

# mallopt's parameters, of malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_GROWTH = 64 << 20
_ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*", "kfd")
"""Device files of TPUs (two generations of drivers) and of GPUs."""


def keep_freed_memory(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> bool:
    """Has malloc keep what is freed. Call it before threads are started: each may get a heap of its own.

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
