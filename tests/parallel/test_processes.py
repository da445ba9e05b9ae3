"""How the processes of a run find each other, and what is said when they do not. Real ones on loopback."""

import collections

import jax
import pytest

from jaxpt.config import DistributedConfig
from jaxpt.errors import UserError
from jaxpt.parallel import private, processes
from tests.parallel import forks
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


def test_who_is_missing_at_a_point_of_the_run_is_named(monkeypatch):
    class Coordinator:
        keys: dict[str, str] = {}  # noqa: RUF012

        def key_value_set(self, key, value, allow_overwrite=False):
            self.keys[key] = value

        def key_value_dir_get(self, place):
            return [(key, value) for key, value in self.keys.items() if key.startswith(place)]

    jax.devices()  # to make them takes the real coordinator
    coordinator, said = Coordinator(), []
    monkeypatch.setattr(private.coordination(), "client", coordinator)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    coordinator.key_value_set("jaxpt/met/phase 2/1/3", "here")
    coordinator.key_value_set("jaxpt/met/phase 1/1/1", "here")
    monkeypatch.setattr(processes, "uses", collections.Counter())

    def come(line):
        said.append(line)
        for number in (1, 2, 3):
            coordinator.key_value_set(f"jaxpt/met/phase 2/{len(said)}/{number}", "here")

    processes.barrier("phase 2", 0.3, come)
    assert said == ["waiting for process 1, 2 at phase 2, for 0 s now"]
    processes.barrier("phase 2", 0.3, come)  # of a second run in the same processes
    assert said[1:] == ["waiting for process 1, 2, 3 at phase 2, for 0 s now"]


def test_one_process_alone_says_who_is_missing(monkeypatch):
    """The first of those that are there."""

    class Coordinator:
        calls = 0

        def key_value_set(self, *_, **__):
            pass

        def key_value_dir_get(self, place):
            self.calls += 1
            there = (1, 2) if self.calls < 4 else (0, 1, 2)
            return [(f"{place}{number}", "here") for number in there]

    jax.devices()
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    for own, lines in ((1, ["waiting for process 0 at x, for 0 s now"]), (2, [])):
        said = []
        monkeypatch.setattr(private.coordination(), "client", Coordinator())
        monkeypatch.setattr(jax, "process_index", lambda own=own: own)
        processes.barrier("x", 0.3, said.append)
        assert said == lines


PROGRAM = """
import sys
import jax
from jaxpt import config
from jaxpt.config.plain import leaves
from jaxpt.errors import UserError
from jaxpt.parallel import processes

recipe = config.load("configs/smoke/gpt2_tiny.yaml", sys.argv[1:])
processes.start(recipe.distributed)
try:
    settings = leaves(config.dump(recipe) | {"distributed": None})
    processes.assert_same_settings(dict(settings), recipe.distributed.timeout)
    print("agreed", jax.process_count())
except UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_another_configuration_at_one_process_is_named(tmp_path):
    shared = [f"distributed.coordinator=localhost:{free_port()}", "distributed.processes=2"]
    own = [["distributed.process=0"], ["distributed.process=1", "data.batch_size=64"]]
    group = [(PROGRAM, [*shared, *words], {}) for words in own]
    imported = "jaxpt.study.recipes", "jaxpt.parallel.processes", "jaxpt.models.gpt2", "jaxpt.evals.samples"
    ((one, two),) = forks.run(imported, [group], tmp_path)
    heard = [ended.out.splitlines()[-1] for ended in (one, two)]
    assert heard == ["data.batch_size: 64 at process 1, 32 at process 0"] * 2, (one, two)


@pytest.mark.slow
def test_open_mpi_says_who_the_processes_are(tmp_path):
    """As JAX reads it."""
    job = 4096 * ((free_port() - 61440) % 4096)  # JAX takes the port from the job's number
    shared = {"OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2"}
    own = [{"OMPI_COMM_WORLD_RANK": str(n), "OMPI_COMM_WORLD_LOCAL_RANK": str(n)} for n in range(2)]
    group = [(PROGRAM, [], shared | variables) for variables in own]
    imported = "jaxpt.study.recipes", "jaxpt.parallel.processes", "jaxpt.models.gpt2", "jaxpt.evals.samples"
    ((one, two),) = forks.run(imported, [group], tmp_path)
    assert [ended.out.splitlines()[-1:] for ended in (one, two)] == [["agreed 2"]] * 2, (one, two)
