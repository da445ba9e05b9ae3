"""Who the processes are, and what is said when they are not all there or one has failed. Real ones on loopback."""

import asyncio
import concurrent.futures
import doctest
import os
import re
import socket

import pytest

from jaxpt import errors
from jaxpt.config import DistributedConfig
from jaxpt.errors import RetryableError, UserError
from jaxpt.parallel import roll_call, signed_calls
from tests.parallel import forks
from tests.processes import free_port
from tests.waiting import LIMIT


def test_examples_in_the_docstrings():
    assert doctest.testmod(roll_call).failed == 0


STEP = {
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a1,b[2-3]", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip


@pytest.fixture
def found(monkeypatch):
    """Where a process stands under these variables, of which those that are None are missing."""

    def find(**changed):
        for name in [name for name in os.environ if name.startswith(("SLURM_", "JAXPT_PROCESS", "JAXPT_COORD"))]:
            monkeypatch.delenv(name)
        for name, value in {**STEP, **changed}.items():
            if value is not None:
                monkeypatch.setenv(name, value)
        return roll_call.find(DistributedConfig())

    return find


def test_slurm_is_asked_under_srun_alone(found):
    assert found(SLURM_STEP_NUM_TASKS=None) is None
    assert found(SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NODELIST="a1") is None
    assert found() == roll_call.ProcessInfo("a1:61447", 2, 0, None)


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
def test_what_slurm_says_wrong_is_named(found, wrong, words):
    with pytest.raises(UserError, match=words):
        found(**{"SLURM_STEP_NODELIST": "a1", "SLURM_STEP_TASKS_PER_NODE": "2"} | wrong)


def rolls(numbers, count, counts=None, failed=None, fewest=None, host="localhost"):
    """What each of these processes hears, "" when all are there; else its new place, if some go on.

    The time of process 0 is over as soon as all of these have called.
    """
    coordinator = f"{host}:{free_port()}"

    class Roll(roll_call._Roll):
        def _take(self, caller):
            super()._take(caller)
            if len(self._came) == len(numbers) - 1 and not (self._all_came.is_set() or self._deadline.expired()):
                self._deadline.reschedule(0.0)

    def one(index):
        try:
            place = roll_call.call_roll(
                roll_call.ProcessInfo(coordinator, (counts or {}).get(index, count), numbers[index]),
                LIMIT if 0 in numbers and len(numbers) > 1 else 0.5,  # else nobody comes, however long it is
                (failed or {}).get(numbers[index], ""),
                fewest,
            )
        except UserError as error:
            return str(error).removeprefix(f"distributed.coordinator: {coordinator}: ")
        return "" if place.processes == count else f"{place.process} of {place.processes}"

    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(roll_call, "_Roll", Roll)
        return list(pool.map(one, range(len(numbers))))


@pytest.mark.slow
def test_the_roll_is_called():
    assert rolls([0, 1, 2, 3], 4) == [""] * 4
    assert rolls([0, 2], 4) == ["of 4 processes 1, 3 did not come in time (distributed.timeout)"] * 2
    assert rolls([1], 2) == ["process 1 did not find process 0 there in time (distributed.timeout)"]


def test_enough_of_them_go_on(monkeypatch):
    """As many as divide the number of all, numbered anew; one that is left over may come again."""
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    assert rolls([0, 1, 3], 4, fewest=2) == ["0 of 2", "1 of 2",
        "of 4 processes 2 go on (distributed.min_processes), without process 3: their number divides 4"]  # fmt: skip
    note = "of 4 processes 2 go on (distributed.min_processes): 0, 1; some did not come in time"
    assert notes[0].endswith(f": {note}")
    assert rolls([0, 2], 4, fewest=2) == ["0 of 2", "1 of 2"]
    assert rolls([0], 4, fewest=1) == ["0 of 1"]
    assert rolls([0, 2], 4, fewest=3) == ["of 4 processes 1, 3 did not come in time (distributed.timeout)"] * 2
    assert rolls([0, 1], 2, fewest=1) == ["", ""]
    assert rolls([1], 2, fewest=1) == ["process 1 did not find process 0 there in time (distributed.timeout)"]


def test_numbers_that_cannot_be_are_named():
    host = socket.gethostname()
    assert f"two processes have the number 1, on {host} and {host}" in rolls([0, 1, 1], 3)
    heard = rolls([0, 1], 2, counts={1: 3})
    assert heard == [f"process 1 on {host} counts 3 processes, process 0 2"] * 2


def test_a_place_that_is_taken_is_said():
    with socket.create_server(("", 0)) as server:
        place = roll_call.ProcessInfo(f"localhost:{server.getsockname()[1]}", 2, 0)
        with pytest.raises(UserError, match="process 0 cannot listen there: Address already in use"):
            roll_call.call_roll(place, 1.0)


def test_who_has_failed_is_said_to_all():
    assert rolls([0, 1, 2], 3, failed={0: "no file"}) == ["process 0 failed: no file"] * 3
    assert rolls([0, 1, 2], 3, failed={2: "no file"}) == ["process 2 failed: no file"] * 3


def test_a_host_that_nobody_knows_is_said_in_the_end(monkeypatch):
    """It may be known to another try."""
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    place = roll_call.ProcessInfo("no such host:1", 2, 1)
    late = "process 1 did not find process 0 there in time (distributed.timeout); the host no such host is not known"
    with pytest.raises(RetryableError) as caught:
        roll_call.call_roll(place, 0.1)
    assert str(caught.value) == f"distributed.coordinator: no such host:1: {late}"
    assert notes == ["distributed.coordinator: no such host:1: the host no such host is not known yet; it is looked up "
                     "again until distributed.timeout"]  # fmt: skip


def test_a_host_whose_name_appears_late_is_found(monkeypatch):
    """As those of pods: the name server does not know it at first."""
    notes, looked_up, getaddrinfo = [], [], socket.getaddrinfo

    def of_late(host, *more, **options):
        if host == "pod-0.late":
            looked_up.append(host)
            if len(looked_up) < 3:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "localhost"
        return getaddrinfo(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", of_late)
    monkeypatch.setattr(errors, "note", notes.append)
    monkeypatch.setattr(roll_call, "_LOOKUP_SECONDS", 0.01)
    assert rolls([0, 1], 2, host="pod-0.late") == ["", ""]
    assert len(notes) == 1 and len(looked_up) > 2


def test_a_process_0_that_ends_before_all_are_there_is_said():
    """It has taken the call, and is gone when it should answer. Another try may go on."""
    place = roll_call.ProcessInfo(f"localhost:{free_port()}", 3, 0)
    roll = roll_call._Roll(place)

    async def end_once_called():
        calling = asyncio.create_task(roll.call(LIMIT, ""))
        while not roll._calls:
            assert not calling.done()
            await asyncio.sleep(0.01)
        calling.cancel()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(asyncio.run, end_once_called())
        with pytest.raises(RetryableError) as caught:
            roll_call.call_roll(place._replace(process=1), LIMIT)
        first.result()
    assert str(caught.value) == f"distributed.coordinator: {place.coordinator}: process 0 has ended"


@pytest.fixture
def failing(monkeypatch):
    """Ends a process that has failed; returns how often its error was printed, and the number before its lines."""

    def fail(**settings):
        printed, numbers = [], [None]
        monkeypatch.setattr(roll_call.stamp, "set_process", numbers.append)
        roll_call.fail("no file", DistributedConfig(**settings), lambda: printed.append(numbers[-1]))
        return printed

    return fail


def test_a_process_that_fails_and_knows_no_others_prints_its_error(failing):
    """What is wrong about its place is not said: the error came first."""
    assert failing() == failing(processes=1) == [None]
    assert failing(processes=2, process=7) == failing(processes=2, process=0) == [None]


@pytest.mark.parametrize(
    ("answer", "printed"),
    [
        ("process 1 failed: no file", [1]),  # as process 0 tells all
        ("process 0 failed: no file", []),  # it has printed that
        ("process 0 failed: another file", [1]),
        ("", [1]),  # all were there already, as one with the number of another one hears it
    ],
)
def test_an_error_is_printed_unless_another_process_prints_the_same(failing, monkeypatch, answer, printed):
    monkeypatch.setattr(roll_call, "_LATE_SECONDS", LIMIT)
    coordinator, callers = f"localhost:{free_port()}", []
    place = roll_call.ProcessInfo(coordinator, 2, 0)
    token = roll_call._token(place, os.environ)

    async def serve():
        called = asyncio.Event()

        async def hear(reader, writer):
            callers.append(await signed_calls.accept(reader, writer, token))
            signed_calls.answer(writer, token, callers[-1], answer)
            writer.close()
            called.set()

        async with await asyncio.start_server(hear, sock=roll_call._server(place)):
            await asyncio.wait_for(called.wait(), LIMIT)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        served = pool.submit(asyncio.run, serve())
        assert failing(coordinator=coordinator, processes=2, process=1) == printed
        served.result()
    (caller,) = callers
    assert (caller.process, caller.processes, caller.failure) == (1, 2, "no file")


def test_a_process_0_that_fails_prints_its_error_before_the_others_come(failing, monkeypatch):
    monkeypatch.setattr(roll_call, "_LATE_SECONDS", 0.1)
    assert failing(coordinator=f"localhost:{free_port()}", processes=2, process=0) == [0]


STAMP = r"\d\d-\d\d \d\d:\d\d:\d\d "


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What is left of two `jaxpt train` with these words, by the name of the case."""
    folder = tmp_path_factory.mktemp("commands")
    directory, wrong = f"run_dir={folder / 'run'}", "train.stepz=30"
    cases = {
        "both": [[wrong], [wrong]],
        "otherwise": [[wrong], ["seed=x"]],
        0: [[directory, wrong], [directory]],
        1: [[directory], [directory, wrong]],
    }

    def command(words, number, port):
        own = {"JAXPT_COORDINATOR": f"localhost:{port}", "JAXPT_PROCESSES": "2", "JAXPT_PROCESS": str(number)}
        return "from jaxpt import cli; cli.start()", ["train", "configs/smoke/gpt2_tiny.yaml", *words], own

    ports = [free_port() for _ in cases]
    groups = [[command(words, n, port) for n, words in enumerate(own)] for own, port in zip(cases.values(), ports)]
    imported = "jaxpt.cli", "jaxpt.study.recipes", "jaxpt.train.loop", "jaxpt.models.gpt2", "jaxpt.evals.samples"
    found = dict(zip(cases, forks.run(imported, groups, folder)))
    assert not (folder / "run").exists()
    return {case: ([one.code for one in two], [one.err.splitlines() for one in two]) for case, two in found.items()}


@pytest.mark.slow
def test_a_recipe_that_does_not_load_is_said_once(ended):
    codes, (first, second) = ended["both"]
    assert codes == [2, 2] and second == []
    (line,) = first
    assert re.fullmatch(
        STAMP + r"\[0\] jaxpt: command line: unknown key train\.stepz; did you mean train\.steps\?", line
    )


@pytest.mark.slow
def test_two_that_fail_otherwise_both_say_so(ended):
    codes, (first, second) = ended["otherwise"]
    assert codes == [2, 2] and "train.stepz" in first[0] and len(first) == len(second) == 1
    assert re.fullmatch(STAMP + r"\[1\] jaxpt: command line: seed: .*", second[0])


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_one_that_fails_before_the_roll_ends_the_others(ended, failing):
    codes, errors = ended[failing]
    assert codes == [2, 2], errors
    assert re.fullmatch(STAMP + rf"\[{failing}\] jaxpt: command line: unknown key.*", errors[failing][-1])
    waiting = 1 - failing
    words = rf"\[{waiting}\] jaxpt: process {failing} failed: command line: unknown key.*"
    assert re.fullmatch(STAMP + words, errors[waiting][-1])
