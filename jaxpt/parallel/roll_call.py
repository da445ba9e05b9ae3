"""Who the processes of a run are, and whether all of them are there: before JAX connects them.

Who they are is said by `distributed.*`, else by JAXPT_COORDINATOR, JAXPT_PROCESSES and JAXPT_PROCESS, else by Slurm
(under `srun`). Process 0 calls the roll: JAX itself ends a process that waits in vain without saying for whom. A
process that fails before, because its recipe does not load, answers with its last words. Calls are signed with the
token of the job (`signed_calls`). Nothing here imports JAX, which takes a second.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from jaxpt import errors
from jaxpt.config import DistributedConfig, Frozen, PositiveInt
from jaxpt.config.files import override
from jaxpt.config.kinds import strictly
from jaxpt.errors import UserError
from jaxpt.parallel import signed_calls
from jaxpt.runtime import stamp

_VARIABLES = {"coordinator": "JAXPT_COORDINATOR", "processes": "JAXPT_PROCESSES", "process": "JAXPT_PROCESS"}
_ALONE = "set distributed.processes=1 to run alone"
_RETRY = 0.2  # seconds until process 0 is looked for again
_LATEST = 30.0  # seconds in which the others come, once something is wrong
_LONGEST = 4000  # characters of a failure that the others are told


class ProcessInfo(NamedTuple):
    """Where a process stands among those of its run."""

    coordinator: str
    processes: int
    process: int
    devices: list[int] | None = None
    """Local devices that are its own; all by default."""


class _Caller(Frozen):
    """What a process tells process 0."""

    process: PositiveInt
    processes: PositiveInt
    host: str
    failure: str
    """Why it has failed already; "" where it has not."""
    challenge: str
    """Random; the caller is known by it, and the answer is signed with it."""


def find(config: DistributedConfig) -> ProcessInfo | None:
    """Where this process stands; None where neither the recipe, jaxpt's variables nor Slurm say anything.

    Args:
      config: what the recipe says.

    Returns:
      Its place; a process alone has no coordinator.

    Raises:
      UserError: something is missing or wrong.
    """
    return _given(config) or _slurm(os.environ)


def _given(config: DistributedConfig) -> ProcessInfo | None:
    """What the recipe and jaxpt's own variables say, None where they say nothing; one alone has no coordinator."""
    configured = {name: getattr(config, name) for name in _VARIABLES}
    names = {name: f"distributed.{name}" if configured[name] is not None else v for name, v in _VARIABLES.items()}
    settings = {
        name: os.environ.get(v) if configured[name] is None else str(configured[name]) for name, v in _VARIABLES.items()
    }
    if not any(value is not None for value in settings.values()):
        return None
    count, number = (
        _whole(names[name], settings[name], minimum) for name, minimum in (("processes", 1), ("process", 0))
    )
    if count is not None and number is not None and number >= count:
        raise UserError(f"{names['process']}: {number} is none of 0 … {count - 1}, {names['processes']} is {count}")
    if count == 1:
        return ProcessInfo("", 1, 0)
    details = ", ".join(f"{names[name]} is {value}" for name, value in settings.items() if value is not None)
    for name, variable in _VARIABLES.items():
        if settings[name] is None:
            raise UserError(f"distributed.{name} is missing: {details}; give it or {variable}, or {_ALONE}")
    return ProcessInfo(_address(names["coordinator"], str(settings["coordinator"])), count or 0, number or 0)


def _whole(name: str, text: str | None, minimum: int) -> int | None:
    if text is not None and not (re.fullmatch(r"[0-9]+", text) and int(text) >= minimum):
        raise UserError(f"{name}: wants a whole number not below {minimum}, got {text!r}")
    return None if text is None else int(text)


def _address(name: str, text: str) -> str:
    port = re.fullmatch(r"\S+:([0-9]{1,5})", text)
    if port is None or not 0 < int(port[1]) < 65536:
        raise UserError(f"{name}: wants host:port, a port below 65536, such as 10.0.0.1:1234, got {text!r}")
    return text


