"""The tasks that a recipe mixes, each as a recipe of its own. TensorFlow for registered SeqIO Mixtures alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxpt.config import Config, SourceConfig
from jaxpt.data.labelled.mixed import each_task
from jaxpt.errors import UserError

if TYPE_CHECKING:
    from jaxpt.objectives.base import Objective

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
        sources = [{name: getattr(task, name) for name in SourceConfig.model_fields} for task in data.mixture]
        return tuple(Part(task.name, _with(config, **source), task.rate) for task, source in zip(data.mixture, sources))
    if data.source == "task":
        from jaxpt.data.sources.foreign import subtasks

        if mixed := subtasks(data):
            return tuple(Part(name, _with(config, task=name), rate) for name, rate in mixed)
    return (Part(ALONE, config),)


def _with(config: Config, **source: Any) -> Config:
    """The recipe with another source."""
    data = config.data.model_copy(update={**source, "mixture": ()})
    return config.model_copy(update={"data": data})


def check(objective: Objective, tasks: Sequence[Part]) -> None:
    """Raises UserError where a task's source, or several tasks, are not what the objective can take."""
    if objective.loss.carries and len(tasks) > 1:
        raise UserError(
            f"data.mixture: the rows of objective.kind: {objective.kind} continue one task's text from batch to batch; "
            "give data.path, or let the objective carry nothing (objective.memory=false)"
        )
    for task in tasks:
        try:
            objective.batches.check_source(task.config.data)
        except UserError as error:
            raise UserError(str(error) if task.name == ALONE else f"data.mixture, task {task.name}: {error}") from None
