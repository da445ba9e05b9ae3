"""Progress of work that takes long: one display for the whole process.

    with progress.track("training a vocabulary", total=44, unit="MB") as work:
        for megabyte in text:
            work.add(1)

On a terminal each piece of work has a live line; elsewhere a plain line comes every few seconds, and nothing of what is
done sooner. Lines that must be seen (`note`) stand above the live ones.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from jaxpt.errors import fitted
from jaxpt.runtime.stamp import stamped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Item = TypeVar("Item")
Report = Callable[[str], None]

SECONDS = 5.0
"""Before the first plain line of a piece of work, and at least between two."""
GROWTH = 0.15
"""Of the time that a piece of work has taken: between two plain lines, so that an hour's work fills no log."""
_BAR = 24  # characters


class Work:
    """Work under way."""

    def __init__(self, doing: str, total: float = 0, unit: str = "", first: float = 0) -> None:
        """Begins now.

        Args:
          doing: what is done, shown before the numbers.
          total: the amount of work; 0 if unknown.
          unit: what is counted.
          first: the amount that was done before.
        """
        self.doing, self.total, self.unit = doing, total, unit
        self._done = self._first = first
        self._more, self._line = "", None
        self._begun = time.monotonic()
        self._paced: tuple[float, float] | None = None  # when the first piece was done, and how much

    def at(self, done: float, more: str = "") -> None:
        """Sets the amount that is done, and the text after the numbers."""
        self._done, self._more, self._line = done, more, None
        if self._paced is None and done > self._first:  # before it a program may have been compiled
            self._paced = time.monotonic(), done

    def add(self, amount: float = 1) -> None:
        """Adds to the amount that is done."""
        self.at(self._done + amount, self._more)

    def count(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, of which each is counted when the next one is asked for."""
        for item in items:
            yield item
            self.add()

    def show(self, line: str) -> None:
        """Shows this line, whatever is done."""
        self._line = line

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self._begun

    @property
    def is_measured(self) -> bool:
        """True if more than the time is shown."""
        return bool(self.total or self._line)

    @property
    def line(self) -> str:
        """The line that is shown."""
        if self._line is not None:
            return self._line
        now = time.monotonic()
        if self.total:
            begun, first = self._paced or (now, self._done)
            return progress_line(self.doing, self._done, self.total, self.unit, now - begun, first, self._more)
        count = f" {self._done:,.0f} {self.unit}," if self.unit and self._done else ""
        return f"{self.doing}:{count} {clock(self.seconds)}{self._more}"


def shows_live(console: Console) -> bool:
    """True if lines on a console can replace each other: on a terminal, and in a notebook that has ipywidgets."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


class Display:
    """Shows the work of this process, on a console that may change."""

    def __init__(self) -> None:
        """Shows nothing yet; lines go to standard error."""
        self.quiet = False
        self._console: Console | None = None
        self._works: list[Work] = []
        self._live: Any = None
        self._ended: threading.Event | None = None
        self._lock = threading.RLock()

    @property
    def console(self) -> Console:
        """Where it shows the work."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        return self._console

    @contextmanager
    def on(self, console: Console) -> Iterator[None]:
        """Shows the work on another console meanwhile: that of a run's own lines."""
        before, self._console = self._console, console
        try:
            yield
        finally:
            self._console = before

    def begin(self, work: Work) -> None:
        """Shows this work, too."""
        with self._lock:
            self._works.append(work)
            if len(self._works) == 1 and not self.quiet:
                self._start()

    def end(self, work: Work) -> None:
        """Shows it no more."""
        with self._lock:
            self._works.remove(work)
            if not self._works:
                self._stop()

    def current(self) -> Work | None:
        """The work that began last."""
        return self._works[-1] if self._works else None

    def _start(self) -> None:
        if shows_live(self.console):
            from rich.live import Live

            at_once = sys.stdout.isatty()  # results that go to a file are no lines of the terminal
            self._live = Live(
                console=self.console, transient=True, get_renderable=self._lines, refresh_per_second=8,
                redirect_stdout=at_once,
            )  # fmt: skip
            self._live.start()
        else:
            self._ended = threading.Event()
            threading.Thread(target=self._print_lines, args=(self._ended,), daemon=True).start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _lines(self) -> RenderableType:
        """The live lines."""
        from rich.console import Group
        from rich.text import Text

        works = list(self._works)
        visible = [work for work in works if work.is_measured or work is works[-1]]
        lines = [Text(work.line, no_wrap=True, overflow="ellipsis") for work in visible]
        for line in lines:
            line.highlight_regex(r"[█░]+", "cyan")
        return Group(*lines)

    def _print_lines(self, ended: threading.Event) -> None:
        """Prints a line of the work that began last every few seconds, of long work less and less often."""
        while not ended.wait(max(SECONDS, GROWTH * self._seconds())):
            work = self.current()
            if work is not None and not ended.is_set():
                self.print(work.line)

    def _seconds(self) -> float:
        """How long the work that began last has taken."""
        work = self.current()
        return 0.0 if work is None else work.seconds

    def print(self, line: str) -> None:
        """Prints a line, above the live ones."""
        if self._console is None and not self._live:  # standard error may be another one by now
            print(stamped(fitted(line)), file=sys.stderr, flush=True)
        else:
            self.console.print(stamped(fitted(line)), markup=False, highlight=False, soft_wrap=True)


display = Display()
"""Of this process."""


@contextmanager
def track(doing: str, total: float = 0, unit: str = "", first: float = 0) -> Iterator[Work]:
    """Shows work while it is done.

    Args:
      doing: what is done, shown before the numbers.
      total: the amount of work; 0 if unknown: then the time since the start is shown.
      unit: what is counted.
      first: the amount that was done before.

    Yields:
      The work, which is told how much is done.
    """
    work = Work(doing, total, unit, first)
    display.begin(work)
    try:
        yield work
    finally:
        display.end(work)


def counted(items: Iterable[Item], doing: str, total: float = 0, unit: str = "") -> Iterator[Item]:
    """The items, while their count is shown.

    Args:
      items: any.
      doing: what is done with them.
      total: their number; 0 if unknown.
      unit: what they are.
    """
    with track(doing, total, unit) as work:
        yield from work.count(items)


def advance(amount: float, unit: str) -> None:
    """Adds to the work that began last, if that is counted in this unit: for parts of it."""
    work = display.current()
    if work is not None and work.unit == unit:
        work.add(amount)


class Progress:
    """Lines that replace each other (`update`), and such that must be seen (`note`)."""

    def __init__(self, update: Report = lambda line: None, note: Report | None = None) -> None:
        """`update` and `note` show a line."""
        self.update, self.note = update, note or update


@contextmanager
def progress(report: Report | None, doing: str = "preparing data") -> Iterator[Progress]:
    """Where lines about work go that describes itself.

    Args:
      report: takes a line every few seconds and every note; without it they are in the display.
      doing: what is shown before the first line.

    Yields:
      A Progress.
    """
    if report is None:
        with track(doing) as work:
            yield Progress(work.show, lambda line: None if display.quiet else display.print(line))
        return
    last = float("-inf")

    def now_and_then(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS:
            last = time.monotonic()
            report(line)

    yield Progress(now_and_then, report)


def progress_line(
    doing: str, done: float, total: float, unit: str, seconds: float, first: float = 0, more: str = ""
) -> str:
    """A line about work of known size: a bar, the pace, the time left.

    Args:
      doing: what is done.
      done: how much is done.
      total: how much there is in all.
      unit: what is counted.
      seconds: time since this process began.
      first: what was done before it began.
      more: what else is said of the work that is done.

    Example:
      >>> progress_line("generating", 60, 100, "prompts", 20.0, first=20)
      'generating ██████████████░░░░░░░░░░ 60 of 100 prompts, 2.0 prompts/s, 0:20 left'
      >>> progress_line("generating", 0, 100, "prompts", 0.0)
      'generating ░░░░░░░░░░░░░░░░░░░░░░░░ 0 of 100 prompts'
    """
    line = f"{doing} {bar(done, total)} {done:,.0f} of {total:,.0f} {unit}{more}"
    if done <= first or not seconds:
        return line
    pace = (done - first) / seconds
    return f"{line}, {pace:,.1f} {unit}/s, {clock(max(total - done, 0) / pace)} left"


def bar(done: float, total: float) -> str:
    """A bar of 24 characters.

    Example:
      >>> bar(3, 4)
      '██████████████████░░░░░░'
    """
    full = int(_BAR * min(done / max(total, 1), 1.0))
    return "█" * full + "░" * (_BAR - full)


def work_line(name: str, records: int, done: int, total: int, seconds: float) -> str:
    """A line about records in the making.

    Args:
      name: what is made.
      records: made so far.
      done: bytes of text read.
      total: bytes of text in all; 0 where it is not known.
      seconds: time since the start.

    Example:
      >>> work_line("train", 5000, 10_000_000, 40_000_000, 20.0)
      'preparing train ██████░░░░░░░░░░░░░░░░░░ 10 of 40 MB, 5,000 records, 0.5 MB/s, 1:00 left'
      >>> work_line("validation", 872, 92_000, 92_000, 2.0)
      'preparing validation ████████████████████████ 92 of 92 kB, 872 records, 46.0 kB/s, 0:00 left'
      >>> work_line("train", 5000, 10_000_000, 0, 20.0)
      'preparing train: 5,000 records'
    """
    if not total or not done:
        return f"preparing {name}: {records:,} records"
    scale, unit = (1e6, "MB") if total >= 1e7 else (1e3, "kB")  # in MB a small file would be 0 of 0, its bar empty
    return progress_line(f"preparing {name}", done / scale, total / scale, unit, seconds, more=f", {records:,} records")


def clock(seconds: float) -> str:
    """Minutes and seconds.

    Example:
      >>> clock(75.4)
      '1:15'
    """
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
