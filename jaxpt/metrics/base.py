"""What a metric is. Its description stands once, beside its function; all that prints or compares reads it there.

Stored values have the unit that the official scorer prints: squad 93.2, accuracy 0.932. `Metric.percent` is for tables.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from jaxpt.errors import UserError

Unit = Literal["fraction", "percent", "number"]
"""Fractions are from 0 to 1 (correlations from −1), percentages from 0 to 100; numbers are neither: squared errors,
perplexities."""
Targets = Literal["label", "labels", "choice", "number", "tags", "text", "answer"]
"""What a metric scores: one label, several labels, a choice among texts, a number, tags of words, free text, an answer
that may be missing."""
Form = Literal["multiple_choice", "pair", "loglikelihood", "loglikelihood_rolling", "generate_until", "similarity"]
"""Of few-shot tasks: what a metric of outcomes scores."""
Aggregation = Literal["mean", "corpus"]
Constant = Literal["label", "positive", "row", "means", "mean", "tags"]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric: a function of predictions, targets and options that returns values by name, and its description."""

    name: str
    function: Callable[..., Any] | None = None
    """None of a metric that a module outside jaxpt computes without describing it."""
    targets: tuple[str, ...] = ()
    """Of `Targets`, or of `Form`."""
    unit: Unit = "fraction"
    lower_is_better: bool = False
    aggregation: Aggregation = "corpus"
    """`mean`: values are means over the examples; `corpus`: they are of all examples together."""
    values: tuple[str, ...] = ()
    """Names of the values; the metric's own by default."""
    selection_value: str = ""
    """The value that chooses the best checkpoint; the first by default."""
    constant: Constant | None = None
    """The best constant prediction, see `jaxpt.metrics.majority`; None: there is none of use. `means` says that
    predictions are probabilities: they are what a task with several labels gives."""
    by_language: Callable[[str], dict[str, Any]] | None = None
    """Defaults of the options that depend on the language of the targets."""
    signature: Callable[..., str | None] = lambda references, **options: None
    """How a value was computed, to publish beside it, from the number of references of a text (None where it varies)
    and the options; None if the name says all."""

    def __post_init__(self) -> None:
        for field, known in (("unit", Unit), ("aggregation", Aggregation), ("constant", Constant)):
            self._check(field, getattr(self, field), (None,) * (field == "constant") + get_args(known))
        for field in ("targets", "values"):
            if not isinstance(names := getattr(self, field), tuple):
                raise UserError(f"@metric {self.name}: {field}: wants a tuple of names, got {names!r}")
        for name in self.targets:
            self._check("targets", name, get_args(Targets) + get_args(Form))
        object.__setattr__(self, "values", self.values or (self.name,))
        object.__setattr__(self, "selection_value", self.selection_value or self.values[0])
        self._check("selection_value", self.selection_value, self.values)

    def _check(self, field: str, value: Any, known: Sequence[Any]) -> None:
        if value not in known:
            names = [name for name in known if name is not None]
            raise UserError(f"@metric {self.name}: {field}: no {value!r}{one_of(str(value), names)}")

    @property
    def mode(self) -> Literal["min", "max"]:
        """Which values are better."""
        return "min" if self.lower_is_better else "max"

    def percent(self, value: float) -> float:
        """A stored value as tables print it: fractions in percent, others as they are.

        Example:
          >>> Metric("accuracy").percent(0.5), Metric("bleu", unit="percent").percent(31.0)
          (50.0, 31.0)
        """
        return in_percent(value, self.unit)


def in_percent(value: float, unit: Unit) -> float:
    """A value as tables print it: fractions in percent, others as they are."""
    return 100 * value if unit == "fraction" else value


METRICS: dict[str, Metric] = {}
"""All metrics by name; `metric` adds jaxpt's, `jaxpt.config.metric_paths` those of other modules by dotted path."""


def metric(*names: str, registry: dict[str, Metric] = METRICS, **description: Any) -> Callable[[Callable], Callable]:
    """Describes the decorated function as a metric, and registers it if it is one of jaxpt's.

    Recipes name a function of another module by its dotted path, so that it takes no name from jaxpt's metrics.

    Args:
      *names: of the metric; the function's own by default.
      registry: where it is added.
      **description: fields of `Metric`.
    """

    def register(function: Callable) -> Callable:
        for name in names or (function.__name__,):
            function.metric = Metric(name, function, **description)
            if function.__module__.partition(".")[0] == "jaxpt":
                registry[name] = function.metric
        return function

    return register


def find(name: str) -> Metric:
    """The metric of a name.

    Raises:
      UserError: there is none; the message has the nearest names.
    """
    if name not in METRICS:
        raise UserError(f"no metric {name!r}{one_of(name, list(METRICS))}")
    return METRICS[name]


def check_targets(name: str, targets: str | None, owner: str, key: str) -> None:
    """Raises UserError for a metric that does not score such targets.

    Args:
      name: of the metric.
      targets: what is scored; None: there are no metrics.
      owner: what has the metric, for messages: "a task of kind tagging".
      key: where it is named, for messages.
    """
    known = list(of_targets(targets)) if targets else []
    if name in known:
        return
    if targets and "." in name and name in METRICS:
        scored = " and ".join(METRICS[name].targets) or "nothing"
        raise UserError(f"{key}: {name}: scores {scored}, {owner} has {targets}")
    named = [*known, "the dotted path of a function of yours"] if known else known
    raise UserError(f"{key}: {name}: {owner} has no such metric{one_of(name, named)}")


def check_value_names(scored: Mapping[str, Metric], key: str) -> None:
    """Raises UserError where two metrics give a value of one name: the later one would replace the earlier.

    Args:
      scored: {name: metric}, named as the user does.
      key: where they are named, for messages.
    """
    owners: dict[str, str] = {}
    for name, known in scored.items():
        for value in known.values:
            if (other := owners.setdefault(value, name)) != name:
                raise UserError(f"{key}: {other} and {name} both give {value}; leave one out")


def describe(name: str) -> Metric:
    """The metric of a name; of one that a task computes by itself, or whose code is not run here, that high fractions
    are best."""
    return METRICS.get(name) or Metric(name, values=(name.rpartition(".")[2],))


def of_value(name: str) -> Metric | None:
    """The metric that has a value of this name, such as "rouge1"; None if no described metric has it."""
    return next((known for known in METRICS.values() if name in known.values), None)


def of_targets(targets: Targets) -> tuple[str, ...]:
    """Names of the metrics of such targets.

    Example:
      >>> from jaxpt.metrics import of_targets
      >>> of_targets("number")
      ('pearson', 'spearman', 'mse')
    """
    return tuple(name for name, known in METRICS.items() if targets in known.targets)


def one_of(name: str, names: list[str]) -> str:
    """The end of a message about a wrong name: the nearest right ones, or all."""
    if near := difflib.get_close_matches(name, names, 3):
        return f"; did you mean {' or '.join(near)}?"
    return f"; one of: {', '.join(names)}" if names else "; it has none"
