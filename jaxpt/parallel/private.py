"""What jaxpt takes of JAX behind its public names, each with its reason; no other file does.

`tests/parallel/test_private.py` says what has to be there: a new version of JAX that moves it fails there by name. (The
exception is `jaxpt.plan.gpus`, which lets cuDNN's attention be traced without a GPU.)
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

SERVICE_MODULE, SERVICE = "jaxlib._jax", "get_distributed_runtime_service"
"""JAX's coordinator."""


def coordination() -> Any:
    """The state of `jax.distributed`, whose `client` reads and writes the coordinator's keys.

    Public barriers and collectives do not name a process that is missing, and wait for one that is gone until a timeout
    ends the process. A key of each process says who has come.
    """
    from jax._src.distributed import global_state

    return global_state


@contextlib.contextmanager
def outliving_coordinator() -> Iterator[None]:
    """Within it `jax.distributed.initialize` starts the coordinator in a process that outlives process 0.

    JAX runs it inside process 0. When that dies, all others lose the coordinator in the same moment, and JAX aborts
    them with a stack trace (also with `jax_enable_recoverability`). With a coordinator that is still there they can say
    which process is gone (`failures`).
    """
    from jax._src.lib import _jax  # where JAX looks for it

    original = getattr(_jax, SERVICE)
    setattr(_jax, SERVICE, Coordinator)
    try:
        yield
    finally:
        setattr(_jax, SERVICE, original)


# It reads from process 0. A byte says that the run is over; an end without it, that process 0 has died: then it serves
# the others until JAX itself would have missed it.
_PROGRAM = f"""
import importlib, json, os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
make = importlib.import_module("{SERVICE_MODULE}").{SERVICE}
address, nodes, options = json.loads(sys.argv[1])
try:
    service = make(address, nodes, **options)
except Exception as error:
    print(str(error).splitlines()[0], flush=True)
    os._exit(1)
print("ready", flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the processes themselves name those that are gone
if not sys.stdin.buffer.read(1):
    time.sleep(options["heartbeat_timeout"])
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
        _listen(address)
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


def _listen(address: str) -> None:
    """Listens at an address for a moment, since jaxlib 0.10 may crash without a word where it cannot.

    Raises:
      RuntimeError: says why it cannot.
    """
    host, _, port = address.rpartition(":")
    hosts = ("::", "0.0.0.0") if host == "[::]" else (host.strip("[]"),)
    for name in hosts:
        try:
            family = socket.AF_INET6 if ":" in name else socket.AF_INET
            socket.create_server((name, int(port)), family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE or len(hosts) == 1:  # else it listens at the other one
                raise RuntimeError(f"process 0 cannot listen there: {error.strerror}") from None
