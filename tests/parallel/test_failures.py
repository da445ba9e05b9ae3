"""An error in one process ends the others, who wait for it in a collective. Real processes on loopback."""

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
from jaxpt.errors import UserError
from jaxpt.parallel import failures, processes

port, own, failing = map(int, sys.argv[1:])
processes.start(DistributedConfig(coordinator=f"localhost:{port}", processes=2, process=own))
import numpy as np
from jax.experimental import multihost_utils
def work():
    with failures.shared():
        assert multihost_utils.process_allgather(np.array([own])).ravel().tolist() == [0, 1]
        if own == failing:
            raise OSError("no\\nfile")
        if own + 2 == failing:  # after a few signs of life
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)
        multihost_utils.process_allgather(np.array([own]))

if failing >= 2:  # as the command line ends
    try:
        work()
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
    assert f"jaxpt: process {failing} failed: no file" in errors[waiting].splitlines()


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
    assert [line for line in errors[1 - killed].splitlines() if not line.startswith("[Gloo] Rank")] == [words]
