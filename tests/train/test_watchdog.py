"""What takes too long is named with its process and stack; the heartbeat says where a run is."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxpt.train import goodput, watchdog
from jaxpt.train.goodput import Clock
from tests.waiting import LIMIT, until

ROOT = Path(__file__).parents[2]


def config(seconds, exits=False):
    return SimpleNamespace(train=SimpleNamespace(stall_seconds=seconds, stall_exit=exits))


def test_each_stall_is_told_once_and_progress_is_none(tmp_path):
    clock = Clock(time.monotonic())
    dog = watchdog.Watchdog(config(10.0), tmp_path, clock, True)
    for activity in goodput.ACTIVITIES:
        clock.switch(activity)
        assert dog.stalled(clock.since + 9) is None
        line = dog.stalled(clock.since + 75)
        assert (line is not None) == (activity in watchdog.WATCHED)
        assert dog.stalled(clock.since + 99) is None
    clock.switch("steps")
    clock.beat(7)
    assert dog.stalled(clock.since + 75) == ("process 0: a step after step 7 has taken 1m15s (train.stall_seconds: 10)")
    clock.beat(8)
    assert dog.stalled(clock.since + 5) is None
    with clock.fetching():
        assert dog.stalled(clock.since + 75).startswith("process 0: a batch of data after step 8 has taken 1m15s")
    assert watchdog.Watchdog(config(None), tmp_path, clock, True).stalled(clock.since + 1e9) is None


def test_a_stall_is_named_with_its_stack(tmp_path, capsys):
    clock, file, end = Clock(time.monotonic()), tmp_path / "stacks-0.txt", time.monotonic() + LIMIT
    with watchdog.watching(config(0.05), tmp_path, clock, True):
        dog = next(thread for thread in threading.enumerate() if thread.name == "jaxpt-watchdog")
        with clock.during("data"):
            while not file.exists() and time.monotonic() < end:  # these lines are what the main thread waits at
                time.sleep(0.01)
        heartbeat = json.loads((tmp_path / goodput.HEARTBEAT).read_text())
    dog.join(LIMIT)  # the line comes after the stacks
    assert heartbeat["process"] == os.getpid() and set(heartbeat["seconds"]) == set(goodput.ACTIVITIES)
    said = capsys.readouterr()
    said = " ".join((said.out + said.err).split())
    assert said.count("a batch of data after step 0 has taken") == 1 and "test_watchdog.py:" in said
    stacks = file.read_text()
    assert "test_a_stall_is_named_with_its_stack" in stacks and "a batch of data after step 0" in stacks


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_is_set_is_no_stall_and_holds_up_no_heartbeat(tmp_path, monkeypatch, capsys, days):
    monkeypatch.setattr(watchdog, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "_WRITING_SHARE", 1.0)
    real, clock = time.time, Clock(time.monotonic())
    with watchdog.watching(config(3600.0), tmp_path, clock, True), clock.during("steps"):
        monkeypatch.setattr(time, "time", lambda: real() + 86_400 * days)
        clock.step = 7
        file = tmp_path / goodput.HEARTBEAT
        until(lambda: file.exists() and json.loads(file.read_text())["step"] == 7)
        heartbeat = json.loads(file.read_text())
        time.sleep(0.05)
    assert 0 <= sum(heartbeat["seconds"].values()) < 3600
    said = capsys.readouterr()
    assert "has taken" not in said.out + said.err


@pytest.mark.parametrize("in_order", [True, False])
def test_the_heartbeat_stays_where_a_process_ends_otherwise(tmp_path, in_order):
    with watchdog.watching(config(None), tmp_path, Clock(time.monotonic()), True) as end:
        if in_order:
            end()
    assert (tmp_path / goodput.HEARTBEAT).exists() != in_order


def test_a_stall_may_end_the_process_with_the_code_for_another_try(tmp_path):
    program = f"""
import time
from types import SimpleNamespace
from pathlib import Path
from jaxpt.train import watchdog
from jaxpt.train.goodput import Clock
config = SimpleNamespace(train=SimpleNamespace(stall_seconds=0.2, stall_exit=True))
clock = Clock(time.monotonic())
with watchdog.watching(config, Path({str(tmp_path)!r}), clock, True), clock.during("steps"):
    time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 75
    assert "jaxpt: process 0: a step after step 0 has taken" in done.stderr and "re-run the same command" in done.stderr


def test_a_slow_stretch_is_noticed_once_and_noise_is_not():
    rng = random.Random(0)
    throughput = watchdog.Throughput()
    assert not any(throughput.see(8 * rng.uniform(0.6, 1.4), 5.0) for _ in range(500))
    lines = [throughput.see(2.0, 5.0) for _ in range(8)]
    assert [line is not None for line in lines] == [False, False, True] + 5 * [False]
    assert not any(throughput.see(8.0, 5.0) for _ in range(20))
    assert not any(throughput.see(2.0, 0.25) for _ in range(39))  # a hiccup: many lines, but less than 10 s
    assert "in the last 10 s" in throughput.see(2.0, 0.25)
