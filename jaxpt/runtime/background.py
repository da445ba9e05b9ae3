"""Threads that work beside a run. They end with it: after its last step, when it fails, and when it is interrupted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

_PATIENCE = 10.0
"""Seconds in which the threads of a run end. One that is still reading then ends later, and holds nobody up."""


class Stopped(Exception):
    """The run, or the program, that a thread worked for has ended."""


class Scope:
    """A run, or the whole program, for which threads work."""

    def __init__(self) -> None:
        """No thread works for it yet."""
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None], name: str) -> None:
        """Calls `work` in a thread of this name; it asks `check` now and then."""
        thread = threading.Thread(target=work, name=name)
        self._threads.append(thread)
        thread.start()

    @property
    def is_ended(self) -> bool:
        """True also in a thread that outlives the program's work: the interpreter would wait for it."""
        return self._ended.is_set() or program._ended.is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        """Raises Stopped if it has ended."""
        if self.is_ended:
            raise Stopped

    def end(self) -> None:
        """Asks the threads to end, and waits for them."""
        self._ended.set()
        deadline = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


program = Scope()
"""For work that belongs to no run."""
_current = program


def current() -> Scope:
    """The run under way, or else the program."""
    return _current


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Ends, at its end, the threads that were started for `current()` within it."""
    global _current
    outer, _current = _current, Scope()
    try:
        yield
    finally:
        inner, _current = _current, outer
        inner.end()
