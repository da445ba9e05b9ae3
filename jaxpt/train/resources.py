"""What a run waits for and takes: time for the next batch, memory of the devices, space on the disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxpt.config import CheckpointConfig
from jaxpt.errors import StorageError
from jaxpt.runtime import disk
from jaxpt.train.display import NOTABLE
from jaxpt.train.state import Setup, size


class InputWait:
    """Batches, and how long the host waited for them since the last call of `share`."""

    def __init__(self, feed: Iterator[Any], readers: int) -> None:
        """Of `feed`, which is made by so many threads (0: the default)."""
        self._feed, self._readers = feed, readers
        self._waited, self._steps, self._idle = 0.0, 0, 0
        self._is_said = False
        self.idle_seconds = 0.0
        """Time that the device had nothing to do since all were taken (`take_idle`)."""

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
            waited = time.perf_counter() - begun
            self._waited += waited
            self._steps += 1
            if all(x.is_ready() for x in jax.tree.leaves(figures)):
                self._idle += 1
                self.idle_seconds += waited
        return batch

    def take_idle(self) -> float:
        """Seconds of waiting after which the device was idle, since the last call."""
        seconds, self.idle_seconds = self.idle_seconds, 0.0
        return seconds

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


def disk_need(setup: Setup, config: CheckpointConfig) -> int:
    """Bytes that the checkpoints of a run take at most, those kept by `keep_every` not counted."""
    rolling = config.keep_last + config.keep_best + config.save_initial_state
    return size(setup.shapes) * (rolling + 1)  # + 1: the one being written


def check_space(setup: Setup, config: CheckpointConfig, run_dir: Path) -> None:
    """Raises StorageError where the disk cannot hold the run's checkpoints besides those that are there and will go."""
    rolling = config.keep_last + config.keep_best + config.save_initial_state
    checkpoint_bytes = size(setup.shapes)
    checkpoint_dirs = [path for path in (run_dir / "checkpoints").glob("*") if path.name.isdigit()]
    if config.keep_every:
        checkpoint_dirs = [path for path in checkpoint_dirs if int(path.name) % config.keep_every]
    need = disk_need(setup, config) - checkpoint_bytes * min(len(checkpoint_dirs), rolling)
    free = shutil.disk_usage(disk.nearest_existing(run_dir)).free
    if need > free:
        more = "more " if checkpoint_dirs else ""
        raise StorageError(
            f"{run_dir}: the run's checkpoints need {more}{need / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; "
            "free some space, lower checkpoint.keep_last or keep_best, or choose another run_dir"
        )
