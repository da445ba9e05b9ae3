"""A process of a run that ends with an error, or by a signal, ends the others too: they would wait for it in vain.

It leaves an exit code and its last words with JAX's coordinator. The others look there every second, whatever their
main thread waits for; they say the words and end. Every second each also says there that it is alive: where a process
was killed, which can leave no words, the others name it, when a collective fails or after
`distributed.heartbeat_timeout` seconds without a sign (JAX itself would abort all of them some time later). The
coordinator outlives process 0 (`coordinator`).
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

from jaxpt.errors import AlreadySaid, UserError
from jaxpt.parallel import private
from jaxpt.runtime import signals
from jaxpt.runtime.stamp import stamped

_LOOK = 1.0  # seconds between two checks
_ALIKE = 5.0  # seconds for a process to fail like another one, before it is ended
_LEAVE = 10.0  # seconds for all processes to leave the coordinator together
_LOST = 4.0  # seconds without a sign of life, after which a process counts as gone when a collective has failed
_REST = 4.0  # seconds for the others to hear of it
_KEY = "jaxpt/failed"
_FIRST = "jaxpt/failed_first_process"
_ALIVE = "jaxpt/alive"
_STEPPING = " step"
_DONE = "done"
_forgotten: list[Any] = []
"""Their destructors would wait as well."""
_watch: _Watch | None = None


@contextlib.contextmanager
def shared(heartbeat_timeout: float = 60.0) -> Iterator[None]:
    """Within it an error in one process of a run ends all of them; in a process alone nothing changes.

    Args:
      heartbeat_timeout: seconds without a sign of life in a step, after which a process counts as gone.

    The process that failed raises its error; the others print its words as the command line does, and exit with code 2.
    A signal that ends one process ends the others with 128 + its number.
    """
    global _watch
    if jax.process_count() == 1:
        yield
        return
    watch = _watch = _Watch(heartbeat_timeout)
    watch.start()
    with signals.on_leave(watch.leave):
        try:
            yield
        except BaseException as error:
            if _is_of_a_collective(error) and (lost := watch.lost()):
                watch.give_up(lost)
                raise UserError(_gone(lost)) from error
            words = " ".join(str(error).split()) or type(error).__name__
            watch.tell(2, words)
            if isinstance(error, UserError | OSError) and watch.first_says(words):
                raise AlreadySaid from error
            raise
        finally:
            watch.end()
            _watch = None


@contextlib.contextmanager
def stepping() -> Iterator[None]:
    """Within it a process that gives no sign of life for a while counts as gone, and ends the others.

    Elsewhere it may be at work in a library that lets no other thread of Python run.
    """
    if _watch is None:
        yield
        return
    _watch.is_stepping = True
    try:
        yield
    finally:
        _watch.is_stepping = False
        _watch.beat()


def _gone(lost: list[int], silence: float | None = None) -> str:
    names, reason = ", ".join(map(str, lost)), "is gone (killed, or its machine failed)"
    if silence is not None:
        why = "killed or stopped, or its machine failed"
        reason = f"gave no sign of life for {silence:g} s, distributed.heartbeat_timeout ({why})"
    return f"process {names} {reason}; re-run the same command in all processes to resume"


def _is_of_a_collective(error: BaseException) -> bool:
    """True if it may come of another process's end."""
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and "Gloo" in str(error))


class _Watch(threading.Thread):
    """Looks for another process's last words until this one ends."""

    def __init__(self, heartbeat_timeout: float) -> None:
        super().__init__(name="jaxpt-failures", daemon=True)
        self._heartbeat_timeout = heartbeat_timeout
        self._state = private.coordination()
        self._client: Any = self._state.client
        self._stderr = os.dup(2)  # the import of TensorFlow, in the main thread, silences the other for seconds
        self._ended = threading.Event()
        self._beats = 0
        self._signs: dict[str, tuple[str, float]] = {}
        self.is_stepping = False

    def run(self) -> None:
        failure = None
        while failure is None and not self._ended.wait(_LOOK):
            self.beat()
            if lost := self._silent():
                self.tell_gone(lost, self._heartbeat_timeout)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # nobody has failed
                failure = self._client.key_value_try_get(_KEY)
        if failure is None:
            return
        code, words, is_gone = json.loads(failure)
        # Where all fail alike process 0 says so; where all get a signal, each does.
        if not is_gone and self._ended.wait(_ALIKE):
            return
        os.write(self._stderr, (stamped(f"jaxpt: {words}") + "\n").encode())
        if is_gone:  # the others cannot leave together
            self._rest()
            os._exit(code)
        # The one that failed waits for the others before it leaves the coordinator, or is it.
        threading.Timer(_LEAVE, os._exit, [code]).start()
        jax.distributed.shutdown()
        os._exit(code)

    def beat(self, last: str = "") -> None:
        """Gives a sign of life."""
        self._beats += 1
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is gone
            sign = last or f"{self._beats}{_STEPPING if self.is_stepping else ''}"
            self._client.key_value_set(f"{_ALIVE}/{jax.process_index()}", sign, allow_overwrite=True)

    def _silent(self) -> list[int]:
        """Processes whose last sign of life was in a step, and is old."""
        now = time.monotonic()
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            for key, sign in self._client.key_value_dir_get(_ALIVE):
                if self._signs.get(key, ("", 0.0))[0] != sign:
                    self._signs[key] = sign, now
        limit = self._heartbeat_timeout
        old = [key for key, (sign, at) in self._signs.items() if sign.endswith(_STEPPING) and now - at > limit]
        return sorted({int(key.rpartition("/")[2]) for key in old} - {jax.process_index()})

    def tell(self, code: int, words: str) -> None:
        """Leaves an exit code for the others and last words, where no other process has."""
        self._leave_words(code, f"process {jax.process_index()} failed: {words}", False)

    def tell_gone(self, lost: list[int], silence: float | None = None) -> None:
        """Tells the others of processes that are gone, or were silent for so many seconds."""
        self._leave_words(2, _gone(lost, silence), True)

    def _leave_words(self, code: int, words: str, is_gone: bool) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was first
            self._client.key_value_set(_KEY, json.dumps([code, words, is_gone]))

    def first_says(self, words: str) -> bool:
        """True in another process than the first, if that fails with the same words: it prints them for all."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it has not failed, or the coordinator is gone
            if jax.process_index() > 0:
                return bool(self._client.blocking_key_value_get(_FIRST, int(1000 * _ALIKE)) == words)
            self._client.key_value_set(_FIRST, words)
        return False

    def lost(self) -> list[int]:
        """Processes that gave no sign of life for some seconds; empty where the coordinator does not answer."""
        try:
            before = dict(self._client.key_value_dir_get(_ALIVE))
            time.sleep(_LOST)
            after = dict(self._client.key_value_dir_get(_ALIVE))
        except jax.errors.JaxRuntimeError:
            return []
        silent = [int(key.rpartition("/")[2]) for key, sign in after.items() if before.get(key) == sign != _DONE]
        return sorted(set(silent) - {jax.process_index()})

    def _rest(self) -> None:
        if jax.process_index() == 0:  # whom the others ask
            time.sleep(_REST)

    def give_up(self, lost: list[int]) -> None:
        """Tells the others of processes that are gone, and leaves the coordinator as it is: a shutdown at exit would
        wait for them, and abort."""
        self._ended.set()  # this process says it itself
        self.tell_gone(lost)
        self._rest()
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
        self.beat(_DONE)
