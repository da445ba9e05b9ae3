"""One process at a time runs in a run_dir."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxpt.errors import UserError
from jaxpt.runtime import disk, signals


@contextlib.contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Keeps other processes from running in a run_dir meanwhile. However this one ends, the kernel lets go of it.

    Args:
      run_dir: a directory that exists; `.lock` in it names the process that runs there.

    Raises:
      UserError: another process runs there; it is named.
    """
    with (run_dir / ".lock").open("a+", encoding="utf-8") as file:
        if not disk.lock(file.fileno()):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(f"{run_dir}: {holder} is running there; stop it, or choose another run_dir=…")
        file.truncate(0)
        with contextlib.suppress(OSError):  # a full disk, of which what matters more will tell
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
        file.truncate(0)


def is_held(run_dir: Path) -> bool:
    """True if a process runs in a run_dir."""
    path = run_dir / ".lock"
    if not path.exists():
        return False
    try:
        with path.open("a+", encoding="utf-8") as file:
            return not disk.lock(file.fileno())
    except OSError:  # not ours to write
        return False


def wait(run_dir: Path, name: str, say: Callable[[str], None]) -> None:
    """Waits for a trainer that a killed study left running: it stops when it writes to the closed pipe.

    Args:
      run_dir: its directory, which need not exist.
      name: of the run, for people.
      say: is given a line where there is something to wait for.
    """
    path, announced = run_dir / ".lock", False
    while path.exists() and signals.received() is None:
        with path.open(encoding="utf-8") as file:
            if disk.lock(file.fileno()):
                return
            if not announced:
                say(f"[{name}] waiting for {file.read().strip()}, which is still running in this run_dir")
                announced = True
        time.sleep(0.1)
