"""What a step waits for and takes: the host's time for the next batch, and the memory of the devices."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import jax

NOTABLE = 0.2
"""From this share of the step time on, waiting for input is shown."""


class InputWait:
    """Batches, and how long the host waited for them since the last call of `share`."""

    def __init__(self, feed: Iterator[Any], readers: int) -> None:
        """Of `feed`, which is made by so many threads (0: the default)."""
        self._feed, self._readers = feed, readers
        self._waited, self._steps, self._idle = 0.0, 0, 0
        self._is_said = False

    def next(self, figures: Any = None) -> Any:
        """The next batch.

        Args:
          figures: what the step under way will return; that it is there already says that the device waits as well.
            None before the first step, whose batch nobody has begun to make: it does not count.

        Returns:
          The batch.
        """
        begun = time.perf_counter()
        batch = next(self._feed)
        if figures is not None:
            self._waited += time.perf_counter() - begun
            self._steps += 1
            self._idle += all(x.is_ready() for x in jax.tree.leaves(figures))
        return batch

    def share(self, seconds: float) -> tuple[float, str]:
        """How much of some time went into waiting, since the last call.

        Args:
          seconds: the time.

        Returns:
          (share, a hint): the hint comes once, if the share is notable and most batches came after the device was idle.
        """
        share = min(self._waited / max(seconds, 1e-9), 1.0)
        is_bound = share > NOTABLE and 2 * self._idle > self._steps and not self._is_said
        self._is_said |= is_bound
        self._waited, self._steps, self._idle = 0.0, 0, 0
        return share, self._hint(share) if is_bound else ""

    def _hint(self, share: float) -> str:
        cores = os.cpu_count() or 1
        readers = self._readers or min(4, cores)
        more = f"raise data.readers={readers} (this host has {cores} cores)"
        if readers >= cores:
            more = f"data.readers={readers} threads already use the {cores} cores of this host: more cores are needed"
        return f"{share:.0%} of the step time goes into waiting for the next batch; {more}"


def device_memory() -> dict[str, float | None]:
    """Memory of this process's devices, where the most is in use; the allocator is asked, not the device.

    Returns:
      {"bytes_in_use", "peak_bytes_in_use": since the process began}; None where the backend does not say, as on CPUs.
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    known = {name: [stat[name] for stat in stats if name in stat] for name in ("bytes_in_use", "peak_bytes_in_use")}
    return {name: float(max(sizes)) if sizes else None for name, sizes in known.items()}
