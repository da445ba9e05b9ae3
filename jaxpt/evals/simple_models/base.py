"""What a simple model is: candidates that are fitted on the training rows, of which the validation rows choose one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxpt.data.tasks.base import LocatedRow, Task


class Candidate(NamedTuple):
    """A fitted model with one point of its grid."""

    setting: str
    """The point, such as "C=1"; "" where nothing is chosen."""
    features: int
    """What the model looks at: columns of its matrix, 0 of one without any."""
    predictions: Mapping[str, Sequence[Any]]
    """{split: a prediction for each row}, as `Task.score` takes them; of the splits that are scored."""


class Splits:
    """The rows of a task, and what several models make of them: each is made once.

    Attributes:
      task: the task.
      rows: {"train": rows, "validation": rows}, and "test" where the recipe has one.
      targets: the same of their targets.
      seed: of solvers that draw the order of rows.
      reused_seconds: what shared values took that were there already.
    """

    def __init__(
        self, task: Task, rows: Mapping[str, Sequence[LocatedRow]], targets: Mapping[str, Sequence[Any]], seed: int = 0
    ) -> None:
        self.task, self.rows, self.targets, self.seed = task, rows, targets, seed
        self.reused_seconds = 0.0
        self._made: dict[str, tuple[Any, float]] = {}

    @property
    def scored(self) -> list[str]:
        """The splits that are predicted: all but the training set."""
        return [split for split in self.rows if split != "train"]

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that several models need, made at the first call.

        Args:
          name: of the value.
          make: makes it.
        """
        if name in self._made:
            value, seconds = self._made[name]
            self.reused_seconds += seconds
            return value
        begun = time.perf_counter()
        value = make()
        self._made[name] = value, time.perf_counter() - begun
        return value


class SimpleModel(NamedTuple):
    """A model by its name."""

    name: str
    summary: str
    """What it is, in a few words."""
    candidates: Callable[[Splits], Iterator[Candidate]]
    """Fits each point of the grid, one after the other."""
    is_quick: bool = False
    """It is tried at the end of each fine-tuning: it takes a second per 10,000 short rows."""
