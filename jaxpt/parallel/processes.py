"""How the processes of a run find each other, and make sure that they are all there and have the same configuration.

`roll_call.find` says who they are, else JAX itself: the metadata of a TPU, or Open MPI up to 4.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import glob
import importlib.util
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxpt.errors import UserError
from jaxpt.parallel import private, roll_call
from jaxpt.runtime import stamp

if TYPE_CHECKING:
    from jaxpt.config import DistributedConfig

uses: collections.Counter[str] = collections.Counter()
"""How often a point was come to: keys of the coordinator stay, a second run in these processes needs its own."""
_RETRY_SECONDS = 0.2
"""Time until the others are looked for again."""
_MAX_MILLISECONDS = 7 * 24 * 3600 * 1000
"""Time for process 0 to work in a shared directory; if it ends, so do the others (`failures`)."""


def start(config: DistributedConfig) -> int | None:
    """Joins the processes of a run; returns at once if there is only one, or if this was done before.

    Args:
      config: where process 0 listens, the number of processes, and this process's number; the environment says what
        it leaves out.

    Returns:
      The number of processes that was asked for, where fewer came and go on (`distributed.min_processes`).

    Raises:
      UserError: one of the three is missing or wrong, or some processes did not come in `timeout` seconds.
    """
    if jax.distributed.is_initialized() or config.processes == 1:
        return None
    place, on_tpu = roll_call.find(config), _on_tpu()
    if place.processes == 1 if place else not (on_tpu or roll_call.OPEN_MPI in os.environ):
        return None
    if place is None and roll_call.OPEN_MPI in os.environ:
        roll_call.check_open_mpi(os.environ)
    asked = place.processes if place else 0
    if place is not None:
        stamp.set_process(place.process)
        place = roll_call.call_roll(place, config.timeout, min_processes=config.min_processes)
        if place.processes == 1:  # no other came
            if place.devices is not None:  # as `jax.distributed.initialize` does: other tasks may have the others
                for platform in ("cuda", "rocm"):
                    jax.config.update(f"jax_{platform}_visible_devices", ",".join(map(str, place.devices)))
            return asked
    # JAX's own handler of SIGTERM would take the place of ours.
    jax.config.update("jax_enable_preemption_service", False)
    atexit.register(jax.distributed.shutdown)  # process 0 waits for the others
    # JAX aborts with a stack trace where jaxpt prints a line: later, therefore.
    timeouts = {
        "initialization_timeout": config.timeout,
        "heartbeat_timeout_seconds": max(100, 2 * config.heartbeat_timeout),
    }
    try:
        with private.outliving_coordinator():
            jax.distributed.initialize(*place or (), **timeouts)
    except (RuntimeError, ValueError) as error:
        if place is None and on_tpu and isinstance(error, ValueError):  # without metadata: one host
            return None
        where = place.where if place else "distributed.coordinator:"
        raise UserError(f"{where} {str(error).splitlines()[0]}") from None
    if jax.process_count() > 1:
        stamp.set_process(jax.process_index())
    return asked if jax.process_count() < asked else None


def _on_tpu() -> bool:
    chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return bool(chips) and importlib.util.find_spec("libtpu") is not None


def barrier(point: str, patience: float, report: Callable[[str], None] = lambda line: None) -> None:
    """Waits until all processes have come to a point of the run; the first one that is there names the missing ones.

    Without it the first to come would wait in a collective, which names nobody, and on CPUs gives up after 30 s. JAX's
    own barrier names nobody until it ends the process.

    Args:
      point: a name, another one for each point.
      patience: seconds after which those missing are named, again and again.
      report: called with that line.
    """
    if jax.process_count() == 1:
        return
    uses[f"met/{point}"] += 1
    client, prefix = private.coordination().client, f"jaxpt/met/{point}/{uses[f'met/{point}']}/"
    client.key_value_set(f"{prefix}{jax.process_index()}", "here", allow_overwrite=True)
    begun = last_report = time.monotonic()
    while len(came := client.key_value_dir_get(prefix)) < jax.process_count():
        if time.monotonic() - last_report > patience:
            last_report = time.monotonic()
            arrived = {int(key.rpartition("/")[2]) for key, _ in came}
            missing = ", ".join(map(str, sorted(set(range(jax.process_count())) - arrived)))
            if jax.process_index() == min(arrived):
                report(f"waiting for process {missing} at {point}, for {last_report - begun:.0f} s now")
        time.sleep(_RETRY_SECONDS)


def from_first(point: str, value: Any = None) -> Any:
    """What process 0 gives at a point of the run, in all processes, which wait for it.

    So that process 0 decides alone on what it reads from a shared disk, and others read what it has written before.

    Args:
      point: a name, another one for each point.
      value: a JSON value; those of the others do not count.
    """
    if jax.process_count() == 1:
        return value
    uses[f"told/{point}"] += 1
    client, key = private.coordination().client, f"jaxpt/told/{point}/{uses[f'told/{point}']}"
    if jax.process_index() == 0:
        client.key_value_set(key, json.dumps(value))
        return value
    return json.loads(client.blocking_key_value_get(key, _MAX_MILLISECONDS))


def assert_same_settings(settings: Mapping[str, Any], patience: float) -> None:
    """Makes sure that all processes have the same settings.

    Args:
      settings: this process's, under their dotted keys; values of JSON.
      patience: seconds after which processes that are missing are named.

    Raises:
      UserError: names the first key that differs, with both values; at every process.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    barrier("the start", patience)
    text = np.frombuffer(json.dumps(settings).encode(), np.uint8)
    longest = int(multihost_utils.process_allgather(np.array([text.size])).max())
    rows = multihost_utils.process_allgather(np.pad(text, (0, longest - text.size), constant_values=ord(" ")))
    first, *others = (json.loads(bytes(row)) for row in rows)
    for number, other in enumerate(others, 1):
        for key in first | other:
            if first.get(key) != other.get(key):
                raise UserError(f"{key}: {other.get(key)!r} at process {number}, {first.get(key)!r} at process 0")


