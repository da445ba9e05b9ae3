"""The tasks of a mixture. Each has its own source, records, order and epochs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxpt.config import Config, SourceConfig
from jaxpt.data.labelled.mixed import each_task
from jaxpt.data.sources.base import Source
from jaxpt.data.sources.foreign import subtasks
from jaxpt.data.sources.readers import PAIR_SEPARATOR
from jaxpt.data.stream.order import Mixture, proportional
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
        rates = {one.name: one.rate for one in data.mixture}
        return tuple(Part(name, one, rates[name]) for name, one in each_task(config).items())
    if data.mixture:
        own = [{name: getattr(task, name) for name in SourceConfig.model_fields} for task in data.mixture]
        return tuple(Part(task.name, _with(config, **of), task.rate) for task, of in zip(data.mixture, own))
    if data.source == "task" and (mixed := subtasks(data)):
        return tuple(Part(name, _with(config, task=name), rate) for name, rate in mixed)
    return (Part(ALONE, config),)


def _with(config: Config, **source: Any) -> Config:
    """The recipe with another source."""
    data = config.data.model_copy(update={**source, "mixture": ()})
    return config.model_copy(update={"data": data})


def mixture(
    config: Config, tasks: Sequence[Part], sizes: Sequence[int], key: int, examples: Sequence[int] | None = None
) -> Mixture:
    """The shares of the tasks.

    Args:
      config: gives temperature and cap of shares by size.
      tasks: what `parts` gave.
      sizes: rows of each task.
      key: decides the order.
      examples: of each task; None: a row is one. With them shares are of examples, of which a packed row has several.

    Returns:
      Which task gives which row.
    """
    rates = [task.rate for task in tasks]
    if None in rates:
        rates = proportional(examples or sizes, config.data.mixture_temperature, config.data.mixture_cap)
    if examples is not None:
        rates = [rate * rows / count for rate, rows, count in zip(rates, sizes, examples)]
    return Mixture(rates, key)


def languages(sources: Sequence[Source]) -> list[str]:
    """The languages of several sources, each once, in the order in which they come."""
    return list(dict.fromkeys(source.language for source in sources if source.language is not None))


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


def texts(sources: Sequence[Source]) -> Iterator[str]:
    """The training texts of several sources in turn, for a vocabulary of all of them."""
    streams = ((text for _, _, text in source.documents("train") if isinstance(text, str)) for source in sources)
    for group in itertools.zip_longest(*streams):
        yield from (text.replace(PAIR_SEPARATOR, "\n") for text in group if text is not None)
