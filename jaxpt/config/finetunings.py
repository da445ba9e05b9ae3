"""The fine-tunings of a study: which there are, where they go, and what is set in each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple

from jaxpt.config.studies import Finetuning, Start, Strategy, Study, StudyRow, StudyTask

KEEP = "checkpoint.keep_last=1"
"""Set in each fine-tuning: a study has many of them and reads none of their checkpoints."""
SIMPLE = "simple"
"""The start of a simple model, which has no weights to start from."""

FOLDER = "finetune"
"""In a study's directory: the fine-tunings."""


class Cell(NamedTuple):
    """A figure of the table: the runs of all seeds, and before them those of the search."""

    row: StudyRow
    task: StudyTask
    start: Start | Literal["simple"]
    strategy: Strategy
    """The first one of a simple model, which has no settings of it."""

    @property
    def name(self) -> str:
        """For people.

        Example:
          >>> Cell(StudyRow(name="bert"), StudyTask(name="sst2", recipe=""), "random", Strategy(name="all")).name
          'bert/sst2/random/all'
        """
        return "/".join((self.row.name, self.task.name, self.start, self.strategy.name))


class FineTuning(NamedTuple):
    """One run."""

    cell: Cell
    point: int
    """Which combination of the grid."""
    seed: int
    run_dir: Path
    recipe: str
    overrides: list[str]
    """Over the recipe."""
    origin: str
    """The model that is fine-tuned; "" of a simple one."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.cell.name}/{self.run_dir.parent.name}/seed {self.seed}"

    @property
    def command(self) -> list[str]:
        """The words after `jaxpt` that run it."""
        if (name := self.cell.row.simple_model) is None:
            return ["train", self.recipe, *self.overrides]
        return ["baseline", self.recipe, *self.overrides, "--save", *([] if name == "best" else ["--models", name])]


def cells(study: Study) -> list[Cell]:
    """The cells of a study, those of a row together.

    Args:
      study: with `evaluate.finetune`.
    """
    tuned = study.evaluate.finetune
    return [
        Cell(row, task, start, strategy)
        for row in study.tuned_rows
        for task in tuned.tasks
        for start, strategy in ways(tuned, row)
    ]


def ways(tuned: Finetuning, row: StudyRow) -> list[tuple[Start | Literal["simple"], Strategy]]:
    """(start, strategy) of each cell of a row and a task: a simple model has one.

    Args:
      tuned: of the study.
      row: one of its rows.
    """
    if row.simple_model is not None:
        return [(SIMPLE, tuned.strategies[0])]
    return [(start, strategy) for strategy in tuned.strategies for start in tuned.starts]


def points(tuned: Finetuning, cell: Cell) -> list[tuple[str, ...]]:
    """The combinations of the grid that a cell searches; a simple model has a grid of its own (`jaxpt baseline`)."""
    return tuned.points if cell.start != SIMPLE else [()]


def fine_tuning(study: Study, cell: Cell, point: int, seed: int) -> FineTuning:
    """One run of a cell.

    Args:
      study: with `evaluate.finetune`.
      cell: which.
      point: number of the combination of the grid.
      seed: the run's.
    """
    tuned: Finetuning = study.evaluate.finetune
    row, task, start, strategy = cell
    chosen = points(tuned, cell)[point]
    short = [item.rpartition("=")[0].rpartition(".")[2] + "=" + item.rpartition("=")[2] for item in chosen]
    folder = ",".join(item.replace("/", "_").replace('"', "") for item in short) or "as_it_is"
    run_dir = Path(study.run_dir, FOLDER, *cell.name.split("/"), folder, f"seed_{seed}")
    of_row = [*row.finetune, *row.finetune_by_task.get(task.name, ())]
    of_run = [*chosen, f"seed={seed}", f"run_dir={json.dumps(str(run_dir))}"]
    if cell.start == SIMPLE:
        settings = [*tuned.set, *task.set, *of_row, *of_run]
        return FineTuning(cell, point, seed, run_dir, task.recipe, settings, "")
    origin = row.model or str(Path(study.run_dir) / row.name)
    settings = [f"init_from.path={json.dumps(origin)}", "log.tensorboard=false", "init_from.partial=true", KEEP]
    settings += ["init_from.random=true"] * (start == "random")
    settings += [*tuned.set, *task.set, *strategy.set, *of_row, *of_run]
    return FineTuning(cell, point, seed, run_dir, task.recipe, settings, origin)
