"""What jaxpt takes of JAX behind its public names, each with its reason; no other file does.

`tests/parallel/test_private.py` says what has to be there: a new version of JAX that moves it fails there by name. (Out
of this is `jaxpt.plan.gpus`, which lets cuDNN's attention be traced where there is no GPU.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

SERVICE_MODULE = "jaxlib._jax"
"""Has the coordinator's service, `get_distributed_runtime_service`. A process of its own runs it, so that it outlives
process 0: inside of it, as `jax.distributed.initialize` has it, all others end when it does."""
SERVICE = "get_distributed_runtime_service"


def coordination() -> Any:
    """The state of `jax.distributed`, whose `client` reads and writes the coordinator's keys.

    Public barriers and collectives do not name a process that is missing, and wait for one that is gone until a timeout
    ends the process. A key of each process says who has come.
    """
    from jax._src.distributed import global_state

    return global_state


@contextlib.contextmanager
def replaced_service(make: Callable[..., Any]) -> Iterator[None]:
    """Within it `jax.distributed.initialize` starts `make(address, nodes, …)` instead of JAX's own service."""
    from jax._src.lib import _jax  # where JAX looks for it

    original = getattr(_jax, SERVICE)
    setattr(_jax, SERVICE, make)
    try:
        yield
    finally:
        setattr(_jax, SERVICE, original)
