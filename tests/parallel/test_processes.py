"""How the processes of a run find each other, and what is said when they do not. Real ones on loopback."""

import concurrent.futures
import doctest
import socket
import subprocess
import sys

import jax
import pytest

from jaxpt.config import DistributedConfig
from jaxpt.errors import UserError
from jaxpt.parallel import processes
from tests.processes import free_port


def test_alone_there_is_nothing_to_join():
    processes.start(DistributedConfig())
    assert not jax.distributed.is_initialized()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            "c",
            r"distributed\.processes is missing: distributed\.coordinator is localhost:1; give it or JAXPT_PROCESSES",
        ),
        ("c n=2", r"distributed\.process is missing: .* distributed\.processes is 2; give it or JAXPT_PROCESS, "),
        ("c i=0", r"distributed\.processes is missing"),
        ("c n=2 i=2", r"distributed\.process: 2 is none of 0 … 1"),
        ("n=2", r"distributed\.coordinator is missing: distributed\.processes is 2; .*=1 to run alone"),
        ("n=2 i=0", r"distributed\.coordinator is missing: .*processes is 2, distributed\.process is 0; "),
        ("i=0", r"distributed\.coordinator is missing: distributed\.process is 0; "),
        (
            "JAXPT_PROCESSES=2",
            r"distributed\.coordinator is missing: JAXPT_PROCESSES is 2; give it or JAXPT_COORDINATOR",
        ),
        ("JAXPT_PROCESS=1", r"distributed\.coordinator is missing: JAXPT_PROCESS is 1"),
        ("JAXPT_PROCESSES=1 JAXPT_PROCESS=1", r"JAXPT_PROCESS: 1 is none of 0 … 0, JAXPT_PROCESSES is 1"),
        *(
            (f"c i=0 JAXPT_PROCESSES={n}", rf"JAXPT_PROCESSES: .* not below 1, got '{n}'")
            for n in ("two", "0", "-1", "")
        ),
        ("JAXPT_PROCESSES=1.5", r"JAXPT_PROCESSES: wants a whole number not below 1, got '1.5'"),
        ("c n=2 JAXPT_PROCESS=-1", r"JAXPT_PROCESS: wants a whole number not below 0, got '-1'"),
        *(
            (f"n=2 i=0 JAXPT_COORDINATOR={address}", r"JAXPT_COORDINATOR: wants host:port, .* got '.*'")
            for address in ("localhost", "localhost:99999", "localhost:0", ":1", "localhost:x", "")
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(monkeypatch, settings, words):
    given = {"c": {"coordinator": "localhost:1"}, "n": {"processes": 2}, "i": {"process": 0}}
    config = {}
    for word in settings.split():
        name, _, value = word.partition("=")
        if name in given:
            config |= {key: int(value) if value else known for key, known in given[name].items()}
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=words) as caught:
        processes.start(DistributedConfig(**config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("others", [{}, {"JAXPT_PROCESS": "0"}, {"SLURM_STEP_NUM_TASKS": "2"}])
def test_one_process_is_alone(monkeypatch, others):
    for name, value in {"JAXPT_PROCESSES": "1", **others}.items():
        monkeypatch.setenv(name, value)
    processes.start(DistributedConfig())
    assert not jax.distributed.is_initialized()


def test_examples_in_the_docstrings():
    assert doctest.testmod(processes).failed == 0


def test_slurm_is_asked_under_srun_alone():
    step = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert processes._slurm(step | {"SLURM_STEP_NODELIST": "a1,b[2-3]"}) is None
    assert processes._slurm(step | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "a1"}) is None
    place = processes._slurm(step | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a1,b[2-3]"})
    assert place == processes.ProcessInfo("a1:61447", 2, 0, None)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS is 'x', in a Slurm step; give distributed"),
        ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST is missing"),
        ({"SLURM_JOB_ID": "7_1"}, "SLURM_JOB_ID is '7_1'"),
        ({"SLURM_PROCID": None}, "SLURM_PROCID is missing"),
        ({"SLURM_PROCID": "2"}, "SLURM_PROCID: 2 is none of 0 … 1"),
        ({"SLURM_LOCALID": ""}, "SLURM_LOCALID is missing"),
        ({"SLURM_STEP_TASKS_PER_NODE": None}, "SLURM_STEP_TASKS_PER_NODE is missing"),
    ],
)
def test_what_slurm_says_wrong_is_named(wrong, words):
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a1", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
    step |= {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"} | wrong
    with pytest.raises(UserError, match=words):
        processes._slurm({name: value for name, value in step.items() if value is not None})


def rolls(numbers, count, timeout=1.0, counts=None):
    """What each of these processes hears, "" when all are there."""
    coordinator = f"localhost:{free_port()}"

    def one(index):
        try:
            processes.call_roll(
                processes.ProcessInfo(coordinator, (counts or {}).get(index, count), numbers[index]), timeout
            )
        except UserError as error:
            return str(error).removeprefix(f"distributed.coordinator: {coordinator}: ")
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(one, range(len(numbers))))