def _slurm(environment: Any) -> ProcessInfo | None:
    """What `srun` says; None without it, or where it runs a single task.

    With several tasks on a node each has the device of its local number, with one task a node all devices.

    Example:
      >>> step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "4100"}
      >>> _slurm(step | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"})
      ProcessInfo(coordinator='gpu07:61444', processes=4, process=3, devices=[1])
    """

    def get(name: str, form: str = "[0-9]+") -> str:
        if not re.fullmatch(form, value := environment.get(name, "")):
            is_missing = f"is {value!r}" if value else "is missing"
            raise UserError(f"{name} {is_missing}, in a Slurm step; give distributed.* or JAXPT_*, or {_ALONE}")
        return value

    if "SLURM_STEP_NUM_TASKS" not in environment or (count := int(get("SLURM_STEP_NUM_TASKS"))) < 2:
        return None
    prefix, number = re.match(r"([^,\[]*)(?:\[(\w+))?", get("SLURM_STEP_NODELIST", ".*\\w.*")).groups("")  # type: ignore[union-attr]
    port = 61440 + int(get("SLURM_JOB_ID")) % 4096  # two jobs on a node have two
    alone = re.fullmatch(r"1(\(x\d+\))?", get("SLURM_STEP_TASKS_PER_NODE", ".+"))
    devices = None if alone else [int(get("SLURM_LOCALID"))]
    if (process := int(get("SLURM_PROCID"))) >= count:
        raise UserError(f"SLURM_PROCID: {process} is none of 0 … {count - 1}, SLURM_STEP_NUM_TASKS is {count}")
    return ProcessInfo(f"{prefix}{number}:{port}", count, process, devices)


def call_roll(info: ProcessInfo, timeout: float, failure: str = "") -> None:
    """Waits for all processes: each sends its number to process 0, which answers with the missing ones.

    Args:
      info: this process's.
      timeout: seconds to wait.
      failure: its last words, if it has failed already; then all processes end.

    Raises:
      UserError: some did not come, have failed, or two have the same number; at every process that is there.
    """
    end = time.monotonic() + timeout
    words = _listen(info, end, failure) if info.process == 0 else _report(info, end, failure)
    if words:
        raise UserError(words)


def fail(words: str, overrides: Sequence[str], say: Callable[[], None]) -> None:
    """Ends a process that fails before the roll is called: the others, who would wait for it, are told.

    Args:
      words: its last ones.
      overrides: of the command line; `distributed.*` among them say who it is, as the recipe may not load.
      say: prints the words. It is called once, unless another process has failed with the same words and says them.
    """
    try:
        info = find(_settings(overrides))
    except UserError:
        info = None
    if info is None or info.processes == 1:
        return say()
    stamp.set_process(info.process)
    if info.process == 0:
        say()
    answer = ""
    try:
        call_roll(info, _LATEST, words)
    except UserError as error:
        answer = str(error)
    first, _, failure = answer.partition(" failed: ")
    if info.process > 0 and (failure != words or first == f"process {info.process}"):
        say()
    return None


def _settings(overrides: Sequence[str]) -> DistributedConfig:
    tree: dict[str, Any] = {}
    try:
        for item in overrides:
            if item.startswith("distributed."):
                override(tree, {}, item)
        return strictly(DistributedConfig, tree.get("distributed", {}))
    except (UserError, ValidationError):  # that is what the words are about
        return DistributedConfig()


