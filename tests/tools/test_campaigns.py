"""Campaigns report the runs that they are for: those that refuse to go on, and those that are stuck."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import forked  # noqa: E402
import injections  # noqa: E402
import interrupt  # noqa: E402
import kills  # noqa: E402

HANG = [sys.executable, "-c", "import time; time.sleep(600)"]


class Ended:
    """A start of a run whose processes have ended with some codes."""

    processes = (None,)
    logs = ()

    def __init__(self, *codes):
        self.list = list(codes)

    def codes(self):
        return self.list

    def said(self):
        return ""


@pytest.mark.parametrize("code", [None, 2, 75])
def test_a_run_that_does_not_come_to_its_end_is_wrong_and_not_compared(code, tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "start", lambda *_: Ended(code))
    done, wrong = kills.chain("gpt2", tmp_path, tmp_path / "run", ([], {}), 1.0, random.Random(0), 0)
    assert done == 0 and len(wrong) == 1 and str([code]) in wrong[0]
    monkeypatch.setattr(injections, "start", lambda *_: Ended(code))
    assert injections.alarms(tmp_path, tmp_path / "run", 0) == [code]


def test_the_end_of_a_chain_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "start", lambda *_: Ended(0))
    monkeypatch.setattr(kills, "end_of", lambda _: (["a"], {1: 2.0}))
    for whole, wrong in (((["a"], {1: 2.0}), []), ((["b"], {1: 2.0}), ["other arrays"])):
        assert kills.chain("gpt2", tmp_path, tmp_path / "run", whole, 1.0, random.Random(0), 0) == (0, wrong)


def test_a_stuck_run_is_killed_and_counted(tmp_path, monkeypatch):
    started = subprocess.Popen(HANG)
    assert forked.ended(started, 0.1) is None and started.returncode == -9
    monkeypatch.setattr(interrupt, "command", lambda *_: HANG)
    monkeypatch.setattr(forked, "DEADLINE", 0.2)
    number, code, *_ = interrupt.interrupt(tmp_path, tmp_path / "run", "steps", 0.1, random.Random(0), [15], [])
    assert (number, code) == (None, None) and not interrupt.right_code(number, code)


def test_a_run_that_refuses_to_go_on_is_reported(monkeypatch, capsys):
    program = "import sys; print('refused'); sys.exit(2 * (not sys.argv[1].endswith('whole')))"
    monkeypatch.setattr(interrupt, "command", lambda _, run_dir: [sys.executable, "-c", program, str(run_dir)])
    monkeypatch.setattr(sys, "argv", ["interrupt.py", "--each", "1", "--stages", "steps"])
    assert interrupt.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "0 signals; " in lines[-3] and lines[-3].endswith("final state bit-equal: not compared")
    assert lines[-2].startswith("WRONG steps ended before 2") and lines[-1].startswith("WRONG last 2 ['refused']")
