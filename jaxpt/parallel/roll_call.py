"""Who the processes of a run are, and whether all of them are there, before JAX connects them.

`distributed.*` says who they are, else JAXPT_COORDINATOR, JAXPT_PROCESSES and JAXPT_PROCESS, else Open MPI 5 (under
`mpirun`), else Slurm (under `srun`). Process 0 calls the roll, since JAX aborts processes that wait in vain without a
word about the missing ones. A process that fails before that, because its recipe does not load, answers with its error.
Calls are signed with the token of the job (`signed_calls`). Nothing here imports JAX, which takes a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxpt import errors
from jaxpt.errors import RetryableError, UserError
from jaxpt.parallel import signed_calls
from jaxpt.runtime import stamp

if TYPE_CHECKING:
    from jaxpt.config import DistributedConfig

_VARIABLES = {"coordinator": "JAXPT_COORDINATOR", "processes": "JAXPT_PROCESSES", "process": "JAXPT_PROCESS"}
_ALONE = "set distributed.processes=1 to run alone"
OPEN_MPI = "OMPI_MCA_orte_hnp_uri"
"""The variable by which JAX knows Open MPI up to 4."""
_UNDER_MPIRUN = "under Open MPI's mpirun"
_RETRY_SECONDS = 0.2
"""Time until process 0 is looked for again."""
_LOOKUP_SECONDS = 2.0
"""Time until a host that is not known is looked up again."""
_LATE_SECONDS = 30.0
"""Time in which the others come, once something is wrong."""
_FEWER = "goes on with "
"""The outcome where some did not come begins so; the numbers of the others follow."""
_LATE = ("did not come in time", "did not find process 0 there in time", "process 0 has ended")
"""Words of outcomes that another try may change."""
_CONNECTIONS = 128
"""Maximum number of connections that have sent nothing yet; the oldest is dropped."""


class ProcessInfo(NamedTuple):
    """The place of a process among those of its run."""

    coordinator: str
    processes: int
    process: int
    devices: list[int] | None = None
    """Indices of the local devices that it uses; all by default."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the coordinator."""
        host, _, port = self.coordinator.rpartition(":")
        return host, int(port)

    @property
    def where(self) -> str:
        """The start of lines about the coordinator."""
        return f"distributed.coordinator: {self.coordinator}:"


def find(config: DistributedConfig) -> ProcessInfo | None:
    """The place of this process; None if neither the recipe, jaxpt's variables, Open MPI 5 nor Slurm say anything.

    Args:
      config: what the recipe says.

    Returns:
      Its place; a process alone has no coordinator.

    Raises:
      UserError: something is missing or wrong.
    """
    return _configured(config) or _open_mpi_5(os.environ) or _slurm(os.environ)


def _configured(config: DistributedConfig) -> ProcessInfo | None:
    """The place by the recipe and jaxpt's variables; None if they say nothing."""
    settings: dict[str, tuple[str, str]] = {}  # (who says so, the text)
    for name, variable in _VARIABLES.items():
        if getattr(config, name) is not None:
            settings[name] = f"distributed.{name}", str(getattr(config, name))
        elif variable in os.environ:
            settings[name] = variable, os.environ[variable]
    if not settings:
        return None
    count = _whole(*settings["processes"], 1) if "processes" in settings else None
    process = _whole(*settings["process"], 0) if "process" in settings else None
    if count is not None and process is not None and process >= count:
        names = settings["process"][0], settings["processes"][0]
        raise UserError(f"{names[0]}: {process} is none of 0 … {count - 1}, {names[1]} is {count}")
    if count == 1:
        return ProcessInfo("", 1, 0)
    for name, variable in _VARIABLES.items():
        if name not in settings:
            details = ", ".join(f"{setting} is {text}" for setting, text in settings.values())
            raise UserError(f"distributed.{name} is missing: {details}; give it or {variable}, or {_ALONE}")
    return ProcessInfo(_address(*settings["coordinator"]), count or 0, process or 0)


def _whole(name: str, text: str, minimum: int) -> int:
    if not (re.fullmatch(r"[0-9]+", text) and int(text) >= minimum):
        raise UserError(f"{name}: wants a whole number not below {minimum}, got {text!r}")
    return int(text)


def _address(name: str, text: str) -> str:
    port = re.fullmatch(r"(\S+):([0-9]{1,5})", text)
    if port is None or not 0 < int(port[2]) < 65536 or not _is_host(port[1]):
        raise UserError(f"{name}: wants host:port, a port below 65536, such as 10.0.0.1:1234, got {text!r}")
    return text


