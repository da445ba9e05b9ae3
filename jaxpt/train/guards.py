"""Signals: the first SIGINT or SIGTERM ends a run after its step, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupted(Exception):
    """A signal came while there was nothing to save yet."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """While active, remembers the first SIGINT or SIGTERM in `received`.

    Before `training` is set there is no state to save, and the signal raises `Interrupted` at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.training = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.training or self.received is not None:
            raise Interrupted(number)
        self.received = number
