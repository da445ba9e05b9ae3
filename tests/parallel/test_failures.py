"""An error in one process ends the others, who wait for it in a collective. Real processes on loopback."""

import re
import signal

import pytest

from tests.parallel import forks
from tests.processes import free_port

PROGRAM = """
import os, signal, sys, time
import jax
jax.config.update("jax_platforms", "cpu")
from jaxpt.config import DistributedConfig
from jaxpt.runtime import exit_codes, signals
from jaxpt.errors import AlreadySaid, UserError
from jaxpt.parallel import failures, processes

port, own, failing = map(int, sys.argv[1:])
count = 3 if failing == 5 else 2
processes.start(DistributedConfig(coordinator=f"localhost:{port}", processes=count, process=own))
import numpy as np
from jax.experimental import multihost_utils
def work():
    if failing == 7 and own == 1:  # before its first sign of life
        os.kill(os.getpid(), signal.SIGKILL)
    with failures.shared(6.0):
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
            with failures.stepping():
                time.sleep(3)
                if own == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                while not failures.silent():
                    time.sleep(0.05)
                print("silent:", failures.silent(), file=sys.stderr)
                time.sleep(60)
        if failing == 6:  # 1 is killed outside a step
            time.sleep(2)
            if own == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(12)
            os._exit(0)
        multihost_utils.process_allgather(np.array([own]))

if failing >= 2:  # as the command line ends
    try:
        work()
    except UserError as error:
        if not isinstance(error, AlreadySaid):
            print(f"jaxpt: {error}", file=sys.stderr)
        signals.finish(exit_codes.of(error))
work()
"""


pytestmark = pytest.mark.slow
IMPORTED = (
    "jax.experimental.multihost_utils", "jaxpt.parallel.failures", "jaxpt.parallel.processes", "jaxpt.runtime.signals",
)  # fmt: skip


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What is left of the processes by `failing`, the last argument of the program."""

    def processes(failing):
        port = free_port()
        return [(PROGRAM, [str(port), str(own), str(failing)], {}) for own in range(3 if failing == 5 else 2)]

    together = [(0, 1, 4), (2, 3, 6, 7), (5,)]
    groups = [[process for failing in some for process in processes(failing)] for some in together]
    found = iter([one for group in forks.run(IMPORTED, groups, tmp_path_factory.mktemp("failures")) for one in group])
    return {failing: [next(found) for _ in range(3 if failing == 5 else 2)] for some in together for failing in some}


@pytest.mark.parametrize("failing", [0, 1])  # the coordinator, and another
def test_the_others_end_with_the_words_of_the_one_that_failed(ended, failing):
    # A traceback and 1 here; as `jaxpt train` ends, a line and 2.
    assert ended[failing][failing].code == 1 and "OSError: no\nfile" in ended[failing][failing].err
    waiting = 1 - failing
    other = ended[failing][waiting]
    assert other.code == 2, other.err
    stamp = r"\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.search(rf"(?m)^{stamp}\[{waiting}\] jaxpt: process {failing} failed: no file$", other.err)


def test_what_all_fail_with_is_said_once(ended):
    assert [one.code for one in ended[4]] == [2, 2], ended[4]
    said = [line for one in ended[4] for line in one.err.splitlines() if "jaxpt:" in line]
    assert len(said) == 1 and said[0].endswith("jaxpt: data.path: no such file") and said[0] in ended[4][0].err


# The first one has the coordinator, which outlives it; at last one that was killed before its first sign of life.
@pytest.mark.parametrize(("failing", "killed"), [(2, 0), (3, 1), (7, 1)])
def test_a_process_that_was_killed_is_named(ended, failing, killed):
    """It could leave no words."""
    gone, other = ended[failing][killed], ended[failing][1 - killed]
    assert gone.code == -signal.SIGKILL
    words = (
        f"jaxpt: process {killed} is gone (killed, or its machine failed); re-run the same command in all processes to "
        "resume"
    )
    assert other.code == 75  # another try may go on
    said = [line for line in other.err.splitlines() if not line.startswith("[Gloo] Rank")]
    if failing == 7:  # Gloo waits for 30 s
        assert "process 1 has given no sign of life for 6 s" in said.pop(0)
    assert [line.partition("] ")[2] or line for line in said] == [words]


def test_a_process_that_is_silent_in_a_step_is_named_by_all(ended):
    """No collective fails: the others wait in one that does not, until JAX would abort them."""
    assert [one.code for one in ended[5]] == [75, -signal.SIGKILL, 75], ended[5]
    for own in (0, 2):
        said = ended[5][own].err
        silent = r"gave no sign of life for 6 s, distributed.heartbeat_timeout \(killed or stopped, or .*"
        assert re.search(rf"(?m)^\S+ \S+ \[{own}\] jaxpt: process 1 {silent} to resume$", said)
        assert re.search(r"(?m)^(\S+ \S+ \[\d\] )?silent: \[1\]$", said)  # for the watchdog, before it counts as gone
        assert said.endswith("to resume\n") and "Check failure stack trace" not in said


def test_a_process_that_is_silent_outside_a_step_is_named(ended):
    """It may be at work, and the others wait; it is said once."""
    assert [one.code for one in ended[6]] == [0, -signal.SIGKILL]
    said = [line for line in ended[6][0].err.splitlines() if "sign of life" in line]
    assert len(said) == 1 and "] jaxpt: process 1 has given no sign of life for 6 s, " in said[0]
