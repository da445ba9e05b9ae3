"""The metrics by name."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jaxpt.errors import UserError
from jaxpt.scores import answers, classification, regression, superglue, tagging, text


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric: a function of predictions and targets, and options, that returns values by name."""

    function: Callable[..., dict[str, float]]
    constant: Literal["label", "row", "mean", "tags"] | None = None
    """What the best constant prediction is: see `jaxpt.scores.majority`. None: there is none of use."""
    in_percent: bool = False
    """Values are percentages, as the official scorer prints them."""
    values: tuple[str, ...] = ()
    """Names of the values; empty: the metric's own."""
    is_mean: bool = False
    """Values are means over the examples of what each has alone."""


_ANSWERS = ("exact_match", "f1")
_OF_EITHER = tuple(f"{of}_{value}" for of in ("HasAns", "NoAns", "best") for value in ("exact", "f1"))
METRICS = {
    "accuracy": Metric(classification.accuracy, "label", is_mean=True),
    "f1": Metric(classification.f1, "label"),
    "macro_f1": Metric(classification.macro_f1, "label"),
    "micro_f1": Metric(classification.micro_f1, "label"),
    "matthews": Metric(classification.matthews, "label"),
    "balanced_accuracy": Metric(classification.balanced_accuracy, "label"),
    "average_precision": Metric(classification.average_precision, "row"),
    "pearson": Metric(regression.pearson, "mean"),
    "spearman": Metric(regression.spearman, "mean"),
    "mse": Metric(regression.mse, "mean"),
    "tag_accuracy": Metric(tagging.tag_accuracy, "tags"),
    "span_f1": Metric(tagging.span_f1, "tags", values=("precision", "recall", "f1")),
    "cb": Metric(superglue.cb, "label", values=("accuracy", "macro_f1")),
    "multirc": Metric(superglue.multirc, "label", values=("f1a", "exact_match")),
    "axg": Metric(superglue.axg, "label", values=("accuracy", "gender_parity")),
    "record": Metric(answers.record, values=_ANSWERS),
    "squad": Metric(answers.squad, in_percent=True, values=_ANSWERS, is_mean=True),
    "squad_v2": Metric(answers.squad_v2, in_percent=True, values=("exact", "f1", *_OF_EITHER)),
    "trivia_qa": Metric(answers.trivia_qa, in_percent=True, values=_ANSWERS, is_mean=True),
    "natural_questions": Metric(answers.squad, in_percent=True, values=_ANSWERS, is_mean=True),
    "web_questions": Metric(answers.squad, in_percent=True, values=_ANSWERS, is_mean=True),
    "exact_match": Metric(answers.exact_match, "row", is_mean=True),
    "bleu": Metric(text.bleu, in_percent=True),
    "chrf": Metric(text.chrf, in_percent=True),
    "rouge": Metric(text.rouge, in_percent=True, values=text.ROUGE_TYPES, is_mean=True),
}


def known() -> tuple[str, ...]:
    """Names of the metrics."""
    return tuple(METRICS)


def score(metric: str, predictions: Sequence, targets: Sequence, **options: Any) -> dict[str, float]:
    """Scores predictions.

    Args:
      metric: a name of `known()`.
      predictions: one for each example; the function of the metric says of which form.
      targets: one for each prediction.
      **options: of the metric's function: `labels`, `positive`, `groups`, …

    Returns:
      {name: value}; finite numbers.

    Raises:
      UserError: no such metric or option, no examples, or not as many predictions as targets.

    Example:
      >>> score("matthews", [1, 1, 1], [1, 0, 1])
      {'matthews': 0.0}
    """
    function = find(metric).function
    taken = [name for name in inspect.signature(function).parameters if name not in ("predictions", "targets")]
    for name in options:
        if name not in taken:
            raise UserError(f"{metric}: no option {name!r}{_one_of(name, taken)}")
    if len(predictions) != len(targets):
        raise UserError(f"{metric}: {len(predictions)} predictions for {len(targets)} targets; there is one for each")
    if not len(targets):
        raise UserError(f"{metric}: there are no examples to score")
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty and name in taken and name not in options:
            raise UserError(f"{metric} needs the option {name!r}, one id for each example")
    return {name: float(value) for name, value in function(predictions, targets, **options).items()}


def in_percent(metric: str) -> bool:
    """True if the values of a metric are percentages.

    Example:
      >>> in_percent("accuracy"), in_percent("bleu")
      (False, True)
    """
    return find(metric).in_percent


def values(metric: str) -> tuple[str, ...]:
    """Names of the values of a metric; of squad_v2 also those that need questions without answers.

    Example:
      >>> values("accuracy"), values("squad")
      (('accuracy',), ('exact_match', 'f1'))
    """
    return find(metric).values or (metric,)


def is_mean(metric: str) -> bool:
    """True if the values of a metric are means over the examples of what each has alone.

    Example:
      >>> is_mean("rouge"), is_mean("bleu")
      (True, False)
    """
    return find(metric).is_mean


def signature(metric: str, references: int = 1, **options: Any) -> str | None:
    """How a metric of text was computed, to publish beside its value; None for a metric that has no variants.

    Args:
      metric: a name of `known()`.
      references: references of each text.
      **options: the metric's.

    Example:
      >>> signature("chrf", word_order=2).partition("|version")[0]
      'nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no'
    """
    find(metric)
    return text.text_signature(metric, references, **options) if metric in ("bleu", "chrf", "rouge") else None


def find(metric: str) -> Metric:
    """The metric of a name.

    Raises:
      UserError: there is none; the message has the nearest names.
    """
    if metric not in METRICS:
        raise UserError(f"no metric {metric!r}{_one_of(metric, list(METRICS))}")
    return METRICS[metric]


def _one_of(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 3)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; one of: {', '.join(names)}" if names else "; it has none"
