"""A thread beside a run: it writes the heartbeat, and names what takes too long, with the stack of every thread."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from jaxpt.config import Config
from jaxpt.parallel import failures
from jaxpt.runtime import exit_codes
from jaxpt.runtime.disk import write_text
from jaxpt.train.display import duration, warn
from jaxpt.train.goodput import HEARTBEAT, Clock

WATCHED = {"steps": "a step", "data": "a batch of data", "saves": "a save"}
"""{activity: what it is called}; evaluations and starts may take any time."""
HEARTBEAT_SECONDS = 1.0
"""Time between two heartbeats: what a killed process did after its last one counts as down."""
_WRITING_SHARE = 0.01
"""Of the time, at most, goes into heartbeats: on a slow file system they are rarer."""
_LOOKS = 20
"""Looks within `train.stall_seconds`."""


class Watchdog(threading.Thread):
    """Looks at the clock of the main thread."""

    def __init__(self, config: Config, run_dir: Path, clock: Clock, is_primary: bool) -> None:
        """Stacks go to `RUN_DIR/stacks-PROCESS.txt`."""
        super().__init__(name="jaxpt-watchdog", daemon=True)
        self._limit, self._exits = config.train.stall_seconds, config.train.stall_exit
        self._run_dir, self._clock, self._is_primary = run_dir, clock, is_primary
        self._ended = threading.Event()
        self._written, self._every = 0.0, HEARTBEAT_SECONDS
        self._reported = 0.0
        """Since when what was reported last had been under way."""

    def run(self) -> None:
        """Looks until `end`."""
        pause = HEARTBEAT_SECONDS if self._limit is None else min(HEARTBEAT_SECONDS, self._limit / _LOOKS)
        self._write_heartbeat()
        while not self._ended.wait(pause):
            if time.monotonic() - self._written >= self._every:
                self._write_heartbeat()
            if line := self.stalled(time.monotonic()):
                self._report(line)

    def stalled(self, now: float) -> str | None:
        """What is to be said of an activity that takes too long; once for each.

        Args:
          now: seconds, as `time.monotonic` gives them.
        """
        activity, since = self._clock.doing, self._clock.since
        if self._limit is None or activity not in WATCHED or now - since <= self._limit or since == self._reported:
            return None
        self._reported = since
        late = f"{WATCHED[activity]} after step {self._clock.step} has taken {duration(now - since)}"
        return f"process {jax.process_index()}: {late} (train.stall_seconds: {self._limit:g})"

    def _report(self, line: str) -> None:
        file = self._run_dir / f"stacks-{jax.process_index()}.txt"
        frames = sys._current_frames().get(threading.main_thread().ident or 0)
        place = f"{frames.f_code.co_filename}:{frames.f_lineno} in {frames.f_code.co_name}" if frames else "?"
        with contextlib.suppress(OSError), file.open("a", encoding="utf-8") as stacks:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", file=stacks, flush=True)
            faulthandler.dump_traceback(stacks)
        if silent := failures.silent():
            line += f"; process {', '.join(map(str, silent))} gives no sign of life"
        line += f"; it is at {place}; all stacks: {file}"
        if not self._exits:
            warn(line)
            return
        failures.end_all(exit_codes.RETRY, f"{line}; train.stall_exit ends the run, re-run the same command to resume")

    def _write_heartbeat(self) -> None:
        self._written = time.monotonic()  # a clock that is set back would hold up all heartbeats
        if not self._is_primary:
            return
        clock = self._clock
        facts = {
            "time": round(time.time(), 3), "step": clock.step, "first_step": clock.first_step,
            "first_seconds": round(clock.first_seconds, 3), "activity": clock.doing,
            "process": os.getpid(), "host": socket.gethostname(),
            "seconds": {name: round(x, 3) for name, x in clock.seconds().items()},
        }  # fmt: skip
        with contextlib.suppress(OSError):  # a full disk, of which what matters more will tell
            write_text(self._run_dir / HEARTBEAT, json.dumps(facts) + "\n")
        self._every = max(HEARTBEAT_SECONDS, (time.monotonic() - self._written) / _WRITING_SHARE)

    def end(self, in_order: bool = True) -> None:
        """Stops looking.

        Args:
          in_order: the process has written run.json, which has what the heartbeat says: the heartbeat goes.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self.join(1.0)
        if not in_order:
            self._write_heartbeat()
        elif self._is_primary:
            with contextlib.suppress(OSError):
                (self._run_dir / HEARTBEAT).unlink(missing_ok=True)


@contextlib.contextmanager
def watching(config: Config, run_dir: Path, clock: Clock, is_primary: bool) -> Iterator[Callable[[], None]]:
    """A watchdog within this block.

    Args:
      config: of the run.
      run_dir: of the run, which exists.
      clock: what the main thread does.
      is_primary: whether this process writes the heartbeat.

    Yields:
      What ends it when run.json is written; else the last heartbeat says where the process was.
    """
    dog = Watchdog(config, run_dir, clock, is_primary)
    dog.start()
    try:
        yield dog.end
    finally:
        dog.end(in_order=False)


class Throughput:
    """Notices that a run has become slow, against its own logged rates, and stays so: other programs pass.

    Example:
      >>> throughput = Throughput()
      >>> [throughput.see(rate, 5.0) for rate in [8.0] * 10 + [3.0] * 3][-2:]
      [None, '3 steps/s in the last 15 s, usually 8']
    """

    WINDOW, FEWEST, SHARE = 50, 10, 0.5
    LINES, SECONDS = 3, 10.0
    """A stretch that is told of has at least so many log lines, and lasts at least so long."""

    def __init__(self) -> None:
        """No rate is known yet."""
        self._rates: deque[float] = deque(maxlen=self.WINDOW)
        self._slow: list[tuple[float, float]] = []
        self._is_told = False

    def see(self, rate: float, seconds: float) -> str | None:
        """What is to be said after a log line, once for each slow stretch.

        Args:
          rate: steps per second since the line before, without evaluations.
          seconds: that time.
        """
        usual = statistics.median(self._rates) if len(self._rates) >= self.FEWEST else None
        if usual is None or rate >= self.SHARE * usual:
            self._rates.append(rate)
            self._slow, self._is_told = [], False
            return None
        self._slow.append((rate, seconds))
        lasts = sum(seconds for _, seconds in self._slow)
        if len(self._slow) >= 4 * self.LINES and lasts >= 4 * self.SECONDS:  # this is usual from now on
            self._rates.clear()
        if self._is_told or len(self._slow) < self.LINES or lasts < self.SECONDS:
            return None
        self._is_told = True
        now = statistics.median(rate for rate, _ in self._slow)
        return f"{now:.3g} steps/s in the last {lasts:.0f} s, usually {usual:.3g}"
