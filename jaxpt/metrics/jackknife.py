"""Standard errors over scored examples that hold for any metric: a jackknife over groups of them.

    s.e.² = (G − 1)/G · Σ_g (v_g − mean v)²        v_g: the value without group g

Of a difference of two models the values are differences, so that what both find hard does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxpt.metrics.base import Metric, describe

if TYPE_CHECKING:
    import numpy as np

GROUPS = 50
"""Groups of test examples of the jackknife."""


class ScoredTask(Protocol):
    """A task of `jaxpt.data.tasks`, as far as it scores."""

    scored: tuple[str, ...]

    def score(self, predictions: Sequence[Any], targets: Sequence[Any], metric: str) -> dict[str, float]: ...

    def with_language_of(self, targets: Sequence[Any]) -> ScoredTask: ...


def scorer_of(task: ScoredTask, value: str) -> Metric | None:
    """The metric of a task that gives a value; None of a mixture's average, which is a fraction."""
    return next((metric for metric in map(describe, task.scored) if value in metric.values), None)


def without_groups(
    task: ScoredTask, targets: Sequence[Any], predictions: Sequence[Any], metric: str, groups: int
) -> np.ndarray:
    """A value without each of the groups, [groups]; of a mean over examples each of these is scored once.

    Args:
      task: scores predictions.
      targets: of the examples.
      predictions: likewise.
      metric: name of the value.
      groups: their number, at most that of the examples.
    """
    import numpy as np

    scored, count = scorer_of(task, metric), len(targets)
    if scored.by_language is not None:
        task = task.with_language_of(targets)

    def value(chosen: Sequence[int]) -> float:
        return task.score([predictions[i] for i in chosen], [targets[i] for i in chosen], scored.name)[metric]

    parts = [range(group, count, groups) for group in range(groups)]
    if scored.aggregation != "mean":
        return np.array([value([i for i in range(count) if i % groups != group]) for group in range(groups)])
    sums = np.array([value(part) * len(part) for part in parts])
    return (sums.sum() - sums) / (count - np.array([len(part) for part in parts]))


def standard_error(without: np.ndarray) -> float:
    """The standard error of a value, from its values without each group: [groups].

    Example:
      >>> import numpy as np
      >>> standard_error(np.array([0.5, 0.5])), round(standard_error(np.array([0.4, 0.5, 0.6])), 4)
      (0.0, 0.1155)
    """
    import numpy as np

    return float(np.sqrt((len(without) - 1) / len(without) * ((without - without.mean()) ** 2).sum()))
