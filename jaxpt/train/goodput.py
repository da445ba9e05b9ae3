"""Where the wall time of a run goes: a clock with one activity at a time, so that its parts sum to the whole.

The sums of all starts of a run add up in run.json. A process that is killed writes none: what its heartbeat file said
last counts, and the steps that it did after the checkpoint from which the next one resumes are lost work.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ACTIVITIES = ("start", "compile", "data", "steps", "saves", "evaluation", "lost", "down")
"""start: imports, data, restore, anew after each restart; data: waiting for a batch while the device is idle; lost:
steps that are done again, after a kill or a rewind; down: from a killed process's last heartbeat to the next start."""
HEARTBEAT = "heartbeat.json"
"""The file in the run_dir, written every few seconds while the run is under way."""


class Clock:
    """Seconds of each activity of a process; the main thread switches, others may read.

    Example:
      >>> clock = Clock(0.0, now=lambda: 10.0)
      >>> clock.switch("steps")
      >>> clock.seconds()["start"]
      10.0
    """

    def __init__(self, begun: float, now: Any = time.monotonic) -> None:
        """Began at `begun`, seconds as `now` gives them, with "start"."""
        self._now, self._lock = now, threading.RLock()
        self._sums = dict.fromkeys(ACTIVITIES, 0.0)
        self.activity, self.since = "start", begun
        """What the main thread does, and since when, or since its last sign of progress."""
        self._is_fetching = False
        self._counted = begun
        self.begin(0)

    def begin(self, step: int) -> None:
        """The next steps follow this one, of a checkpoint."""
        self.step = self.first_step = step
        self.first_seconds = self.seconds()["steps"]
        """Seconds of steps up to there, which are other steps' or other processes'."""

    def switch(self, activity: str) -> None:
        """Begins an activity; the one before ends."""
        with self._lock:
            now = self._now()
            self._sums[self.activity] += now - self._counted
            self.activity, self._counted, self.since = activity, now, now

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """An activity within another one."""
        outer = self.activity
        self.switch(activity)
        try:
            yield
        finally:
            self.switch(outer)

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        """The host waits for a batch while the device works: it counts as steps, but `doing` is "data"."""
        self._is_fetching = True
        try:
            yield
        finally:
            self._is_fetching = False

    @property
    def doing(self) -> str:
        """The activity, or "data" within `fetching`."""
        return "data" if self._is_fetching else self.activity

    def beat(self, step: int) -> None:
        """A step was done: the activity makes progress."""
        with self._lock:
            self.step, self.since = step, self._now()

    def move(self, seconds: float, source: str, target: str) -> None:
        """Counts some seconds of an activity as another one's."""
        with self._lock:
            seconds = min(seconds, self.seconds()[source])
            self._sums[source] -= seconds
            self._sums[target] += seconds

    def lose_steps(self, back_to: int) -> None:
        """Counts the steps after `back_to` as lost: the run goes back there."""
        since = self.seconds()["steps"] - self.first_seconds
        self.move(_lost(since, self.step - self.first_step, self.step - back_to), "steps", "lost")
        self.begin(back_to)

    def seconds(self) -> dict[str, float]:
        """Seconds of each activity up to now; they sum to the time since the clock began."""
        with self._lock:
            return self._sums | {self.activity: self._sums[self.activity] + self._now() - self._counted}

    def add(self, earlier: Mapping[str, float]) -> None:
        """Takes over the sums of earlier starts of the run."""
        with self._lock:
            for activity in ACTIVITIES:
                self._sums[activity] += float(earlier.get(activity, 0.0))


def of_killed(run_dir: Path, begun: float, resumed: int) -> dict[str, float]:
    """What a process that was killed spent, by its last heartbeat; {} where the last one ended in order.

    Args:
      run_dir: of the run.
      begun: when this process began, in seconds since the epoch.
      resumed: the step that it resumes from.
    """
    try:
        last = json.loads((run_dir / HEARTBEAT).read_text(encoding="utf-8"))
        seconds = {activity: float(last["seconds"].get(activity, 0.0)) for activity in ACTIVITIES}
        steps, first, at = int(last["step"]), int(last["first_step"]), float(last["time"])
        since = seconds["steps"] - float(last["first_seconds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or cut short: nothing depends on it
        return {}
    lost = min(_lost(since, steps - first, steps - resumed), seconds["steps"])
    return seconds | {
        "steps": seconds["steps"] - lost,
        "lost": seconds["lost"] + lost,
        "down": seconds["down"] + max(begun - at, 0.0),
    }


def _lost(seconds: float, steps: int, lost: int) -> float:
    """Seconds of some lost steps, at the pace of those that took so many seconds."""
    return max(seconds, 0.0) * max(lost, 0) / max(steps, 1)


def shares(seconds: Mapping[str, float]) -> dict[str, Any]:
    """What run.json says: seconds of each activity that took any, and the share of steps that were not lost.

    Example:
      >>> shares({"steps": 75.0, "saves": 25.0, "lost": 0.0})
      {'goodput': 0.75, 'seconds': {'steps': 75.0, 'saves': 25.0}}
    """
    total = sum(seconds.values())
    rounded = {activity: round(x, 3) for activity, x in seconds.items() if x >= 5e-4}
    return {"goodput": round(seconds.get("steps", 0.0) / max(total, 1e-9), 4), "seconds": rounded}
