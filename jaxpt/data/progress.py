"""Progress of data preparation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxpt.errors import fitted

Report = Callable[[str], None]

_SECONDS = 5.0
_BAR = 24  # characters


class Progress:
    """Lines that replace each other (`update`), and such that must be seen (`note`)."""

    def __init__(self, update: Report = lambda line: None, note: Report | None = None) -> None:
        """`update` and `note` show a line."""
        self.update, self.note = update, note or update


@contextmanager
def progress(report: Report | None) -> Iterator[Progress]:
    """Where the lines go.

    Args:
      report: takes a line every few seconds and every note; without it a live line on a terminal, notes on stderr.

    Yields:
      A Progress.
    """
    if report is not None:
        last = float("-inf")

        def now_and_then(line: str) -> None:
            nonlocal last
            if time.monotonic() - last > _SECONDS:
                last = time.monotonic()
                report(line)

        yield Progress(now_and_then, report)
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Progress(note=lambda line: print(fitted(line), file=sys.stderr))
        return
    with console.status("preparing data") as status:
        yield Progress(
            lambda line: status.update(line.replace("[", r"\[")),
            lambda line: console.print(fitted(line), markup=False, soft_wrap=True),
        )


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
    full = int(_BAR * min(done / max(total, 1), 1.0))
    line = f"{doing} {'█' * full}{'░' * (_BAR - full)} {done:,.0f} of {total:,.0f} {unit}{more}"
    if done <= first or not seconds:
        return line
    pace = (done - first) / seconds
    left = round(max(total - done, 0) / pace)
    return f"{line}, {pace:,.1f} {unit}/s, {left // 60}:{left % 60:02d} left"


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
      >>> work_line("train", 5000, 10_000_000, 0, 20.0)
      'preparing train: 5,000 records'
    """
    if not total or not done:
        return f"preparing {name}: {records:,} records"
    return progress_line(f"preparing {name}", done / 1e6, total / 1e6, "MB", seconds, more=f", {records:,} records")
