"""What a person sees of a run: a header, then a bar on a terminal or in a notebook, or plain lines in a log file."""

from __future__ import annotations

import os
import signal
import sys
import time

from rich.console import Console

from jaxpt.errors import fitted, printable
from jaxpt.runtime import progress
from jaxpt.runtime.stamp import stamped

NOTABLE = 0.2
"""From this share of the step time on, waiting for input is shown."""


class _Console(Console):
    """A console that a run outlives: where nobody reads on, the process stops as by a signal, after a checkpoint."""

    def on_broken_pipe(self) -> None:
        """Overrides rich's, which exits at once."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("jaxpt: standard output was closed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)


console = _Console(highlight=False, soft_wrap=True)
"""Quiet in all processes of a run but the first."""


def say(text: str) -> None:
    """Lines of the run, by the first process, above a bar where there is one; square brackets are not markup."""
    console.print(stamped(fitted(text)), markup=False)


def note(text: str) -> None:
    """A line that a user should see, though nothing failed."""
    say(f"note: {printable(text)}")


def warn(text: str) -> None:
    """A line about this process, whichever it is."""
    if console.quiet:
        print(stamped(text), file=sys.stderr, flush=True)
    else:
        say(text)


def number(value: float) -> str:
    """A count with an SI letter: 1234567 → 1.23M."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: 75 → 1m15s."""
    seconds = round(seconds)  # 75 seconds by two readings of a clock may be 74.99999
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


class Display:
    """The live line of a run."""

    def __init__(self, start: int, total: int, tokens_per_step: int, flops_per_step: float, peak: float | None) -> None:
        self._total, self._tokens, self._flops, self._peak = total, tokens_per_step, flops_per_step, peak
        self._from, self._begun = start, time.perf_counter()
        self._last_step, self._last_time = start, self._begun
        self._paused = 0.0
        self._work = progress.Work("training", total, "steps", start) if progress.shows_live(console) else None

    def __enter__(self) -> Display:
        if self._work:
            progress.display.begin(self._work)
        return self

    def __exit__(self, *error: object) -> None:
        if self._work:
            progress.display.end(self._work)

    def paused(self, seconds: float) -> None:
        """Time that evaluation or the like took: not counted as training time."""
        self._paused += seconds

    def rates(self, step: int) -> dict[str, float]:
        """Speed since the last call: steps/s, tokens/s, seconds left, and MFU where the peak is known."""
        now = time.perf_counter()
        busy = max(now - self._last_time - self._paused, 1e-9)
        steps_per_second = (step - self._last_step) / busy
        rates = {"steps_per_second": steps_per_second, "tokens_per_second": steps_per_second * self._tokens}
        if self._peak:
            rates["mfu"] = steps_per_second * self._flops / self._peak
        average = (step - self._from) / max(now - self._begun, 1e-9)
        rates["seconds_left"] = (self._total - step) / max(average, 1e-9)
        self._last_step, self._last_time, self._paused = step, now, 0.0
        return rates

    def step(self, step: int, loss: float, learning_rate: float, rates: dict[str, float]) -> None:
        """Shows where the run is."""
        mfu = f"  MFU {rates['mfu']:.1%}" if "mfu" in rates else ""
        wait = rates.get("input_wait", 0.0)
        waits = f"  input {wait:.0%}" if wait > NOTABLE else ""
        line = (
            f"step {step}/{self._total}  loss {loss:.4f}  lr {learning_rate:.2e}  "
            f"{number(rates['tokens_per_second'])} tokens/s{mfu}{waits}  {duration(rates['seconds_left'])} left"
        )
        if self._work:
            self._work.show(f"training {progress.bar(step, self._total)} {line}")
        if not self._work or step == self._total:  # the bar goes, what it ended with stays
            say(line)
