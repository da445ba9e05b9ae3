"""Which programs are compiled in a block."""

import contextlib

import jax
from jax._src import monitoring  # its listeners have no public way to go

EVENT = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def seen():
    """Yields a list that gets the name of each program that is compiled, or read from JAX's cache, within."""
    found = []

    def listen(event, _, fun_name="", **__):
        if event == EVENT:
            found.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        monitoring.unregister_event_duration_listener(listen)
