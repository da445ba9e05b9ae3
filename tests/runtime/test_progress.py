"""What is shown of work that takes long."""

import doctest
import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from jaxpt.runtime import progress
from tests.waiting import until


@pytest.fixture
def display(monkeypatch):
    """A display of its own, with a line every few milliseconds."""
    display = progress.Display()
    monkeypatch.setattr(progress, "display", display)
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    return display


def _work(wait):
    """Work of four pieces; `wait` gets the line at each of them."""
    with progress.track("writing", 4, "tensors") as work:
        for done in work.count(range(4)):
            wait(f"{done} of 4 tensors")


def test_a_notebook_without_widgets_has_plain_lines(monkeypatch):
    console = Console(file=io.StringIO(), force_jupyter=True)
    for has_widgets in (True, False):
        monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name, found=has_widgets: found or None)
        assert progress.shows_live(console) == has_widgets
    assert progress.shows_live(Console(force_terminal=True))


def test_examples_in_docstrings():
    assert doctest.testmod(progress).failed == 0


def test_plain_lines_with_count_and_time_left(display, capsys, monkeypatch):
    printed, print_line = [], display.print
    monkeypatch.setattr(display, "print", lambda line: (print_line(line), printed.append(line)))
    _work(lambda words: until(lambda: [line for line in printed if words in line]))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0].startswith("writing ░") and "0 of 4 tensors" in lines[0] and not out
    assert lines[-1].endswith(" left") and "3 of 4 tensors, " in lines[-1]


def test_long_work_has_fewer_lines(display, capsys, monkeypatch):
    """The gap between two lines grows with the time that the work has taken."""
    now = 0.0

    def wait(seconds):
        nonlocal now
        now += seconds
        return now > 0.5

    display.quiet = True  # its own thread has the machine's clock
    monkeypatch.setattr(progress, "GROWTH", 1.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with progress.track("compiling", 4, "programs"):
        display._print_lines(SimpleNamespace(wait=wait, is_set=lambda: False))
    assert len(capsys.readouterr().err.splitlines()) == 6  # after .01, .02, .04, … .32 s; every .01 s they would be 49


def test_work_of_unknown_size_shows_its_time(display):
    work = progress.Work("compiling", unit="programs")
    assert work.line == "compiling: 0:00"
    work.add(1200)
    assert work.line == "compiling: 1,200 programs, 0:00"


def test_quiet(display, capsys):
    display.quiet = True
    with progress.progress(None) as say:
        say.note("prepared")
    _work(lambda words: time.sleep(0.03))
    assert capsys.readouterr() == ("", "")


def test_short_work_says_nothing(monkeypatch, capsys):
    with progress.track("reading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_live_line_on_a_terminal(display):
    """Measured work stays in sight under what it is a part of; a note stands above."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with display.on(console), progress.track("training", 10, "steps"), progress.track("evaluating") as work:
        work.show("evaluating: 5 of 10 rows")
        display.print("step 5")
        until(lambda: "evaluating: 5 of 10 rows" in screen.getvalue())
    shown = screen.getvalue()
    assert "training" in shown and "evaluating: 5 of 10 rows" in shown and "step 5" in shown
    assert display.current() is None


def test_parts_count_what_is_counted(display):
    with progress.track("evaluating", 10, "rows") as work:
        progress.advance(4, "rows")
        progress.advance(3, "batches")
    assert "4 of 10 rows" in work.line


def test_a_report_gets_notes_at_once_and_few_lines(monkeypatch):
    lines = []
    with progress.progress(lines.append) as say:
        for n in range(3):
            say.update(f"line {n}")
        say.note("prepared")
    assert lines == ["line 0", "prepared"]


def test_the_pace_counts_from_the_first_piece(monkeypatch):
    """What is done once before it, such as compilation, is no part of a piece."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    work = progress.Work("evaluating", 5, "rows")
    monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)
    work.add()
    assert work.line == "evaluating ████░░░░░░░░░░░░░░░░░░░░ 1 of 5 rows"
    monkeypatch.setattr(progress.time, "monotonic", lambda: 102.0)
    work.add()
    assert work.line.endswith("2 of 5 rows, 0.5 rows/s, 0:06 left")
