"""A process of a run that ends with an error, or by a signal, ends the others too: they would wait for it in vain.

It leaves an exit code and its last words with JAX's coordinator. The others look there every second, whatever their
main thread waits for; they say the words and end. Every second each also says there that it is alive: when a collective
fails because a process was killed, which can leave no words, the others name it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from jaxpt import signals
from jaxpt.errors import UserError

_LOOK = 1.0  # seconds between two checks, and for a process to exit after another has failed
_LEAVE = 10.0  # seconds for all processes to leave the coordinator together
_LOST = 4.0  # seconds without a sign of life, after which a process counts as gone when a collective has failed
_KEY = "jaxpt/failed"
_ALIVE = "jaxpt/alive"
_forgotten: list[Any] = []
"""Their destructors would wait as well."""


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Within it an error in one process of a run ends all of them; in a process alone nothing changes.

    The process that failed raises its error; the others print its words as the command line does, and exit with code 2.
    A signal that ends one process ends the others with 128 + its number.
    """
    if jax.process_count() == 1:
        yield
        return
    watch = _Watch()
    watch.start()
    with signals.on_leave(watch.leave):
        try:
            yield
        except BaseException as error:
            if _is_of_a_collective(error) and (lost := watch.lost()):
                gone = UserError(
                    f"process {', '.join(map(str, lost))} is gone (killed, or its machine failed); re-run the same "
                    "command in all processes to resume"
                )
                watch.tell(2, str(gone))
                watch.forget()
                raise gone from error
            watch.tell(2, " ".join(str(error).split()) or type(error).__name__)
            raise
        finally:
            watch.end()


def _is_of_a_collective(error: BaseException) -> bool:
    """True if it may come of another process's end."""
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and "Gloo" in str(error))


class _Watch(threading.Thread):
    """Looks for another process's last words until this one ends."""

    def __init__(self) -> None:
        super().__init__(name="jaxpt-failures", daemon=True)
        from jax._src.distributed import global_state  # the coordinator's keys have no public name

        self._state: Any = global_state
        self._client: Any = global_state.client
        self._stderr = os.dup(2)  # the import of TensorFlow, in the main thread, silences the other for seconds
        self._ended = threading.Event()

    def run(self) -> None:
        found, beats = None, 0
        while found is None and not self._ended.wait(_LOOK):
            beats += 1
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is gone
                own = f"{_ALIVE}/{jax.process_index()}"
                self._client.key_value_set(own, str(beats), allow_overwrite=True)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # nobody has failed
                found = self._client.key_value_try_get(_KEY)
        # Where all fail alike, or all get a signal, each says so itself.
        if found is None or self._ended.wait(_LOOK):
            return
        code, words = json.loads(found)
        os.write(self._stderr, f"jaxpt: {words}\n".encode())
        # The one that failed waits for the others before it leaves the coordinator, or is it.
        threading.Timer(_LEAVE, os._exit, [code]).start()
        jax.distributed.shutdown()
        os._exit(code)

    def tell(self, code: int, words: str) -> None:
        """Leaves an exit code for the others and last words, where no other process has."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was first
            words = f"process {jax.process_index()} failed: {words}"
            self._client.key_value_set(_KEY, json.dumps([code, words]))

    def lost(self) -> list[int]:
        """Processes that gave no sign of life for some seconds; empty where the coordinator does not answer."""
        try:
            before = dict(self._client.key_value_dir_get(_ALIVE))
            time.sleep(_LOST)
            after = dict(self._client.key_value_dir_get(_ALIVE))
        except jax.errors.JaxRuntimeError:
            return []
        silent = [int(key.rpartition("/")[2]) for key, beats in after.items() if before.get(key) == beats]
        return sorted(set(silent) - {jax.process_index()})

    def forget(self) -> None:
        """Leaves the coordinator as it is: a shutdown at exit would wait for the processes that are gone, and abort."""
        _forgotten.extend((self._state.client, self._state.service))
        self._state.client = self._state.service = None

    def leave(self, number: int) -> None:
        """Tells the others of the signal that ends this process, and waits until they have left."""
        self._ended.set()
        self.tell(128 + number, signal.Signals(number).name)
        jax.distributed.shutdown()

    def end(self) -> None:
        """Stops looking."""
        self._ended.set()
        self.join(_LOOK)
