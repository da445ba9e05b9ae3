"""One process at a time runs in a run_dir."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from jaxpt import disk
from jaxpt.errors import UserError


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
