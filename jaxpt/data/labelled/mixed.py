"""The tasks of a recipe, each as a recipe of its own. No TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jaxpt.config import Config, MixtureTask, SourceConfig
from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError


def each_task(config: Config) -> dict[str, Config]:
    """The recipe of each task of a mixture, as if it were all, in the order of `data.mixture`.

    Args:
      config: a configuration with a task.

    Returns:
      {name: configuration}; {"": config} where the task is no mixture.

    Raises:
      UserError: the names in `task.tasks` and `data.mixture` are not the same.

    Example:
      >>> for name, one in each_task(config).items():  # doctest: +SKIP
      ...     rows = split_rows(one, "test")
    """
    files = {task.name: task for task in config.data.mixture}
    if config.task.kind != "mixture":
        if files:
            raise UserError("data.mixture is for several tasks (task.kind: mixture); give data.path")
        return {"": config}
    if config.objective.kind not in ("mixture", "text_to_text"):
        raise UserError(
            f"objective.kind: {config.objective.kind} is for a single task; several have objective.kind: mixture, a "
            "head for each, or text_to_text"
        )
    if not files:
        entries = ", ".join(f"{{name: {name}, path: …}}" for name in config.task.task_names)
        raise UserError(f"data.mixture is missing: the files of each task: [{entries}]")
    if lost := next((name for name in config.task.task_names if name not in files), None):
        raise UserError(f"task.tasks: {lost}: data.mixture names no files for it{nearest(lost, list(files))}")
    if lost := next((name for name in files if name not in config.task.task_names), None):
        raise UserError(f"data.mixture: {lost}: task.tasks has no such task{nearest(lost, config.task.task_names)}")
    return {name: _alone(config, task) for name, task in files.items()}


def _alone(config: Config, files: MixtureTask) -> Config:
    """The recipe of one task."""
    task = config.task.task_of(files.name)
    source = {name: getattr(files, name) for name in SourceConfig.model_fields}
    if config.data.source == "batches":  # its rows lie beside them
        source = {"source": "batches", "path": str(Path(str(config.data.path)) / files.name)}
    data = config.data.model_copy(update={**source, "mixture": ()})
    return config.model_copy(update={"data": data, "task": task, "objective": config.objective.for_task(task)})


def chosen_task(config: Config) -> Config:
    """The recipe of the task that `task.use` names; the configuration itself where the task is no mixture.

    Raises:
      UserError: it names none.
    """
    return each_task(config)[config.task.chosen()] if config.task.kind == "mixture" else config


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """A UserError inside names the task, unless this is ""."""
    try:
        yield
    except UserError as error:
        raise (UserError(f"task {name}: {error}") if name else error) from None
