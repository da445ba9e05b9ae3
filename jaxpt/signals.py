"""SIGINT and SIGTERM: a process leaves at once where nothing can be lost, else after it has saved.

Python runs a handler between two byte codes of the main thread: not while XLA compiles, and inside any library's code,
which may swallow what the handler raises. So a handler raises nothing here. A signal is recorded, and a thread of its
own acts on it:

    outside `deferred`   prints one line and ends the process with 128 + the signal's number
    inside `deferred`    records it alone; the code within looks at `received`, saves and calls `leave`

A second signal, a second or more after the first, ends the process in both cases. The process ends by `os._exit`:
libraries' threads may still be at work, and tearing down what they use ends in a segmentation fault.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
_SECOND = 1.0  # seconds after which another signal counts as a second one: launchers often send one twice
_PATIENCE = 10.0  # seconds for what is done on leaving

Callback = Callable[[int], None]


class _Watcher(threading.Thread):
    """Reads the numbers of signals from a pipe, which Python fills even while the main thread is in C++."""

    def __init__(self, exits: bool) -> None:
        super().__init__(name="jaxpt-signals", daemon=True)
        self.exits = exits
        """False: the program is not ours to end, `leave` raises SystemExit."""
        self.received: int | None = None
        self.deferred = 0
        self.notified: list[Callback] = []
        """Called on the first signal within `deferred`."""
        self.leaving: list[Callback] = []
        """Called before the process ends."""
        self.lock = threading.RLock()
        self._first = 0.0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._stderr = os.dup(2)  # the import of TensorFlow, in the main thread, silences the other for seconds

    def start(self) -> None:
        super().start()
        self._handlers = {number: signal.signal(number, self._on_signal) for number in NUMBERS}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def stop(self) -> None:
        """Puts back what `start` replaced."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.write(self._writer, b"\0")
        self.join()
        for file in (self._reader, self._writer, self._stderr):
            os.close(file)

    def _on_signal(self, number: int, frame: object) -> None:
        # An event loop may have put its own file in the place of ours, which then has not got the number yet.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, bytes([number]))

    def run(self) -> None:
        while number := os.read(self._reader, 1)[0]:
            if number in NUMBERS and self._record(number):
                self.leave(number)

    def _record(self, number: int) -> bool:
        """Whether the process is to end now."""
        with self.lock:
            now = time.monotonic()
            if self.received is not None:
                return now - self._first > _SECOND
            self.received, self._first = number, now
            if not self.deferred:
                return True
            for callback in self.notified:
                callback(number)
            return False

    def leave(self, number: int, words: str | None = None) -> None:
        with self.lock:  # for good: another thread that comes here, or into `deferred`, waits for the end
            threading.Timer(_PATIENCE, os._exit, [128 + number]).start()
            cursor = "\x1b[?25h" if os.isatty(self._stderr) else ""  # a progress bar has hidden it
            if words is None:
                words = f"jaxpt: stopped by {signal.Signals(number).name}; re-run the same command to resume"
            os.write(self._stderr, f"{cursor}{words}\n".encode() if words else cursor.encode())
            for callback in reversed(self.leaving):
                with contextlib.suppress(Exception):  # the process ends all the same
                    callback(number)
            for child in multiprocessing.active_children():
                child.terminate()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(128 + number)


_watcher: _Watcher | None = None


# A forked child has the handlers and the pipe of its parent, which a signal to the child would end: it may come only
# when they are replaced.


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
    """Takes care of SIGINT and SIGTERM from now on.

    Args:
      exits: a signal may end the process.

    Returns:
      False, and nothing changes, where they are taken care of already, and outside the main thread.
    """
    global _watcher
    if _watcher is not None or threading.current_thread() is not threading.main_thread():
        return False
    _watcher = _Watcher(exits)
    _watcher.start()
    return True


@contextlib.contextmanager
def watch(exits: bool = True) -> Iterator[None]:
    """`start` for the time that it lasts."""
    global _watcher
    is_started = start(exits)
    try:
        yield
    finally:
        if is_started:
            watcher, _watcher = _watcher, None
            watcher.stop()


@contextlib.contextmanager
def deferred(notify: Callback | None = None) -> Iterator[None]:
    """Within it a signal is recorded alone; whoever is inside looks at `received`, saves and calls `leave`.

    Where the process is not watched, as in a program that calls jaxpt's functions, it is for as long as this lasts, and
    `leave` raises SystemExit.

    Args:
      notify: called with the signal's number, in another thread, when the first one comes.
    """
    with watch(exits=False):
        watcher = _watcher
        if watcher is None:  # outside the main thread
            yield
            return
        with watcher.lock:
            watcher.deferred += 1
            watcher.notified += [notify] if notify else []
        try:
            yield
        finally:
            with watcher.lock:
                watcher.deferred -= 1
                if notify:
                    watcher.notified.remove(notify)
        if watcher.received is not None:  # too late for the code inside to see it
            leave(watcher.received, None)


def received() -> int | None:
    """The number of the first signal that came within `deferred`, None before."""
    return None if _watcher is None else _watcher.received


def leave(number: int, words: str | None = "") -> None:
    """Ends the process with 128 + a signal's number, once all that it had to do is done.

    Args:
      number: the signal's, which this process or another one of its run received.
      words: a last line for the user on stderr; None names the signal.

    Raises:
      SystemExit: instead, where the process is not `watch`ed.
    """
    if _watcher is None or not _watcher.exits:
        raise SystemExit(128 + number)
    _watcher.leave(number, words)


def finish(code: int) -> NoReturn:
    """Ends the process once its work is done; a signal that comes before still counts.

    What is registered with `atexit` runs. Modules are not torn down: that takes seconds, in which Python's own handlers
    are back, and libraries' threads may still be at work.

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
    """Calls `callback` with the signal's number where the process is ended within."""
    if _watcher is None:
        yield
        return
    leaving = _watcher.leaving
    leaving.append(callback)
    try:
        yield
    finally:
        leaving.remove(callback)


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """Removes a directory in the end, however the end comes about."""
    try:
        with on_leave(lambda number: shutil.rmtree(directory, ignore_errors=True)):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
