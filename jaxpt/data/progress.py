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


def work_line(name: str, records: int, done: int, total: int, seconds: float) -> str:
    """A line about work of known size: a bar, the pace, the time left.

    Args:
      name: what is made.
      records: made so far.
      done: bytes of text read.
      total: bytes of text in all; 0 where it is not known.
      seconds: time since the start.

    Returns:
      The line.

    Example:
      >>> work_line("train", 5000, 10_000_000, 40_000_000, 20.0)
      'preparing train ██████░░░░░░░░░░░░░░░░░░ 25 % of 40 MB, 5,000 records, 0.5 MB/s, 1:00 left'
      >>> work_line("train", 5000, 10_000_000, 0, 20.0)
      'preparing train: 5,000 records'
    """
    if not total or not done:
        return f"preparing {name}: {records:,} records"
    share = min(done / total, 1.0)
    left = round(seconds / share * (1 - share))
    bar = "█" * round(_BAR * share) + "░" * (_BAR - round(_BAR * share))
    pace = done / seconds / 1e6 if seconds else 0.0
    size = f"{100 * share:.0f} % of {total / 1e6:.0f} MB"
    return f"preparing {name} {bar} {size}, {records:,} records, {pace:.1f} MB/s, {left // 60}:{left % 60:02d} left"
