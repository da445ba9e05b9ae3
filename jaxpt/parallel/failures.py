"""A process of a run that ends with an error ends the others too: they would wait for it at the next collective.

It leaves its last words with JAX's coordinator. The others look there every second, whatever their main thread waits
for; they say the words and end.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import jax

_LOOK = 1.0  # seconds between two looks, and for a process to end by itself after another's failure
_LEAVE = 10.0  # seconds for all processes to leave the coordinator together
_KEY = "jaxpt/failed"


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Within it an error in one process of a run ends all of them; in a process alone nothing changes.

    The process that failed raises its error; the others print its words as the command line does, and exit with code 2.
    """
    if jax.process_count() == 1:
        yield
        return
    watch = _Watch()
    watch.start()
    try:
        yield
    except BaseException as error:
        watch.tell(error)
        raise
    finally:
        watch.end()


class _Watch(threading.Thread):
    """Looks for another process's last words until this one ends."""

    def __init__(self) -> None:
        super().__init__(name="jaxpt-failures", daemon=True)
        from jax._src.distributed import global_state  # the coordinator's keys have no public name

        self._client: Any = global_state.client
        self._stderr = os.dup(2)  # the import of TensorFlow, in the main thread, silences the other for seconds
        self._ended = threading.Event()

    def run(self) -> None:
        words = None
        while words is None and not self._ended.wait(_LOOK):
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # nobody has failed
                words = self._client.key_value_try_get(_KEY)
        # Where all fail alike, or all get a signal, each says so itself.
        if words is None or self._ended.wait(_LOOK):
            return
        os.write(self._stderr, f"jaxpt: {words}\n".encode())
        # The one that failed waits for the others before it leaves the coordinator, or is it.
        threading.Timer(_LEAVE, os._exit, [2]).start()
        jax.distributed.shutdown()
        os._exit(2)

    def tell(self, error: BaseException) -> None:
        """Leaves last words, where no other process has."""
        words = " ".join(str(error).split()) or type(error).__name__
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was first
            self._client.key_value_set(_KEY, f"process {jax.process_index()} failed: {words}")

    def end(self) -> None:
        """Stops looking."""
        self._ended.set()
        self.join(_LOOK)
