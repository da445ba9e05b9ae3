"""The subprocesses of a study: several at once if asked, each on one device; signals are forwarded to them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from jaxpt.errors import UserError
from jaxpt.runtime import signals
from jaxpt.study import failures
from jaxpt.train.display import console

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")
"""What limits a process to some of the machine's devices."""


class Children:
    """The current subprocess of each thread; signals are forwarded to all of them."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._received: int | None = None
        self._lock = threading.RLock()  # a signal may arrive while it is held

    def set(self, pid: int | None) -> None:
        """Sets the current subprocess of this thread; None: there is none."""
        with self._lock:
            self._pids.pop(threading.get_ident(), None)
            if pid is not None:
                self._pids[threading.get_ident()] = pid
                if self._received is not None:
                    self._send(pid, self._received)

    def notify(self, number: int) -> None:
        """Forwards a signal."""
        with self._lock:
            self._received = number
            for pid in list(self._pids.values()):
                self._send(pid, number)

    def _send(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Stopped(Exception):
    """Raised after a signal: the remaining rows are not started."""


def environment(device: str | None) -> dict[str, str]:
    """The environment of a subprocess that sees one device.

    Args:
      device: its number, as the driver counts; None: all of them.

    Example:
      >>> environment("1")["CUDA_VISIBLE_DEVICES"]
      '1'
    """
    if device is None:
        return dict(os.environ)
    one_chip = {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"}
    return os.environ | dict.fromkeys(VISIBLE, device) | one_chip


def in_parallel(
    jobs: Sequence[tuple[str, Iterable[str]]],
    job: Callable[[str, str | None], bool],
    lent: Sequence[str | None],
) -> None:
    """Runs jobs, as many at once as there are slots; each waits for those that it needs.

    Args:
      jobs: (name, names of the jobs before it that it needs) of each.
      job: is given a name and a slot; returns False if no other job is to be started.
      lent: slots; one is given to each running job, such as a device.

    Raises:
      Exception: the first one that a job raised, after all that were running have ended.
    """
    if not jobs:  # and there may be no slots: an executor wants one
        return
    free: SimpleQueue[str | None] = SimpleQueue()
    for slot in lent:
        free.put(slot)
    waiting, running, errors = list(jobs), {}, []

    def start(name: str) -> bool:
        slot = free.get()
        try:
            return job(name, slot)
        finally:
            free.put(slot)

    with ThreadPoolExecutor(len(lent)) as executor:
        while waiting or running:
            unfinished = {name for name, _ in waiting} | set(running.values())
            ready = [name for name, needs in waiting if not unfinished & (set(needs) - {name})]
            for name in ready[: len(lent) - len(running)]:
                running[executor.submit(start, name)] = name
                waiting = [job for job in waiting if job[0] != name]
            if not running:  # jobs that wait for each other
                raise ValueError(f"{', '.join(name for name, _ in waiting)}: wait for each other")
            finished: set[Future] = wait(running, return_when=FIRST_COMPLETED).done
            for future in finished:
                del running[future]
                if (error := future.exception()) is not None:
                    errors.append(error)
                if error is not None or not future.result():
                    waiting = []
    if errors:
        raise errors[0]


def slots(parallel: int, devices: str | None) -> list[str | None]:
    """What `in_parallel` lends to the rows that are trained at once: a device's number, or None.

    Args:
      parallel: how many.
      devices: numbers of devices with commas between them.

    Raises:
      UserError: both are given, or `devices` is no such list.

    Example:
      >>> slots(2, None), slots(1, "0,3")
      ([None, None], ['0', '3'])
    """
    if devices is None:
        return [None] * parallel
    numbers = devices.split(",")
    if not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise UserError(f"--devices: wants numbers of devices, such as 0,1,2,3, got {devices!r}")
    if parallel != 1:
        raise UserError("--parallel and --devices: give one of them; a row is trained on each device")
    return list(numbers)


def run(command: Sequence[str], name: str, child: Children, environment: Mapping[str, str]) -> failures.Failure:
    """Runs a trainer and prints its lines with the row's name.

    Args:
      command: its words.
      name: of the row.
      child: is told the subprocess.
      environment: of the subprocess.

    Returns:
      The reason of failure, or "".

    Raises:
      Stopped: a signal was received.
    """
    last = ""
    # In a new session, so that it receives Ctrl-C once, through the study.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=environment,
    ) as trainer:
        child.set(trainer.pid)
        for line in trainer.stdout:
            console.print(f"[{name}] {line.rstrip()}", markup=False)  # the trainer has broken its long lines
            last = line.strip() or last
        child.set(None)
    if signals.received() is not None:
        raise Stopped
    return failures.of_process(trainer.returncode, [last])
