"""When a run saves besides every n steps: by the clock, and when it is asked to; how long a save may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jaxpt.config import CheckpointConfig
from jaxpt.parallel import distributed
from jaxpt.runtime import signals
from jaxpt.train.checkpoint import is_primary

SAVE, STOP = 1, 2
"""What a process may wish after a step (`distributed.AnyProcess`)."""


class SaveClock:
    """Says after which steps all processes save or stop, because one of them wishes it."""

    def __init__(self, config: CheckpointConfig, votes: distributed.AnyProcess) -> None:
        """The time of `config.every_minutes` begins now."""
        self._minutes, self._votes = config.every_minutes, votes
        self._began, self._saved_step = time.monotonic(), -1

    def wish(self, done: int) -> int:
        """What all processes do after `done` steps: SAVE, STOP or 0; all must ask equally often.

        A vote that was under way during a save does not ask for another one.
        """
        wish = STOP if signals.received() is not None else SAVE if self._is_due() else 0
        vote = self._votes(wish)
        return 0 if vote == SAVE and done <= self._saved_step + 1 else vote

    def _is_due(self) -> bool:
        is_late = self._minutes is not None and time.monotonic() - self._began > 60 * self._minutes
        return signals.save_requested() or (is_late and is_primary())

    def saved(self, step: int) -> None:
        """A checkpoint of a step was begun: the clock starts again."""
        self._began, self._saved_step = time.monotonic(), step
        signals.clear_save_request()


def hard_end(config: CheckpointConfig, finished_steps: Callable[[], Sequence[int]]) -> signals.Callback:
    """What ends the process when most of `checkpoint.grace_seconds` is over after a signal.

    Args:
      config: says how many seconds there are.
      finished_steps: the steps of the checkpoints that are complete.
    """
    if config.grace_seconds is None:
        return lambda number: None

    def message() -> str:
        saved = finished_steps()
        newest = f"that of step {saved[-1]}" if saved else "none"
        end = f"checkpoint.grace_seconds={config.grace_seconds:g} end"
        return f"{end} before the save does; the newest checkpoint is {newest}"

    return signals.hard_end(0.9 * config.grace_seconds, message)
