"""The table of a start: its parts add up, and the step is compiled beside them."""

import doctest
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from jaxpt.train import programs, timings
from jaxpt.train.programs import Programs
from jaxpt.train.timings import Timings
from tests.config.helpers import ROOT

PROGRAMS = Programs(None, None, 1.0, None, trace_seconds=1.25, compile_seconds=2.5, lines=[])


def test_examples():
    failed, tried = doctest.testmod(timings)
    assert not failed and tried


def test_marks_divide_the_time_since_the_process_began():
    clock = Timings(wanted=True)
    clock.mark("imports")
    time.sleep(0.05)
    clock.mark("sleep")
    first, second = clock.parts
    assert first.seconds > second.seconds >= 0.05
    head, *rows, beside = clock.end(PROGRAMS)
    assert head.endswith(f"{first.seconds + second.seconds:.1f} s") and [row.split()[-1] for row in rows] == [
        "imports",
        "sleep",
    ]
    assert "1.2 s tracing and 2.5 s compiling the step" in beside
    clock.mark("later")
    assert len(clock.parts) == 2, "the clock has ended"


def test_a_clock_that_nobody_wants_says_nothing():
    clock = Timings()
    clock.mark("imports")
    assert not clock.parts and clock.end(PROGRAMS) == []


def test_programs_are_built_in_another_thread(monkeypatch):
    threads = []

    def build(setup, phase):
        threads.append(threading.current_thread())
        if phase:
            raise ValueError("no such phase")
        return PROGRAMS._replace(lines=[f"step of {setup}"])

    monkeypatch.setattr(programs, "build", build)
    assert programs.start("setup", 0)() == PROGRAMS._replace(lines=["step of setup"])
    with pytest.raises(ValueError, match="no such phase"):
        programs.start("setup", 1)()
    assert threading.current_thread() not in threads
    assert not any(thread.daemon for thread in threads), "a script that ends while XLA compiles would abort"


@pytest.mark.slow
def test_a_run_says_where_its_start_went(tmp_path):
    """As a user starts it: the clock begins with the process."""
    small = ["model.layers=2", "model.embed_dim=16", "model.heads=2", "data.batch_size=8", "data.length=16"]
    small += ["data.tokenizer.vocab_size=300", "data.tokenizer.characters=20000", "log.tensorboard=false", "evals=[]"]
    command = [sys.executable, "-m", "jaxpt", "train", str(ROOT / "configs/smoke/gpt2_tiny.yaml"), *small, "--timings"]
    command += ["train.steps=2", "optimizer.schedule.warmup_steps=0", f"run_dir={tmp_path}/run"]
    begun = time.time()
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wall = time.time() - begun
    total = float(re.search(r"to the end of the first step: ([\d.]+) s", done.stdout)[1])
    parts = [float(seconds) for seconds in re.findall(r"^ +([\d.]+) s  \w", done.stdout, re.MULTILINE)]
    assert len(parts) == 9 and abs(sum(parts) - total) < 0.05 * len(parts) + 0.1, done.stdout  # each is rounded
    assert 0.5 < total < wall + 0.1