@pytest.mark.slow
def test_the_roll_is_called():
    assert rolls([0, 1, 2, 3], 4, timeout=20) == [""] * 4
    assert rolls([0, 2], 4) == ["of 4 processes 1, 3 did not come in time (distributed.timeout)"] * 2
    assert rolls([1], 2) == ["process 1 did not find process 0 there in time (distributed.timeout)"]


def test_numbers_that_cannot_be_are_named():
    host = socket.gethostname()
    assert f"two processes have the number 1, on {host} and {host}" in rolls([0, 1, 1], 3)
    heard = rolls([0, 1], 2, counts={1: 3})
    assert heard == [f"process 1 on {host} counts 3 processes, process 0 2"] * 2


def test_a_place_that_is_taken_is_said():
    with socket.create_server(("", 0)) as server:
        place = processes.ProcessInfo(f"localhost:{server.getsockname()[1]}", 2, 0)
        with pytest.raises(UserError, match="process 0 cannot listen there: Address already in use"):
            processes.call_roll(place, 1.0)


def test_who_is_missing_at_a_point_of_the_run_is_named(monkeypatch):
    from jax._src.distributed import global_state

    class Coordinator:
        keys: dict[str, str] = {}  # noqa: RUF012

        def key_value_set(self, key, value, allow_overwrite=False):
            self.keys[key] = value

        def key_value_dir_get(self, place):
            return [(key, value) for key, value in self.keys.items() if key.startswith(place)]

    jax.devices()  # to make them takes the real coordinator
    coordinator, said = Coordinator(), []
    monkeypatch.setattr(global_state, "client", coordinator)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    coordinator.key_value_set("jaxpt/met/phase 2/3", "here")
    coordinator.key_value_set("jaxpt/met/phase 1/1", "here")

    def come(line):
        said.append(line)
        for number in (1, 2):
            coordinator.key_value_set(f"jaxpt/met/phase 2/{number}", "here")

    processes.barrier("phase 2", 0.3, come)
    assert said == ["waiting for process 1, 2 at phase 2, for 0 s now"]


PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
from jaxpt import config
from jaxpt.errors import UserError
from jaxpt.parallel import processes
from tests.processes import free_port

recipe = config.load("configs/smoke/gpt2_tiny.yaml", sys.argv[1:])
processes.start(recipe.distributed)
try:
    processes.assert_same_config(recipe)
    print("agreed", jax.process_count())
except UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_another_configuration_at_one_process_is_named():
    port = free_port()
    shared = [f"distributed.coordinator=localhost:{port}", "distributed.processes=2"]
    own = [["distributed.process=0"], ["distributed.process=1", "data.batch_size=64"]]
    command = [sys.executable, "-c", PROGRAM, *shared]
    workers = [subprocess.Popen([*command, *each], stdout=subprocess.PIPE, text=True) for each in own]
    heard = [worker.communicate(timeout=120)[0].splitlines()[-1] for worker in workers]
    assert heard == ["data.batch_size: 64 at process 1, 32 at process 0"] * 2
