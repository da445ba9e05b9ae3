"""How the processes of a run find each other, and what is said when they do not. Real ones on loopback."""

import collections
import concurrent.futures
import re

import jax
import pytest

from jaxpt import errors
from jaxpt.config import DistributedConfig
from jaxpt.errors import UserError
from jaxpt.parallel import private, processes, roll_call
from tests.parallel import forks
from tests.processes import free_port
from tests.waiting import LIMIT


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
            for address in ("localhost", "localhost:99999", "localhost:0", ":1", "localhost:x", "", "10.0.0..1:1")
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


OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OMPI_COMM_WORLD_SIZE", None, r"OMPI_COMM_WORLD_SIZE is missing, under Open MPI's mpirun; give distributed"),
        ("OMPI_COMM_WORLD_RANK", "x", "OMPI_COMM_WORLD_RANK is 'x', under Open MPI's mpirun"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", None, "OMPI_COMM_WORLD_LOCAL_RANK is missing"),
        ("OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_RANK: 2 is none of 0 … 1, OMPI_COMM_WORLD_SIZE is 2"),
        ("OMPI_MCA_orte_hnp_uri", "here", "OMPI_MCA_orte_hnp_uri is 'here'"),
    ],
)
def test_what_open_mpi_says_wrong_is_named(monkeypatch, name, value, words):
    for variable, text in {**OPEN_MPI, name: value}.items():
        monkeypatch.delenv(variable, raising=False)
        if text is not None:
            monkeypatch.setenv(variable, text)
    with pytest.raises(UserError, match=words):
        processes.start(DistributedConfig())
    roll_call.check_open_mpi(OPEN_MPI)
    roll_call.check_open_mpi(OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b,2620:10d::2]:43370"})


OPEN_MPI_5 = {
    "PRTE_LAUNCHED": "1", "PMIX_NAMESPACE": "prterun-node-18-12345@1", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, ("node-18:61497", 4, 2, [0])),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "SLURM_STEP_NUM_TASKS": "2"}, ("node-18:61497", 4, 2, None)),
        ({"PMIX_NAMESPACE": "prte-login.my.org-4096@3"}, ("login.my.org:61440", 4, 2, [0])),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK: 4 is none of 0 … 3, OMPI_COMM_WORLD_SIZE is 4"),
        ({"OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE is missing, under Open MPI's mpirun; give distributed"),
        ({"PMIX_NAMESPACE": "slurm.pmix.17.0"}, "PMIX_NAMESPACE is 'slurm.pmix.17.0', under Open MPI's mpirun"),
    ],
)
def test_open_mpi_5_says_who_the_processes_are(monkeypatch, changed, wanted):
    """JAX does not know its variables: each process would be alone."""
    for name, value in {**OPEN_MPI_5, **changed}.items():
        monkeypatch.setenv(name, value)
    if isinstance(wanted, str):
        with pytest.raises(UserError, match=wanted):
            roll_call.find(DistributedConfig())
    else:
        assert roll_call.find(DistributedConfig()) == wanted


@pytest.mark.parametrize("others", [{}, {"JAXPT_PROCESS": "0"}, {"SLURM_STEP_NUM_TASKS": "2"}])
def test_one_process_is_alone(monkeypatch, others):
    for name, value in {"JAXPT_PROCESSES": "1", **others}.items():
        monkeypatch.setenv(name, value)
    processes.start(DistributedConfig())
    assert not jax.distributed.is_initialized()


def test_the_recipe_says_that_a_process_is_alone(monkeypatch):
    """Whatever the environment says, even if that is wrong."""
    monkeypatch.setenv("JAXPT_PROCESSES", "two")
    assert processes.start(DistributedConfig(processes=1)) is None
    assert not jax.distributed.is_initialized()


def test_alone_nobody_is_waited_for(tmp_path):
    """There is no coordinator to ask."""
    assert private.coordination().client is None
    processes.barrier("x", 0.0, pytest.fail)
    processes.assert_same_settings({"seed": 1}, 0.0)
    with processes.first_host_first(tmp_path / "cache", "x", 0.0, pytest.fail) as apart:
        assert apart == [] and not (tmp_path / "cache").exists()


@pytest.fixture
def numbers(monkeypatch):
    """The numbers that `start` gives to what the process prints. What else it leaves in the process is undone."""
    given = []
    monkeypatch.setattr(processes.stamp, "set_process", given.append)
    monkeypatch.setattr(processes.atexit, "register", lambda function: None)
    service = jax.config.jax_enable_preemption_service
    yield given
    jax.config.update("jax_enable_preemption_service", service)
    assert not jax.distributed.is_initialized()


def test_one_to_whom_nobody_comes_goes_on_alone(numbers, monkeypatch):
    """It knows how many were asked for, and joins nobody."""
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    config = DistributedConfig(
        coordinator=f"localhost:{free_port()}", processes=2, process=0, min_processes=1, timeout=1
    )
    assert processes.start(config) == 2
    assert numbers == [0]
    words = "of 2 processes 1 go on (distributed.min_processes): 0; some did not come in time"
    assert notes == [f"distributed.coordinator: {config.coordinator}: {words}"]


