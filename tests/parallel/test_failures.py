"""An error in one process ends the others, who wait for it in a collective. Real processes on loopback."""

import re
import signal
import subprocess
import sys

import pytest

from tests.processes import free_port

PROGRAM = """
import os, signal, sys, time
import jax
jax.config.update("jax_platforms", "cpu")
from jaxpt.config import DistributedConfig
from jaxpt import signals
from jaxpt.errors import AlreadySaid, UserError
from jaxpt.parallel import failures, processes

port, own, failing = map(int, sys.argv[1:])
count = 3 if failing == 5 else 2
processes.start(DistributedConfig(coordinator=f"localhost:{port}", processes=count, process=own))
import numpy as np
from jax.experimental import multihost_utils
def work():
    with failures.shared():
        assert multihost_utils.process_allgather(np.array([own])).ravel().tolist() == list(range(count))
        if own == failing:
            raise OSError("no\\nfile")
        if failing == 4:  # all alike, one later than the other
            time.sleep(2 * (1 - own))
            raise UserError("data.path: no such file")
        if own + 2 == failing:  # after a few signs of life
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)
        if failing == 5:  # 1 is killed in a step, while the others wait for it elsewhere than in a collective
            failures._SILENT = 6.0
            with failures.stepping():
                time.sleep(3)
                if own == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
        multihost_utils.process_allgather(np.array([own]))

if failing >= 2:  # as the command line ends
    try:
        work()
    except AlreadySaid:
        signals.finish(2)
    except UserError as error:
        print(f"jaxpt: {error}", file=sys.stderr)
        signals.finish(2)
work()
"""


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])  # the coordinator, and another
def test_the_others_end_with_the_words_of_the_one_that_failed(failing):
    port = free_port()
    given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    arguments = [[sys.executable, "-c", PROGRAM, str(port), str(own), str(failing)] for own in (0, 1)]
    workers = [subprocess.Popen(a, **given) for a in arguments]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    # A traceback and 1 here; as `jaxpt train` ends, a line and 2.
    assert workers[failing].returncode == 1 and "OSError: no\nfile" in errors[failing]
    waiting = 1 - failing
    assert workers[waiting].returncode == 2, errors[waiting]
    stamp = r"\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.search(rf"(?m)^{stamp}\[{waiting}\] jaxpt: process {failing} failed: no file$", errors[waiting])


@pytest.mark.slow
def test_what_all_fail_with_is_said_once():
    port = free_port()
    arguments = [[sys.executable, "-c", PROGRAM, str(port), str(own), "4"] for own in (0, 1)]
    workers = [subprocess.Popen(a, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for a in arguments]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [2, 2], errors
    said = [line for each in errors for line in each.splitlines() if "jaxpt:" in line]
    assert len(said) == 1 and said[0].endswith("jaxpt: data.path: no such file") and said[0] in errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])  # the first one has the coordinator, which outlives it
def test_a_process_that_was_killed_is_named(killed):
    """It could leave no words."""
    port = free_port()
    arguments = [[sys.executable, "-c", PROGRAM, str(port), str(own), str(killed + 2)] for own in (0, 1)]
    workers = [subprocess.Popen(a, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for a in arguments]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert workers[killed].returncode == -signal.SIGKILL
    words = (
        f"jaxpt: process {killed} is gone (killed, or its machine failed); re-run the same command in all processes to "
        "resume"
    )
    assert workers[1 - killed].returncode == 2
    said = [line for line in errors[1 - killed].splitlines() if not line.startswith("[Gloo] Rank")]
    assert [line.partition("] ")[2] or line for line in said] == [words]


@pytest.mark.slow
def test_a_process_that_is_silent_in_a_step_is_named_by_all():
    """No collective fails: the others wait in one that does not, until JAX would abort them."""
    port = free_port()
    arguments = [[sys.executable, "-c", PROGRAM, str(port), str(own), "5"] for own in (0, 1, 2)]
    workers = [subprocess.Popen(a, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for a in arguments]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [2, -signal.SIGKILL, 2], errors
    for own in (0, 2):
        assert re.search(rf"(?m)^\S+ \S+ \[{own}\] jaxpt: process 1 is gone \(killed, or .* to resume$", errors[own])
        assert errors[own].endswith("to resume\n") and "Check failure stack trace" not in errors[own]
