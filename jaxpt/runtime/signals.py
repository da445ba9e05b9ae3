"""SIGINT and SIGTERM: a process exits at once if nothing can be lost, otherwise after saving. SIGUSR1 and SIGHUP ask
for a save alone.

Python runs signal handlers between two bytecodes of the main thread: never while XLA compiles, and possibly inside a
library that swallows exceptions. So the handler raises nothing. It records the signal, and a watcher thread reacts:

    outside `deferred`   prints one line and exits with 128 + signal number
    inside `deferred`    only records the signal; the code in the block checks `received`, saves and calls `leave`

In both cases a second signal, at least one second after the first, ends the process. The process ends with `os._exit`:
threads of libraries may still be running, and a regular teardown could crash.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from jaxpt.runtime.stamp import stamped

NUMBERS = (signal.SIGINT, signal.SIGTERM)
SAVE_NUMBERS = (signal.SIGUSR1, signal.SIGHUP)
"""Signals that mean "save now" within `save_requests`."""
_SECOND = 1.0  # seconds between two distinct signals: launchers often send a signal twice
_PATIENCE = 10.0  # timeout of exit callbacks, in seconds

Callback = Callable[[int], None]


class _Watcher(threading.Thread):
    """Reads signal numbers from a pipe, which Python fills even while the main thread runs C++ code."""

    def __init__(self, exits: bool) -> None:
        super().__init__(name="jaxpt-signals", daemon=True)
        self.exits = exits
        """`exits` False: `leave` raises SystemExit instead of ending the process."""
        self.received: int | None = None
        self.deferred: list[Callback] = []
        """Called on the first signal: one for each `deferred` that is entered."""
        self.leaving: list[Callback] = []
        """Called before the process exits."""
        self.lock = threading.RLock()
        self._first = 0.0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._stderr = os.dup(2)  # the import of TensorFlow redirects stderr for seconds

    def start(self) -> None:
        super().start()
        self._handlers = {number: signal.signal(number, self._on_signal) for number in NUMBERS}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def stop(self) -> None:
        """Restores what `start` replaced."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.write(self._writer, b"\0")
        self.join()
        for file in (self._reader, self._writer, self._stderr):
            os.close(file)

    def _on_signal(self, number: int, frame: object) -> None:
        # Python wrote the number to the wakeup file when the signal came. This runs later, after C code has returned:
        # written again, the number would look like a second signal. But an event loop may have put its own file there.
        wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if wakeup != self._writer:
            signal.set_wakeup_fd(wakeup)
            with contextlib.suppress(BlockingIOError):
                os.write(self._writer, bytes([number]))

    def run(self) -> None:
        while number := os.read(self._reader, 1)[0]:
            if number in NUMBERS and self._record(number):
                self.leave(number)

    def _record(self, number: int) -> bool:
        """Returns True if the process must exit now."""
        with self.lock:
            now = time.monotonic()
            if self.received is not None:
                return now - self._first > _SECOND
            self.received, self._first = number, now
            if not self.deferred:
                return True
            for callback in self.deferred:
                callback(number)
            return False

    def leave(self, number: int, words: str | None = None) -> None:
        with self.lock:  # never released: other threads that call this or `deferred` wait for the exit
            threading.Timer(_PATIENCE, os._exit, [128 + number]).start()
            cursor = "\x1b[?25h" if os.isatty(self._stderr) else ""  # a progress bar may have hidden it
            if words is None:
                resume = "; re-run the same command to resume" if _is_resumable else ""
                words = stamped(f"jaxpt: stopped by {signal.Signals(number).name}{resume}")
            os.write(self._stderr, f"{cursor}{words}\n".encode() if words else cursor.encode())
            for callback in reversed(self.leaving):
                with contextlib.suppress(Exception):  # exit in any case
                    callback(number)
            for child in multiprocessing.active_children():
                child.terminate()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(128 + number)


_watcher: _Watcher | None = None
_is_resumable = True


def set_resumable(is_resumable: bool) -> None:
    """Whether the last line of a process that a signal ends says that the same command resumes; it does by default."""
    global _is_resumable
    _is_resumable = is_resumable


