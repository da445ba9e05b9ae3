"""An error in one process ends the others, who wait for it in a collective. Real processes on loopback."""

import subprocess
import sys

import pytest

from tests.processes import free_port

PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
from jaxpt.config import DistributedConfig
from jaxpt.parallel import failures, processes

port, own, failing = map(int, sys.argv[1:])
processes.start(DistributedConfig(coordinator=f"localhost:{port}", processes=2, process=own))
import numpy as np
from jax.experimental import multihost_utils
with failures.shared():
    assert multihost_utils.process_allgather(np.array([own])).ravel().tolist() == [0, 1]
    if own == failing:
        raise OSError("no\\nfile")
    multihost_utils.process_allgather(np.array([own]))
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
