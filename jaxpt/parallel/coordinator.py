"""The coordinator of a run's processes, in a process of its own that outlives process 0.

JAX runs it inside process 0: when that dies, all others lose the coordinator in the same moment, and JAX aborts them
with a stack trace. With a coordinator that is still there they can say which process is gone (`failures`).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

from jaxpt.parallel import private

_LINGER = 60  # seconds that it serves the others after process 0 has died

# It has process 0's end of a pipe: a byte says that the run is over, an end without it that process 0 has died.
_PROGRAM = f"""
import importlib, json, os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
make = importlib.import_module("{private.SERVICE_MODULE}").{private.SERVICE}
address, nodes, options = json.loads(sys.argv[1])
try:
    service = make(address, nodes, **options)
except Exception as error:
    print(str(error).splitlines()[0], flush=True)
    os._exit(1)
print("ready", flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it says of processes that are gone, they say better
if not sys.stdin.buffer.read(1):
    time.sleep({_LINGER})
else:
    service.shutdown()
os._exit(0)
"""


class Coordinator:
    """Stands for JAX's `DistributedRuntimeService`."""

    def __init__(self, address: str, nodes: int, **options: Any) -> None:
        """Starts it.

        Args:
          address: where it listens.
          nodes: number of processes.
          **options: of JAX's service.

        Raises:
          RuntimeError: it cannot listen there.
        """
        arguments = [sys.executable, "-P", "-c", _PROGRAM, json.dumps([address, nodes, options])]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, start_new_session=True)
        reply = self._process.stdout.readline().decode().strip()  # type: ignore[union-attr]
        if reply != "ready":
            raise RuntimeError(reply or "the coordinator's process ended")

    def shutdown(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError):
            self._process.communicate(b"\n", timeout=10)


def outliving() -> AbstractContextManager[None]:
    """Within it `jax.distributed.initialize` starts a `Coordinator` in process 0, instead of JAX's own service."""
    return private.replaced_service(Coordinator)
