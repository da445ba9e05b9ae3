"""How the processes of a run find each other, and make sure that they are all there and mean the same.

Who they are is said by `distributed.*`, else by JAXPT_COORDINATOR, JAXPT_PROCESSES and JAXPT_PROCESS, else by Slurm
(under `srun`), else by the metadata of a TPU. Before JAX connects them process 0 calls the roll: JAX itself ends a
process that waits in vain without saying for whom.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import importlib.util
import json
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config, DistributedConfig
from jaxpt.config.plain import leaves
from jaxpt.errors import UserError
from jaxpt.parallel import coordinator

_VARIABLES = {"coordinator": "JAXPT_COORDINATOR", "processes": "JAXPT_PROCESSES", "process": "JAXPT_PROCESS"}
_ALONE = "set distributed.processes=1 to run alone"
_RETRY = 0.2  # seconds until process 0 is looked for again
_GRACE = 5.0  # seconds for the outcome of the roll call to come


class ProcessInfo(NamedTuple):
    """Where a process stands among those of its run."""

    coordinator: str
    processes: int
    process: int
    devices: list[int] | None = None
    """Local devices that are its own; all by default."""


def start(config: DistributedConfig) -> None:
    """Joins the processes of a run; returns at once where there is one alone, or where it was done before.

    Args:
      config: where process 0 listens, how many there are, which this one is; what it leaves out is taken from the
        environment.

    Raises:
      UserError: one of the three is missing or wrong, or not all processes came in `timeout` seconds: which ones.
    """
    if jax.distributed.is_initialized() or config.processes == 1:
        return
    info = _given(config) or _slurm(os.environ)
    if info.processes == 1 if info else not _on_tpu():
        return
    # JAX's own handler of SIGTERM would take the place of ours.
    jax.config.update("jax_enable_preemption_service", False)
    atexit.register(jax.distributed.shutdown)  # process 0, whom the others ask, waits for them
    if info is None:
        with contextlib.suppress(ValueError), coordinator.outliving():  # a TPU without metadata: one host
            jax.distributed.initialize(initialization_timeout=config.timeout)
        return
    call_roll(info, config.timeout)
    try:
        with coordinator.outliving():
            jax.distributed.initialize(*info, initialization_timeout=config.timeout)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"distributed.coordinator: {info.coordinator}: {reason}") from None


def _given(config: DistributedConfig) -> ProcessInfo | None:
    """What the recipe and jaxpt's own variables say, None where they say nothing; one alone has no coordinator."""
    given = {name: getattr(config, name) for name in _VARIABLES}
    names = {name: f"distributed.{name}" if given[name] is not None else v for name, v in _VARIABLES.items()}
    found = {name: os.environ.get(v) if given[name] is None else str(given[name]) for name, v in _VARIABLES.items()}
    if not any(value is not None for value in found.values()):
        return None
    count, number = (_whole(names[name], found[name], least) for name, least in (("processes", 1), ("process", 0)))
    if count is not None and number is not None and number >= count:
        raise UserError(f"{names['process']}: {number} is none of 0 … {count - 1}, {names['processes']} is {count}")
    if count == 1:
        return ProcessInfo("", 1, 0)
    said = ", ".join(f"{names[name]} is {value}" for name, value in found.items() if value is not None)
    for name, variable in _VARIABLES.items():
        if found[name] is None:
            raise UserError(f"distributed.{name} is missing: {said}; give it or {variable}, or {_ALONE}")
    return ProcessInfo(_address(names["coordinator"], str(found["coordinator"])), count or 0, number or 0)


def _whole(name: str, text: str | None, least: int) -> int | None:
    if text is not None and not (re.fullmatch(r"[0-9]+", text) and int(text) >= least):
        raise UserError(f"{name}: wants a whole number not below {least}, got {text!r}")
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


def _on_tpu() -> bool:
    chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return bool(chips) and importlib.util.find_spec("libtpu") is not None


def call_roll(info: ProcessInfo, timeout: float) -> None:
    """Waits for all processes: each sends its number to process 0, which answers with the missing ones.

    Args:
      info: this process's.
      timeout: seconds to wait.

    Raises:
      UserError: some did not come, or two have the same number; at every process that is there.
    """
    host, _, port = info.coordinator.rpartition(":")
    end = time.monotonic() + timeout
    words = _listen(int(port), info, end) if info.process == 0 else _report(host, int(port), info, end)
    if words:
        raise UserError(f"distributed.coordinator: {info.coordinator}: {words}")


