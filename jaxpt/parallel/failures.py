"""A process of a run that ends with an error, or by a signal, ends the others too: they would wait for it in vain.

It leaves an exit code and its error with JAX's coordinator. The others look there every second, whatever their main
thread waits for; they print the error and end. Every second each process also gives a sign of life there. A process
that was killed leaves no error; the others name it when a collective fails, or after `distributed.heartbeat_timeout`
seconds without a sign. In a step they end then; elsewhere they say so and wait, for it may be at work in a library that
lets no other thread of Python run. JAX has heartbeats too, but it aborts all processes without a word about the one
that is missing, and its callback for that case ends the process with a C++ exception (jaxlib 0.10 and 0.11). The
coordinator outlives process 0 (`private.outliving_coordinator`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import jax

from jaxpt.errors import AlreadySaid, RetryableError, UserError
from jaxpt.parallel import private
from jaxpt.runtime import exit_codes, signals
from jaxpt.runtime.stamp import stamped

_POLL_SECONDS = 1.0
"""Time between two looks at what the others have left."""
_SAME_ERROR_SECONDS = 5.0
"""Time for a process to fail like another one, before it is ended."""
_SHUTDOWN_SECONDS = 10.0
"""Time for all processes to leave the coordinator together."""
_LOST_SECONDS = 4.0
"""A process without a sign of life for this long is gone if a collective has failed."""
_KEY = "jaxpt/failed"
_FIRST_KEY = "jaxpt/failed_first_process"
_ALIVE_KEY = "jaxpt/alive"
_STEPPING = " step"
_DONE = "done"
_abandoned: list[Any] = []
"""Clients and services whose destructors would wait for processes that are gone."""
_watch: _Watch | None = None


@contextlib.contextmanager
def shared(heartbeat_timeout: float = 60.0) -> Iterator[None]:
    """An error in one process of a run ends all of them, within this block. A process alone is not affected.

    Args:
      heartbeat_timeout: seconds without a sign of life in a step, after which a process counts as gone.

    The process that failed raises its error; the others print its words as the command line does, and exit with its
    code.
    A signal that ends one process ends the others with 128 + its number.
    """
    global _watch
    if jax.process_count() == 1:
        yield
        return
    watch = _watch = _Watch(heartbeat_timeout)
    watch.beat()
    watch.start()
    with signals.on_leave(watch.leave):
        try:
            yield
        except BaseException as error:
            if _is_of_a_collective(error) and (lost := watch.lost()):
                watch.abandon(lost)
                raise RetryableError(_gone(lost)) from error
            words = " ".join(str(error).split()) or type(error).__name__
            watch.tell(exit_codes.of(error), f"process {jax.process_index()} failed: {words}")
            if isinstance(error, UserError | OSError) and watch.is_reported_by_first(words):
                raise AlreadySaid(exit_codes.of(error)) from error
            raise
        finally:
            watch.end()
            _watch = None


@contextlib.contextmanager
def stepping() -> Iterator[None]:
    """A process that gives no sign of life for a while within this block counts as gone, and ends the others."""
    if _watch is None:
        yield
        return
    _watch.is_stepping = True
    try:
        yield
    finally:
        _watch.is_stepping = False
        _watch.beat()


def silent() -> list[int]:
    """Processes of this run that have given no sign of life for some seconds; from any thread."""
    return [] if _watch is None else _watch.silent()


def end_all(code: int, words: str) -> NoReturn:
    """Ends this process at once, from any thread, and the others of its run.

    Args:
      code: the exit code of all.
      words: what each prints.
    """
    if _watch is not None:
        _watch.tell(code, words, is_gone=True)
    os.write(2, (stamped(f"jaxpt: {words}") + "\n").encode())
    os._exit(code)


def _gone(lost: list[int], silence: float | None = None) -> str:
    names, reason = ", ".join(map(str, lost)), "is gone (killed, or its machine failed)"
    if silence is not None:
        why = "killed or stopped, or its machine failed"
        reason = f"gave no sign of life for {silence:g} s, distributed.heartbeat_timeout ({why})"
    return f"process {names} {reason}; re-run the same command in all processes to resume"


def _is_of_a_collective(error: BaseException) -> bool:
    """True if the end of another process may have caused the error."""
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and "Gloo" in str(error))


class _Watch(threading.Thread):
    """Gives signs of life, and looks for another process's error until this one ends."""

    def __init__(self, heartbeat_timeout: float) -> None:
        super().__init__(name="jaxpt-failures", daemon=True)
        self._heartbeat_timeout = heartbeat_timeout
        self._state = private.coordination()
        self._client: Any = self._state.client
        self._stderr = os.dup(2)  # the import of TensorFlow, in the main thread, silences the other for seconds
        self._ended = threading.Event()
        self._beats = 0
        self._signs: dict[int, str] = {}
        self._unchanged: dict[int, int] = {}
        """The number of looks in which a process's sign of life was the same."""
        self.is_stepping = False
        self._mentioned: set[int] = set()
        """Processes of whose silence outside a step it was said."""

    def run(self) -> None:
        failure = None
        while failure is None and not self._ended.wait(_POLL_SECONDS):
            self.beat()
            if lost := self._silent_in_step():
                self.tell(exit_codes.RETRY, _gone(lost, self._heartbeat_timeout), is_gone=True)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # nobody has failed
                failure = self._client.key_value_try_get(_KEY)
        if failure is None:
            return
        code, words, is_gone = json.loads(failure)
        # Where all fail alike process 0 says so; where all get a signal, each does.
        if not is_gone and self._ended.wait(_SAME_ERROR_SECONDS):
            return
        os.write(self._stderr, (stamped(f"jaxpt: {words}") + "\n").encode())
        if not is_gone:  # the one that failed waits for the others before it leaves the coordinator
            threading.Timer(_SHUTDOWN_SECONDS, os._exit, [code]).start()
            jax.distributed.shutdown()
        os._exit(code)

    def beat(self, last: str = "") -> None:
        """Gives a sign of life."""
        self._beats += 1
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is gone
            sign = last or f"{self._beats}{_STEPPING if self.is_stepping else ''}"
            self._client.key_value_set(f"{_ALIVE_KEY}/{jax.process_index()}", sign, allow_overwrite=True)

    def _others_signs(self) -> dict[int, str]:
        """The other processes' last signs of life, "" where one gave none; empty if the coordinator does not answer."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            signs = {int(key.rpartition("/")[2]): sign for key, sign in self._client.key_value_dir_get(_ALIVE_KEY)}
            return {n: signs.get(n, "") for n in range(jax.process_count()) if n != jax.process_index()}
        return {}

    def _silent_in_step(self) -> list[int]:
        """Processes whose last sign of life was in a step, and is old."""
        before, self._signs = self._signs, self._others_signs()
        self._unchanged = {
            process: self._unchanged.get(process, 0) + 1 if sign == before.get(process) else 0
            for process, sign in self._signs.items()
        }
        silent = self.silent(self._heartbeat_timeout)
        stepping = [n for n in silent if self._signs[n].endswith(_STEPPING)]
        self._mention(set(silent) - set(stepping))
        return stepping

    def _mention(self, silent: set[int]) -> None:
        """Names processes that are silent outside a step, once; if they are gone, JAX aborts this one later."""
        if new := sorted(silent - self._mentioned):
            names, seconds = ", ".join(map(str, new)), f"{self._heartbeat_timeout:g} s, distributed.heartbeat_timeout"
            line = f"process {names} has given no sign of life for {seconds}; if it is gone, JAX aborts the others soon"
            os.write(self._stderr, (stamped(f"jaxpt: {line}: re-run the same command in all") + "\n").encode())
        self._mentioned = silent

    def silent(self, seconds: float = _LOST_SECONDS) -> list[int]:
        """Processes whose last sign of life is so old, and was not that of an end; from any thread."""
        looks, unchanged = seconds / _POLL_SECONDS, self._unchanged  # which `run` replaces
        return [n for n, sign in self._signs.items() if sign != _DONE and unchanged.get(n, 0) > looks]

    def lost(self) -> list[int]:
        """Processes that give no sign of life for some seconds, or never gave one."""
        before = self._others_signs()
        time.sleep(_LOST_SECONDS)
        return [process for process, sign in self._others_signs().items() if before.get(process) == sign != _DONE]

    def tell(self, code: int, words: str, is_gone: bool = False) -> None:
        """Leaves an exit code and an error for the others, unless another process has.

        Args:
          code: their exit code.
          words: what they print.
          is_gone: True if the words are about a process that is gone, so that not all can leave together.
        """
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was first
            self._client.key_value_set(_KEY, json.dumps([code, words, is_gone]))

    def is_reported_by_first(self, words: str) -> bool:
        """True in another process than the first, if that fails with the same error: it prints it for all."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it has not failed, or the coordinator is gone
            if jax.process_index() > 0:
                return bool(self._client.blocking_key_value_get(_FIRST_KEY, int(1000 * _SAME_ERROR_SECONDS)) == words)
            self._client.key_value_set(_FIRST_KEY, words)
        return False

    def abandon(self, lost: list[int]) -> None:
        """Tells the others of processes that are gone, and leaves the coordinator as it is: a shutdown at exit would
        wait for them, and abort."""
        self._ended.set()  # this process says it itself
        self.tell(exit_codes.RETRY, _gone(lost), is_gone=True)
        _abandoned.extend((self._state.client, self._state.service))
        self._state.client = self._state.service = None

    def leave(self, number: int) -> None:
        """Tells the others of the signal that ends this process, and waits until they have left."""
        self._ended.set()
        self.tell(128 + number, f"process {jax.process_index()} failed: {signal.Signals(number).name}")
        jax.distributed.shutdown()

    def end(self) -> None:
        """Stops looking."""
        self._ended.set()
        self.join(_POLL_SECONDS)
        self.beat(_DONE)