def _token(info: ProcessInfo, environment: Mapping[str, str]) -> bytes:
    """What all processes of a run know, and others do not: JAXPT_TOKEN, or at least the port and Slurm's job."""
    step = (environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    words = environment.get("JAXPT_TOKEN") or "\n".join((info.coordinator.rpartition(":")[2], *step))
    return hashlib.sha256(f"jaxpt\n{words}".encode(errors="surrogateescape")).digest()


def _server(info: ProcessInfo) -> socket.socket:
    """Listens at the address that the others are told, where it is one of this machine; else at all of them."""
    host, _, port = info.coordinator.rpartition(":")
    if host == "localhost" or re.fullmatch(r"[0-9.]+", host):  # a name may stand for loopback here alone
        with contextlib.suppress(OSError):
            return socket.create_server((host, int(port)))
    return socket.create_server(("", int(port)))


def _listen(info: ProcessInfo, end: float, failure: str) -> str:
    """Process 0: takes the others' calls and tells all of them the outcome, which is empty when all are there.

    Once something is wrong those who come are told at once, for a while.
    """
    place = f"distributed.coordinator: {info.coordinator}:"
    words = f"process 0 failed: {failure}" if failure else ""
    try:
        server = _server(info)
    except OSError as error:
        return words or f"{place} process 0 cannot listen there: {error.strerror}"

    def note(who: str) -> None:
        errors.note(f"{place} a caller from {who}: no process of this run; dropped, the start goes on")

    listener = signed_calls.Listener(server, _token(info, os.environ), functools.partial(strictly, _Caller), note)
    with server, contextlib.closing(listener):
        hosts, came, waiting = {0: socket.gethostname()}, set[str](), list[signed_calls.Call[_Caller]]()
        while len(came) < info.processes - 1:
            try:
                call = listener.next(end)
            except TimeoutError:
                missing = ", ".join(str(n) for n in range(info.processes) if n not in hosts)
                late = f"{place} of {info.processes} processes {missing} did not come in time (distributed.timeout)"
                words = words or late + (f"; the last that was dropped: {listener.dropped}" if listener.dropped else "")
                break
            caller = call.message
            if not words and caller.challenge not in came and (words := _wrong(info, hosts, caller)):
                end = min(end, time.monotonic() + _LATEST)
            waiting.append(call)
            came.add(caller.challenge)  # which comes again where its first connection was cut off
            hosts[caller.process] = caller.host
            if words:
                _answer(waiting, words)
        _answer(waiting, words)
    return words


def _wrong(info: ProcessInfo, hosts: Mapping[int, str], caller: _Caller) -> str:
    """What is wrong with a caller, if anything is."""
    place, number, host = f"distributed.coordinator: {info.coordinator}:", caller.process, caller.host
    if caller.failure:
        return f"process {number} failed: {caller.failure}"
    if caller.processes != info.processes:
        return f"{place} process {number} on {host} counts {caller.processes} processes, process 0 {info.processes}"
    if number in hosts:
        return f"{place} two processes have the number {number}, on {hosts[number]} and {host}"
    return ""


def _answer(callers: list[signed_calls.Call[_Caller]], words: str) -> None:
    """Tells each caller the outcome, once."""
    while callers:
        callers.pop().answer(words)


def _report(info: ProcessInfo, end: float, failure: str) -> str:
    """Another process: tells process 0 its number and hears the outcome."""
    place, why = f"distributed.coordinator: {info.coordinator}:", ""
    host, _, port = info.coordinator.rpartition(":")
    challenge = secrets.token_hex(16)
    message: dict[str, Any] = {"process": info.process, "processes": info.processes, "host": socket.gethostname()}
    message |= {"failure": failure[:_LONGEST], "challenge": challenge}
    while True:
        try:
            return signed_calls.call((host, int(port)), _token(info, os.environ), message, end)
        except signed_calls.EndedError:
            return f"{place} process 0 has ended"
        except socket.gaierror:
            return f"{place} process {info.process} does not know the host {host}"
        except signed_calls.StrangerError as error:
            why = f"; what listens there {error}: another run, or another JAXPT_TOKEN?"
        except OSError:
            pass
        if time.monotonic() > end:
            return f"{place} process {info.process} did not find process 0 there in time (distributed.timeout){why}"
        time.sleep(_RETRY)