def _listen(port: int, info: ProcessInfo, end: float) -> str:
    """Process 0: takes the others' calls and tells all of them the outcome, which is empty when all are there."""
    hosts, callers, words = {0: socket.gethostname()}, [], ""
    try:
        server = socket.create_server(("", port))
    except OSError as error:
        return f"process 0 cannot listen there: {error.strerror}"
    with server, contextlib.ExitStack() as stack:
        while len(hosts) < info.processes and not words:
            server.settimeout(max(end - time.monotonic(), 0.001))
            try:
                caller = stack.enter_context(server.accept()[0])
                caller.settimeout(_GRACE)
                number, processes, host = json.loads(caller.makefile().readline())
            except TimeoutError:
                missing = ", ".join(str(n) for n in range(info.processes) if n not in hosts)
                words = f"of {info.processes} processes {missing} did not come in time (distributed.timeout)"
                break
            except (OSError, ValueError, TypeError):  # not one of ours
                continue
            callers.append(caller)
            if processes != info.processes:
                words = f"process {number} on {host} counts {processes} processes, process 0 {info.processes}"
            elif number in hosts:
                words = f"two processes have the number {number}, on {hosts[number]} and {host}"
            hosts[number] = host
        for caller in callers:
            with contextlib.suppress(OSError):  # it has gone: JAX will say so
                caller.sendall(f"{words}\n".encode())
    return words


def _report(host: str, port: int, info: ProcessInfo, end: float) -> str:
    """Another process: tells process 0 its number and hears the outcome."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(end - time.monotonic(), 0.001)) as call:
                call.sendall(json.dumps([info.process, info.processes, socket.gethostname()]).encode() + b"\n")
                call.settimeout(max(end - time.monotonic(), 0.001) + _GRACE)
                answer = call.makefile().readline()
                return answer.strip() if answer else "process 0 has ended"
        except socket.gaierror:
            return f"process {info.process} does not know the host {host}"
        except OSError:
            if time.monotonic() > end:
                return f"process {info.process} did not find process 0 there in time (distributed.timeout)"
            time.sleep(_RETRY)


def barrier(point: str, patience: float, report: Callable[[str], None] = lambda line: None) -> None:
    """Waits until all processes have come to a point of the run; whom it waits for is said from time to time.

    Without it the first to come would wait in a collective, which says no name, and on CPUs gives up after 30 s.

    Args:
      point: its name, another one for each point.
      patience: seconds after which those missing are named, again and again.
      report: is given that line.
    """
    if jax.process_count() == 1:
        return
    from jax._src.distributed import global_state  # the coordinator's keys have no public name

    client, place = global_state.client, f"jaxpt/met/{point}/"
    client.key_value_set(f"{place}{jax.process_index()}", "here", allow_overwrite=True)
    begun = said = time.monotonic()
    while len(came := client.key_value_dir_get(place)) < jax.process_count():
        if time.monotonic() - said > patience:
            said = time.monotonic()
            numbers = set(range(jax.process_count())) - {int(key.rpartition("/")[2]) for key, _ in came}
            missing = ", ".join(map(str, sorted(numbers)))
            report(f"waiting for process {missing} at {point}, for {said - begun:.0f} s now")
        time.sleep(_RETRY)


def assert_same_config(config: Config) -> None:
    """Makes sure that all processes run the same configuration.

    Args:
      config: this process's.

    Raises:
      UserError: names the first key that differs, with both values; at every process.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    barrier("the start", config.distributed.timeout)
    own = {key: value for key, value in leaves(configs.dump(config)) if not key.startswith("distributed.")}
    text = np.frombuffer(json.dumps(own).encode(), np.uint8)
    longest = int(multihost_utils.process_allgather(np.array([text.size])).max())
    rows = multihost_utils.process_allgather(np.pad(text, (0, longest - text.size), constant_values=ord(" ")))
    first, *others = (json.loads(bytes(row)) for row in rows)
    for number, other in enumerate(others, 1):
        for key in first | other:
            if first.get(key) != other.get(key):
                raise UserError(f"{key}: {other.get(key)!r} at process {number}, {first.get(key)!r} at process 0")
