"""The tasks of a recipe, each as a recipe of its own. TensorFlow for registered SeqIO Mixtures alone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxpt.config import Config, MixtureTask, SourceConfig
from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError

ALONE = "data"
"""Name of the task of a recipe without a mixture."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One task of a recipe."""

    name: str
    config: Config
    """The recipe as if this task were all."""
    rate: float | None = None
    """Its share, in any unit; None: by its size."""


def parts(config: Config) -> tuple[Part, ...]:
    """The tasks of a recipe.

    Args:
      config: the run's configuration in one phase.

    Returns:
      One part for each task of `data.mixture`, or of the registered SeqIO Mixture that `data.task` names; else one.
    """
    data = config.data
    if config.task is not None and config.task.kind == "mixture":
        rates = {task.name: task.rate for task in data.mixture}
        return tuple(Part(name, task_config, rates[name]) for name, task_config in each_task(config).items())
    if data.mixture:
        return tuple(Part(task.name, _with(config, **_source(task)), task.rate) for task in data.mixture)
    if data.source == "task":
        from jaxpt.data.sources.foreign import subtasks

        if mixed := subtasks(data):
            return tuple(Part(name, _with(config, task=name), rate) for name, rate in mixed)
    return (Part(ALONE, config),)


def languages(config: Config) -> tuple[str, ...]:
    """The languages that a recipe's texts have tokens for, each once."""
    return tuple(languages_of((config.data, *config.data.mixture)))


def languages_of(sources: Iterable[Any]) -> list[str]:
    """The `language` of each source that has one, each once, in the order in which they come."""
    return list(dict.fromkeys(source.language for source in sources if source.language is not None))


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
        raise UserError(f"objective.kind: {config.objective.kind} is for one task; several want mixture, text_to_text")
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
    task, source = config.task.task_of(files.name), _source(files)
    if config.data.source == "batches":  # its rows lie beside them
        source = {"source": "batches", "path": str(Path(str(config.data.path)) / files.name)}
    config = _with(config, **source)
    return config.model_copy(update={"task": task, "objective": config.objective.for_task(task)})


def _source(task: MixtureTask) -> dict[str, Any]:
    """What `data` has of a task of a mixture."""
    return {name: getattr(task, name) for name in SourceConfig.model_fields}


def _with(config: Config, **source: Any) -> Config:
    """The recipe with another source."""
    data = config.data.model_copy(update={**source, "mixture": ()})
    return config.model_copy(update={"data": data})


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


def check(objective: Any, tasks: Sequence[Part]) -> None:
    """Raises UserError where a task's source, or several tasks, are not what the objective can take."""
    if objective.carries and len(tasks) > 1:
        raise UserError(
            f"data.mixture: the rows of objective.kind: {objective.kind} continue one task's text from batch to batch; "
            "give data.path, or let the objective carry nothing (objective.memory=false)"
        )
    for task in tasks:
        try:
            objective.check_source(task.config.data)
        except UserError as error:
            raise UserError(str(error) if task.name == ALONE else f"data.mixture, task {task.name}: {error}") from None
