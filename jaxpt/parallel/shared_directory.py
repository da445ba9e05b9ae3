"""Hosts that share a directory: the first one works there before the others, which find what it has made.

Not by a lock: a bucket that is mounted on several hosts has locks for one host alone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from jaxpt.parallel import private
from jaxpt.parallel.processes import barrier

_RETRY = 0.2  # seconds until process 0 is asked again


@contextlib.contextmanager
def first_host_first(
    directory: Path, point: str, patience: float, report: Callable[[str], None]
) -> Iterator[list[int]]:
    """Within it, process 0 and those on its host work at once; hosts that share the directory, when process 0 is done;
    hosts with a directory of their own, at once too.

    Args:
      directory: where they work.
      point: a name for it, another one for each use.
      patience: seconds after which processes that are missing are named.
      report: is given that line, and one where this process waits for process 0.

    Yields:
      The first process of each host that does not share the directory with process 0.
    """
    if jax.process_count() == 1:
        yield []
        return
    client, place, process = private.coordination().client, f"jaxpt/shared/{point}", jax.process_index()
    token = _write_token(directory) if process == 0 else None
    if process == 0:
        client.key_value_set(f"{place}/token", str(token.name if token else ""))
    barrier(f"{point}, sharing it", patience, report)
    name = client.key_value_try_get(f"{place}/token")
    entry = [socket.gethostname(), not name or (directory / name).exists()]
    client.key_value_set(f"{place}/found/{process}", json.dumps(entry))
    barrier(f"{point}, knowing who shares it", patience, report)
    if token is not None:
        token.unlink(missing_ok=True)
    answers = client.key_value_dir_get(f"{place}/found/")
    hosts = {int(key.rpartition("/")[2]): json.loads(answer) for key, answer in answers}
    waits = name and hosts[process][1] and hosts[process][0] != hosts[0][0]
    if waits:
        report(f"waiting for process 0, which prepares {directory} for all hosts that share it")
        while not _is_set(client, f"{place}/done"):
            time.sleep(_RETRY)
    apart = {host: number for number, (host, shares) in sorted(hosts.items(), reverse=True) if not shares}
    yield sorted(apart.values())
    if process == 0:
        client.key_value_set(f"{place}/done", "")


def _write_token(directory: Path) -> Path | None:
    """A file that only this run knows; None where nothing can be written: then nothing is prepared either."""
    token = directory / f".{uuid.uuid4().hex}.shared"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError:
        return None
    return token


def _is_set(client: object, key: str) -> bool:
    try:
        client.key_value_try_get(key)  # type: ignore[attr-defined]
    except jax.errors.JaxRuntimeError:  # not yet
        return False
    return True
