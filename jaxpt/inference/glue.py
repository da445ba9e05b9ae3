"""Predictions as GLUE's leaderboard takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxpt.config import Config
from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.errors import UserError
from jaxpt.metrics.glue import GLUE, glue_labels, glue_submission, glue_test
from jaxpt.train.display import say


class Submission:
    """A file for one of GLUE's test sets."""

    def __init__(self, config: Config, file: str) -> None:
        """For a run.

        Args:
          config: the run's configuration.
          file: the test set; its name tells those of MNLI apart.

        Raises:
          UserError: the task is none of GLUE's, or its labels are not.
        """
        self._name, self._labels = glue_test(config.task.name, file), None
        expected_kind = "classification" if GLUE[self._name].labels else "regression"
        if config.task.kind != expected_kind:
            raise UserError(f"task.kind: {config.task.kind}: {GLUE[self._name].submission} wants {expected_kind}")
        if expected_kind == "classification":
            self._labels = glue_labels(self._name, config.task.labels, config.task.names)
        # GLUE's test sets have a line of names, also where its training set has none.
        self.task: Task = config.task.model_copy(update={"header": None})

    def file(self, out: str) -> Path:
        """The file: `out`, or the leaderboard's name in this directory."""
        return Path(out) if out.endswith(".tsv") else Path(out) / GLUE[self._name].submission

    def lines(self, rows: Sequence[LocatedRow], predictions: Iterable[Any]) -> Iterator[str]:
        """The lines of the file; a generated text that is no label counts as the first label, and is said."""
        predicted = list(predictions)
        if self._labels is not None:
            if none := sum(index < 0 for index in predicted):
                say(f"texts that are no label: {none:,}, written as {self._labels[0]}")
            predicted = [self._labels[max(index, 0)] for index in predicted]
        names = ("id", "idx", "index") if self.task.id is None else (self.task.id,)
        has_ids = any(name in rows[0].row.values for name in names)
        ids = [self.task.row_id(row.row) if has_ids else number for number, row in enumerate(rows)]
        yield from glue_submission(self._name, ids, predicted)