@contextlib.contextmanager
def first_host_first(
    directory: Path, point: str, patience: float, report: Callable[[str], None]
) -> Iterator[list[int]]:
    """Lets process 0 work in a directory before the hosts that share it, which find what it has made.

    Processes on its host, and hosts with a directory of their own, do not wait. A lock would not do: a bucket that is
    mounted on several hosts has locks for one host alone.

    Args:
      directory: where they work.
      point: a name, another one for each use.
      patience: seconds after which processes that are missing are named.
      report: called with that line, and with one if this process waits for process 0.

    Yields:
      The first process of each host that does not share the directory with process 0.
    """
    if jax.process_count() == 1:
        yield []
        return
    uses[f"shared/{point}"] += 1
    prefix = f"jaxpt/shared/{point}/{uses[f'shared/{point}']}"
    client, process = private.coordination().client, jax.process_index()
    token = _write_token(directory) if process == 0 else None
    if process == 0:
        client.key_value_set(f"{prefix}/token", str(token.name if token else ""))
    barrier(f"{point}, sharing it", patience, report)
    name = client.key_value_try_get(f"{prefix}/token")
    entry = [socket.gethostname(), not name or (directory / name).exists()]
    client.key_value_set(f"{prefix}/found/{process}", json.dumps(entry))
    barrier(f"{point}, knowing who shares it", patience, report)
    if token is not None:
        token.unlink(missing_ok=True)
    answers = client.key_value_dir_get(f"{prefix}/found/")
    hosts = {int(key.rpartition("/")[2]): json.loads(answer) for key, answer in answers}
    waits = name and hosts[process][1] and hosts[process][0] != hosts[0][0]
    if waits:
        report(f"waiting for process 0, which prepares {directory} for all hosts that share it")
        client.blocking_key_value_get(f"{prefix}/done", _MAX_MILLISECONDS)
    apart = {host: number for number, (host, shares) in sorted(hosts.items(), reverse=True) if not shares}
    yield sorted(apart.values())
    if process == 0:
        client.key_value_set(f"{prefix}/done", "")


def _write_token(directory: Path) -> Path | None:
    """Writes a file that only this run knows; None if nothing can be written, as nothing is prepared then either."""
    token = directory / f".{uuid.uuid4().hex}.shared"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError:
        return None
    return token