# A forked child has its parent's handlers and pipe, so a signal to the child would stop the parent: signals are blocked
# until the child has replaced them.


def _before_fork() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def _after_fork_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)


def _after_fork_in_child() -> None:
    global _watcher
    if _watcher is not None:
        _watcher = None
        signal.set_wakeup_fd(-1)
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def start(exits: bool = True) -> bool:
    """Starts handling SIGINT and SIGTERM.

    Args:
      exits: True if a signal may end the process.

    Returns:
      False, without effect, if they are already handled or outside the main thread.
    """
    global _watcher
    if _watcher is not None or threading.current_thread() is not threading.main_thread():
        return False
    _watcher = _Watcher(exits)
    _watcher.start()
    return True


@contextlib.contextmanager
def watch(exits: bool = True) -> Iterator[None]:
    """Context manager of `start`."""
    global _watcher
    is_started = start(exits)
    try:
        yield
    finally:
        if is_started:
            watcher, _watcher = _watcher, None
            watcher.stop()


@contextlib.contextmanager
def deferred(notify: Callback = lambda number: None) -> Iterator[None]:
    """Inside this block signals are only recorded; the code in it checks `received`, saves and calls `leave`.

    If signals are not handled yet, as in a program that calls jaxpt's functions, they are handled during the block, and
    `leave` raises SystemExit.

    Args:
      notify: called in another thread with the number of the first signal.
    """
    with watch(exits=False):
        watcher = _watcher
        if watcher is None:  # outside the main thread
            yield
            return
        with watcher.lock:
            watcher.deferred.append(notify)
        try:
            yield
        finally:
            with watcher.lock:
                watcher.deferred.remove(notify)
        if watcher.received is not None:  # too late for the code in the block
            leave(watcher.received, None)


def hard_end(seconds: float, words: Callable[[], str]) -> Callback:
    """What `deferred` calls to end the process anyway when its time is over, before another one kills it.

    Args:
      seconds: from the signal on.
      words: gives the last line then.
    """

    def notify(number: int) -> None:
        timer = threading.Timer(seconds, lambda: leave(number, stamped(f"jaxpt: {words()}")))
        timer.daemon = True
        timer.start()

    return notify


_save_requested = False


def request_save(number: int = 0, frame: object = None) -> None:
    """Asks the run for a checkpoint; a handler of signals, too."""
    global _save_requested
    _save_requested = True


def save_requested() -> bool:
    """Whether a checkpoint was asked for since `clear_save_request`."""
    return _save_requested


def clear_save_request() -> None:
    """A checkpoint was begun."""
    global _save_requested
    _save_requested = False


@contextlib.contextmanager
def save_requests() -> Iterator[None]:
    """Within it SIGUSR1 and SIGHUP ask for a checkpoint, instead of ending the process; those that are ignored (nohup)
    or handled by someone else stay as they are."""
    clear_save_request()
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in SAVE_NUMBERS if in_main and signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, request_save)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def received() -> int | None:
    """Number of the first signal inside `deferred`, or None."""
    return None if _watcher is None else _watcher.received


def leave(number: int, words: str | None = "") -> None:
    """Exits with 128 + signal number, after saving.

    Args:
      number: signal number, received by this or another process of the run.
      words: last line on stderr; None names the signal.

    Raises:
      SystemExit: instead, outside `watch`.
    """
    if _watcher is None or not _watcher.exits:
        raise SystemExit(128 + number)
    _watcher.leave(number, words)


def finish(code: int) -> NoReturn:
    """Exits the process after its work is done; an earlier signal still determines the exit code.

    `atexit` callbacks run. Modules are not torn down: that takes seconds without our signal handlers, while threads of
    libraries may still be running.

    Args:
      code: the exit code.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    number = received()
    os._exit(code if number is None else 128 + number)


@contextlib.contextmanager
def on_leave(callback: Callback) -> Iterator[None]:
    """Calls `callback` with the signal number if the process exits inside this block."""
    if _watcher is None:
        yield
        return
    leaving = _watcher.leaving
    leaving.append(callback)
    try:
        yield
    finally:
        leaving.remove(callback)
