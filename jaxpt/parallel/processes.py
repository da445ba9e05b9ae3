"""How the processes of a run find each other, and make sure that they are all there and mean the same.

Who they are is said by `roll_call.find`, else by the metadata of a TPU.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import importlib.util
import json
import time
from collections.abc import Callable

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config, DistributedConfig
from jaxpt.config.plain import leaves
from jaxpt.errors import UserError
from jaxpt.parallel import coordinator, private, roll_call
from jaxpt.runtime import stamp

_RETRY = 0.2  # seconds until the others are looked for again


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
    info = roll_call.find(config)
    if info.processes == 1 if info else not _on_tpu():
        return
    if info is not None:
        stamp.set_process(info.process)
    # JAX's own handler of SIGTERM would take the place of ours.
    jax.config.update("jax_enable_preemption_service", False)
    atexit.register(jax.distributed.shutdown)  # process 0, whom the others ask, waits for them
    # JAX aborts with a stack trace where jaxpt says a line: later, therefore.
    timeouts = {
        "initialization_timeout": config.timeout,
        "heartbeat_timeout_seconds": max(100, 2 * config.heartbeat_timeout),
    }
    if info is None:
        with contextlib.suppress(ValueError), coordinator.outliving():  # a TPU without metadata: one host
            jax.distributed.initialize(**timeouts)
        if jax.process_count() > 1:
            stamp.set_process(jax.process_index())
        return
    roll_call.call_roll(info, config.timeout)
    try:
        with coordinator.outliving():
            jax.distributed.initialize(*info, **timeouts)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"distributed.coordinator: {info.coordinator}: {reason}") from None


def _on_tpu() -> bool:
    chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return bool(chips) and importlib.util.find_spec("libtpu") is not None


def barrier(point: str, patience: float, report: Callable[[str], None] = lambda line: None) -> None:
    """Waits until all processes have come to a point of the run; whom it waits for is said from time to time, by the
    first process that is there.

    Without it the first to come would wait in a collective, which says no name, and on CPUs gives up after 30 s.

    Args:
      point: its name, another one for each point.
      patience: seconds after which those missing are named, again and again.
      report: is given that line.
    """
    if jax.process_count() == 1:
        return
    client, place = private.coordination().client, f"jaxpt/met/{point}/"
    client.key_value_set(f"{place}{jax.process_index()}", "here", allow_overwrite=True)
    begun = last_report = time.monotonic()
    while len(came := client.key_value_dir_get(place)) < jax.process_count():
        if time.monotonic() - last_report > patience:
            last_report = time.monotonic()
            arrived = {int(key.rpartition("/")[2]) for key, _ in came}
            missing = ", ".join(map(str, sorted(set(range(jax.process_count())) - arrived)))
            if jax.process_index() == min(arrived):
                report(f"waiting for process {missing} at {point}, for {last_report - begun:.0f} s now")
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
    settings = {key: value for key, value in leaves(configs.dump(config)) if not key.startswith("distributed.")}
    text = np.frombuffer(json.dumps(settings).encode(), np.uint8)
    longest = int(multihost_utils.process_allgather(np.array([text.size])).max())
    rows = multihost_utils.process_allgather(np.pad(text, (0, longest - text.size), constant_values=ord(" ")))
    first, *others = (json.loads(bytes(row)) for row in rows)
    for number, other in enumerate(others, 1):
        for key in first | other:
            if first.get(key) != other.get(key):
                raise UserError(f"{key}: {other.get(key)!r} at process {number}, {first.get(key)!r} at process 0")
