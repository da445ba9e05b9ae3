"""A run that was fine-tuned on a task, ready to answer rows."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import tokenizers
from jaxpt.data.labelled import examples
from jaxpt.data.parts import chosen_task
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from jaxpt.evals import predictors
from jaxpt.evals.task import of_part, with_measured
from jaxpt.runtime.progress import track
from jaxpt.train import checkpoint, state

CHUNK = 4096
"""Rows whose tokens are in memory together."""


class RunPredictor:
    """A run's checkpoint and the programs of its task.

    Attributes:
      task: name of the task that was chosen of several, or None.
      config: the run's configuration, with the task and what was measured for it, such as a threshold.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        step: int,
        task: str | None = None,
        tokenizer: Tokenizer | None = None,
        dtype: str | None = None,
    ) -> None:
        """Restores a checkpoint.

        Args:
          config: the run's configuration.
          run_dir: the run.
          step: its checkpoint.
          task: the value of `task`.
          tokenizer: another tokenizer than the run's.
          dtype: compute dtype; by default the model's.
        """
        model = configs.model_at(config, step)
        model = model if dtype is None else model.model_copy(update={"dtype": dtype})
        config = config.model_copy(update={"model": model})
        setup = state.setup(config).for_evaluation()
        with checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True) as saved:
            self._params: Any = saved.restore_params(setup, step)
            metrics = saved.metrics(step)
        task_config = chosen_task(config)
        metrics = metrics if task_config is config else of_part(metrics, task_config.task.name)
        self.task, self.config = task, with_measured(task_config, metrics)
        settings = config.data.tokenizer
        if tokenizer is None:
            tokenizer = tokenizers.load(run_dir / "tokenizer", settings.kind, extra_ids=settings.extra_ids)
        self._tokenizer = tokenizer
        self._predictor = predictors.build(dataclasses.replace(setup, config=self.config), self._tokenizer)

    @classmethod
    def of(
        cls, path: Path, task: str | None = None, tokenizer: Tokenizer | None = None, dtype: str | None = None
    ) -> RunPredictor:
        """The predictor of a run.

        Args:
          path: a run_dir (its best checkpoint), or `RUN_DIR/checkpoints/STEP`.
          task: which one, of a run on several tasks.
          tokenizer: another tokenizer than the run's.
          dtype: compute dtype; by default the model's.

        Raises:
          UserError: it is no run with a task, or a run on several and none is named.
        """
        if not any((folder / "checkpoints").is_dir() for folder in (path, *path.parents[:2])):
            raise UserError(f"{path}: predict needs a run that was fine-tuned on a task, and this is no run")
        run_dir, step = checkpoint.find(path)
        config = configs.load(run_dir, [] if task is None else [f"task.use={task}"], where="predict")
        check_task(config, run_dir)
        return cls(config, run_dir, step, task, tokenizer, dtype)

    def __call__(self, rows: Sequence[LocatedRow], how: str = "answer") -> Iterator[Any]:
        """What the run predicts of some rows, in their order.

        Args:
          rows: the rows; all processes have to take all of them.
          how: method of the objective: "answer" for people, or "decide".
        """
        objective_method = getattr(self.config.objective, how)
        for first in range(0, len(rows), CHUNK):
            encoded = examples.examples(self.config, self._tokenizer, rows[first : first + CHUNK], has_targets=False)
            with track("predicting", len(rows), "rows", first):
                outputs = self._predictor(self._params, encoded.records)
            for row, row_outputs in zip(encoded.rows, examples.by_row(encoded, outputs), strict=True):
                yield objective_method(row_outputs, row.row, row.where)


def check_task(config: Config, run_dir: Path) -> None:
    """Raises UserError where a run has no task whose rows have answers; names the command for what it does instead."""
    if config.task is None:
        raise UserError(f"{run_dir}: was not fine-tuned on a task; `jaxpt generate` completes and fills texts")
    if config.task.kind == "dialogue":
        raise UserError(
            f"{run_dir}: was fine-tuned on dialogues; `jaxpt chat {shlex.quote(str(run_dir))}` talks with it"
        )