def test_one_to_whom_nobody_comes_leaves_the_other_tasks_their_gpus(numbers, monkeypatch):
    """It has the one of its number on the node, as if the others had come."""
    step = {"STEP_NUM_TASKS": "4", "STEP_NODELIST": "gpu[07-08]", "JOB_ID": "4100", "PROCID": "0", "LOCALID": "0"}
    for name, value in {**step, "STEP_TASKS_PER_NODE": "2(x2)"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(roll_call, "call_roll", lambda place, *_, **__: place._replace(processes=1))
    updated = {}
    monkeypatch.setattr(jax.config, "update", updated.__setitem__)
    assert processes.start(DistributedConfig(min_processes=1)) == 4
    assert updated == {"jax_cuda_visible_devices": "0", "jax_rocm_visible_devices": "0"}


def test_what_jax_refuses_is_a_line_about_the_coordinator(numbers):
    """The roll is called; then JAX does not join processes that have computed."""
    jax.devices()
    place = roll_call.ProcessInfo(f"localhost:{free_port()}", 2, 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(roll_call.call_roll, place, LIMIT)
        with pytest.raises(UserError) as caught:
            processes.start(DistributedConfig(coordinator=place.coordinator, processes=2, process=0, timeout=LIMIT))
        assert other.result() == place
    where = f"distributed.coordinator: {place.coordinator}: "
    assert str(caught.value).startswith(f"{where}jax.distributed.initialize() must be called before any JAX calls")
    assert "\n" not in str(caught.value) and numbers == [0]


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
from jaxpt.runtime import stamp

recipe = config.load("configs/smoke/gpt2_tiny.yaml", sys.argv[1:])
try:
    processes.start(recipe.distributed)
    settings = leaves(config.dump(recipe) | {"distributed": None})
    processes.assert_same_settings(dict(settings), recipe.distributed.timeout)
    print(stamp.stamped("agreed"), jax.process_count())
except UserError as error:
    print(error)
"""
ON_TPU = "from jaxpt.parallel import processes; processes._on_tpu = lambda: True" + PROGRAM
"""Of a host that has TPUs."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What is left of processes that look for each other, by the name of the case."""
    shared = [f"distributed.coordinator=localhost:{free_port()}", "distributed.processes=2"]
    own = [["distributed.process=0"], ["distributed.process=1", "data.batch_size=64"]]

    def by_open_mpi(count, **changed):
        job = 4096 * ((free_port() - 61440) % 4096)  # JAX takes the port from the job's number
        uri = {"OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": str(count)}
        ranks = [{"OMPI_COMM_WORLD_RANK": str(n), "OMPI_COMM_WORLD_LOCAL_RANK": str(n)} for n in range(count)]
        return [(PROGRAM, [], uri | rank | changed) for rank in ranks]

    groups = {
        "other settings": [(PROGRAM, [*shared, *words], {}) for words in own],
        "open mpi": by_open_mpi(2),
        "open mpi, one": by_open_mpi(1),
        "open mpi, no address": by_open_mpi(1, OMPI_MCA_orte_hnp_uri="4096.0;"),
        "a TPU without metadata": [(ON_TPU, [], {})],
    }
    imported = "jaxpt.study.recipes", "jaxpt.parallel.processes", "jaxpt.models.gpt2", "jaxpt.evals.samples"
    return dict(zip(groups, forks.run(imported, [*groups.values()], tmp_path_factory.mktemp("processes"))))


def heard(ended):
    """The last line that each process has printed."""
    assert [one.code for one in ended] == [0] * len(ended), ended
    return [one.out.splitlines()[-1] for one in ended]


@pytest.mark.slow
def test_another_configuration_at_one_process_is_named(ended):
    assert heard(ended["other settings"]) == ["data.batch_size: 64 at process 1, 32 at process 0"] * 2


@pytest.mark.slow
def test_open_mpi_says_who_the_processes_are(ended):
    """As JAX reads it. Each of several has its number before its lines, one that is alone has none."""
    said = heard(ended["open mpi"])
    assert [re.sub(r"\S+ \S+ (?=\[)", "", line) for line in said] == ["[0] agreed 2", "[1] agreed 2"]
    assert heard(ended["open mpi, one"]) == ["agreed 1"]


@pytest.mark.slow
def test_what_jax_does_not_understand_of_open_mpi_is_said(ended):
    (line,) = heard(ended["open mpi, no address"])
    assert line == "distributed.coordinator: Could not parse coordinator IP address from Open MPI environment."


@pytest.mark.slow
def test_a_host_with_tpus_that_no_metadata_tell_of_others_is_alone(ended):
    assert heard(ended["a TPU without metadata"]) == ["agreed 1"]