def _is_host(text: str) -> bool:
    """False of what no name can be, such as "10.0.0..1": looking it up would raise no OSError."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def _slurm(environment: Mapping[str, str]) -> ProcessInfo | None:
    """The place by `srun`; None without it, or if it runs a single task.

    If a node has several tasks, each has the device of its local number; a single task has all devices.

    Example:
      >>> step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "4100"}
      >>> _slurm(step | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"})
      ProcessInfo(coordinator='gpu07:61444', processes=4, process=3, devices=[1])
    """

    get = functools.partial(_variable, environment, "in a Slurm step")
    # JAX's own detection does not say which variable is missing, and gives a task that has a node to itself one device.
    if "SLURM_STEP_NUM_TASKS" not in environment or (count := int(get("SLURM_STEP_NUM_TASKS"))) < 2:
        return None
    prefix, number = re.match(r"([^,\[]*)(?:\[(\w+))?", get("SLURM_STEP_NODELIST", ".*\\w.*")).groups("")  # type: ignore[union-attr]
    port = 61440 + int(get("SLURM_JOB_ID")) % 4096  # two jobs on a node have two
    alone = re.fullmatch(r"1(\(x\d+\))?", get("SLURM_STEP_TASKS_PER_NODE", ".+"))
    devices = None if alone else [int(get("SLURM_LOCALID"))]
    if (process := int(get("SLURM_PROCID"))) >= count:
        raise UserError(f"SLURM_PROCID: {process} is none of 0 … {count - 1}, SLURM_STEP_NUM_TASKS is {count}")
    return ProcessInfo(f"{prefix}{number}:{port}", count, process, devices)


def _open_mpi_5(environment: Mapping[str, str]) -> ProcessInfo | None:
    """The place by `mpirun` of Open MPI 5, which JAX does not know; None without it, or if it runs a single process.

    Process 0 is looked for on the host where `mpirun` runs, which PMIX_NAMESPACE names. If a host has several
    processes, each has the device of its local number; a single one has all devices.

    Example:
      >>> job = {"PRTE_LAUNCHED": "1", "PMIX_NAMESPACE": "prterun-gpu-07-8192@1", "OMPI_COMM_WORLD_SIZE": "4"}
      >>> own = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
      >>> _open_mpi_5(job | own)
      ProcessInfo(coordinator='gpu-07:61440', processes=4, process=3, devices=[1])
    """
    get = functools.partial(_variable, environment, _UNDER_MPIRUN)
    if "PRTE_LAUNCHED" not in environment or (count := int(get("OMPI_COMM_WORLD_SIZE"))) < 2:
        return None
    process, local, on_host = (int(get(f"OMPI_COMM_WORLD_{name}")) for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE"))
    _check_rank(process, count)
    host, pid = re.match(r"\w+-(.+)-(\d+)@", get("PMIX_NAMESPACE", r"\w+-.+-\d+@\d+")).groups()  # type: ignore[union-attr]
    return ProcessInfo(f"{host}:{61440 + int(pid) % 4096}", count, process, None if on_host == 1 else [local])


def check_open_mpi(environment: Mapping[str, str]) -> None:
    """Makes sure of the variables of `mpirun`, by which JAX finds the processes: it does not say which is missing.

    Args:
      environment: of a process that `mpirun` started, by its OPEN_MPI.

    Raises:
      UserError: one is missing or wrong.
    """
    get = functools.partial(_variable, environment, _UNDER_MPIRUN)
    get(OPEN_MPI, r"[0-9]+\..*")  # the job, and the address of which JAX says in a line if it is none
    size, rank, _ = (int(get(f"OMPI_COMM_WORLD_{name}")) for name in ("SIZE", "RANK", "LOCAL_RANK"))
    _check_rank(rank, size)


def _check_rank(rank: int, size: int) -> None:
    if rank >= size:
        raise UserError(f"OMPI_COMM_WORLD_RANK: {rank} is none of 0 … {size - 1}, OMPI_COMM_WORLD_SIZE is {size}")


def _variable(environment: Mapping[str, str], where: str, name: str, form: str = "[0-9]+") -> str:
    """The value of a launcher's variable; UserError where it is missing or has another form."""
    if not re.fullmatch(form, value := environment.get(name, "")):
        is_missing = f"is {value!r}" if value else "is missing"
        raise UserError(f"{name} {is_missing}, {where}; give distributed.* or JAXPT_*, or {_ALONE}")
    return value


def call_roll(place: ProcessInfo, timeout: float, failure: str = "", min_processes: int | None = None) -> ProcessInfo:
    """Waits for all processes: each sends its number to process 0, which answers with the missing ones.

    Args:
      place: this process's place.
      timeout: seconds to wait.
      failure: this process's error, if it has failed already; then all processes end.
      min_processes: of those that come in time some go on if they are so many, as process 0 says; None: all have to.

    Returns:
      The place among those that go on.

    Raises:
      UserError: some have failed, or two have the same number; at every process that is there.
      RetryableError: some did not come in time; or the others go on without this one.
    """
    run = _Roll(place, min_processes).call if place.process == 0 else functools.partial(_report, place)
    words = asyncio.run(run(timeout, failure))
    if words.startswith(_FEWER):
        return _among(place, [int(number) for number in words.removeprefix(_FEWER).split()])
    if words:
        is_late = words.startswith(place.where) and any(late in words for late in _LATE)
        raise (RetryableError if is_late else UserError)(words)
    return place


def _among(place: ProcessInfo, chosen: list[int]) -> ProcessInfo:
    """The place of a process among those that go on, which are numbered anew."""
    goes_on = f"of {place.processes} processes {len(chosen)} go on (distributed.min_processes)"
    if place.process not in chosen:
        without = f"without process {place.process}: their number divides {place.processes}"
        raise RetryableError(f"{place.where} {goes_on}, {without}")
    if place.process == 0:
        errors.note(f"{place.where} {goes_on}: {', '.join(map(str, chosen))}; some did not come in time")
    return place._replace(processes=len(chosen), process=chosen.index(place.process))


def fewer(processes: int, came: int) -> int:
    """How many of the processes that came go on: the most that divide the number that was asked for.

    Each then has a whole number of the missing ones' rows of the batch.

    Example:
      >>> fewer(4, 3), fewer(6, 5), fewer(5, 4)
      (2, 3, 1)
    """
    return max(count for count in range(1, came + 1) if processes % count == 0)


def fail(words: str, config: DistributedConfig, report: Callable[[], None]) -> None:
    """Ends a process that fails before the roll is called: the others, who would wait for it, are told.

    Args:
      words: its error, in a line.
      config: the recipe's `distributed` section, as far as it is known.
      report: prints the error. It is called once, unless another process has failed with the same error and prints it.
    """
    try:
        place = find(config)
    except UserError:
        place = None
    if place is None or place.processes == 1:
        report()
        return
    stamp.set_process(place.process)
    if place.process == 0:
        report()
    try:
        call_roll(place, _LATE_SECONDS, words)
        answer = ""
    except UserError as error:
        answer = str(error)
    is_reported = answer.endswith(f" failed: {words}") and not answer.startswith(f"process {place.process} ")
    if place.process > 0 and not is_reported:
        report()


def _token(place: ProcessInfo, environment: Mapping[str, str]) -> bytes:
    """A secret that all processes of a run know: JAXPT_TOKEN, or at least the port and Slurm's job."""
    step = (environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    words = environment.get("JAXPT_TOKEN") or "\n".join((str(place.address[1]), *step))
    return hashlib.sha256(f"jaxpt\n{words}".encode(errors="surrogateescape")).digest()


def _server(place: ProcessInfo) -> socket.socket:
    """Listens at the coordinator's address, where it is one of this machine; else at all addresses."""
    host, port = place.address
    if host == "localhost" or re.fullmatch(r"[0-9.]+", host):  # other names may stand for loopback on this machine
        with contextlib.suppress(OSError):
            return socket.create_server((host, port))
    return socket.create_server(("", port))


class _Roll:
    """Process 0's side: it takes the others' calls, and tells all of them the outcome, which is empty if all came.

    Once something is wrong, those who come are told at once, for a while.
    """

    def __init__(self, place: ProcessInfo, min_processes: int | None = None) -> None:
        self._info, self._token = place, _token(place, os.environ)
        self._min_processes = min_processes or place.processes
        self._hosts = {0: socket.gethostname()}
        self._readers: dict[int, asyncio.StreamReader] = {}
        """What the others send: it ends where one has ended since it called."""
        self._came: set[str] = set()
        """The callers' challenges: one whose first connection was cut off calls again."""
        self._calls: set[asyncio.Task[None]] = set()
        """Connections of callers, who are told the outcome."""
        self._silent: dict[asyncio.Task[None], None] = {}
        """Connections that have not sent their line yet, the oldest first."""
        self._dropped = ""
        """The last stranger, and why it was dropped."""

    async def call(self, timeout: float, failure: str) -> str:
        """Calls the roll; returns the outcome."""
        end = time.monotonic() + timeout
        failed = f"process 0 failed: {failure}" if failure else ""
        try:
            sock = _server(self._info)
        except OSError as error:
            return failed or f"{self._info.where} process 0 cannot listen there: {error.strerror}"
        self._all_came, self._outcome = asyncio.Event(), asyncio.get_running_loop().create_future()
        if failed:
            self._outcome.set_result(failed)
        late = ""
        try:
            async with asyncio.timeout_at(end) as self._deadline:
                server = await asyncio.start_server(self._hear, sock=sock, limit=signed_calls.BYTES)
                await self._all_came.wait()
        except TimeoutError:
            late = self._late()
        server.close()
        if not self._outcome.done():
            self._outcome.set_result(late)
        await asyncio.gather(*self._calls)
        return self._outcome.result()

    def _late(self) -> str:
        """The outcome where some did not come: who goes on, or who is missing."""
        there = [0, *sorted(number for number, reader in self._readers.items() if not reader.at_eof())]
        if (count := fewer(self._info.processes, len(there))) >= self._min_processes:
            return _FEWER + " ".join(map(str, there[:count]))
        missing = ", ".join(str(n) for n in range(self._info.processes) if n not in self._hosts)
        dropped = f"; the last that was dropped: {self._dropped}" if self._dropped else ""
        late = f"{missing} did not come in time (distributed.timeout){dropped}"
        return f"{self._info.where} of {self._info.processes} processes {late}"

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes one call and answers it, or drops the stranger that makes it."""
        task: Any = asyncio.current_task()
        self._silent[task] = None
        if len(self._silent) > _CONNECTIONS:
            next(iter(self._silent)).cancel("said nothing")
        with contextlib.closing(writer):
            try:
                caller = await signed_calls.accept(reader, writer, self._token)
            except (signed_calls.StrangerError, asyncio.CancelledError) as error:
                if str(error):  # else the roll is over
                    self._drop(f"{(writer.get_extra_info('peername') or '?')[0]} {error}")
            else:
                self._calls.add(task)
                self._take(caller)
                self._readers[caller.process] = reader
            finally:
                del self._silent[task]
            if task in self._calls:
                signed_calls.answer(writer, self._token, caller, await self._outcome)

    def _drop(self, who: str) -> None:
        if not self._dropped:
            line = f"a caller from {who}: no process of this run; dropped, the start goes on"
            errors.note(f"{self._info.where} {line}")
        self._dropped = who

    def _take(self, caller: signed_calls.Caller) -> None:
        if not self._outcome.done() and caller.challenge not in self._came and (wrong := self._wrong(caller)):
            self._outcome.set_result(wrong)
            self._deadline.reschedule(min(self._deadline.when() or 0.0, time.monotonic() + _LATE_SECONDS))
        self._came.add(caller.challenge)
        self._hosts[caller.process] = caller.host
        if len(self._came) == self._info.processes - 1:
            self._all_came.set()

    def _wrong(self, caller: signed_calls.Caller) -> str:
        """The line about a caller that is wrong; "" for others."""
        number, host = caller.process, caller.host
        if caller.failure:
            return f"process {number} failed: {caller.failure}"
        if caller.processes != self._info.processes:
            counts = f"counts {caller.processes} processes, process 0 {self._info.processes}"
            return f"{self._info.where} process {number} on {host} {counts}"
        if number in self._hosts:
            hosts = f"{self._hosts[number]} and {host}"
            return f"{self._info.where} two processes have the number {number}, on {hosts}"
        return ""


async def _report(place: ProcessInfo, timeout: float, failure: str) -> str:
    """Another process's side: it tells process 0 its number, and hears the outcome."""
    end = time.monotonic() + timeout
    host = socket.gethostname()
    caller = signed_calls.Caller(process=place.process, processes=place.processes, host=host, failure=failure)
    late, why = f"process {place.process} did not find process 0 there in time (distributed.timeout)", ""
    if not await _is_known(place, end):
        return f"{place.where} {late}; the host {place.address[0]} is not known"
    while True:
        try:
            # Process 0 waits from its own start on, which may have been a moment ago.
            return await signed_calls.call(place.address, _token(place, os.environ), caller, end, timeout)
        except signed_calls.EndedError:
            return f"{place.where} process 0 has ended"
        except signed_calls.StrangerError as error:
            why = f"; what listens there {error}: another run, or another JAXPT_TOKEN?"
        except OSError:
            pass
        if time.monotonic() > end:
            return f"{place.where} {late}{why}"
        await asyncio.sleep(_RETRY_SECONDS)


async def _is_known(place: ProcessInfo, end: float) -> bool:
    """Waits until the coordinator's host has an address; False where it has none in time. Names of pods appear late."""
    is_noted = False
    while True:
        try:
            return bool(await asyncio.get_running_loop().getaddrinfo(*place.address))
        except socket.gaierror:
            pass
        if (left := end - time.monotonic()) <= 0:
            return False
        if not is_noted:
            host = f"the host {place.address[0]} is not known yet"
            errors.note(f"{place.where} {host}; it is looked up again until distributed.timeout")
            is_noted = True
        await asyncio.sleep(min(_LOOKUP_SECONDS, left))
