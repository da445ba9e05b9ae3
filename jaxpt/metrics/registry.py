"""The metrics by name."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_type_hints

from jaxpt.errors import UserError
from jaxpt.metrics import answers, classification, languages, regression, superglue, tagging, text


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric: a function of predictions and targets, and options, that returns values by name."""

    function: Callable[..., dict[str, float]]
    constant: Literal["label", "row", "mean", "tags"] | None = None
    """What the best constant prediction is: see `jaxpt.metrics.majority`. None: there is none of use."""
    in_percent: bool = False
    """Values are percentages, as the official scorer prints them."""
    values: tuple[str, ...] = ()
    """Names of the values; empty: the metric's own."""
    selects: str | None = None
    """The value that chooses the best checkpoint; None: the metric's own."""
    lower_is_better: bool = False
    is_mean: bool = False
    """Values are means over the examples of what each has alone."""
    by_language: Callable[[str], dict[str, Any]] | None = None
    """Defaults of the options that depend on the language of the targets."""


_ANSWERS = ("exact_match", "f1")
_OF_EITHER = tuple(f"{prefix}_{value}" for prefix in ("HasAns", "NoAns", "best") for value in ("exact", "f1"))
_SQUAD = Metric(
    answers.squad, in_percent=True, values=_ANSWERS, selects="f1", is_mean=True, by_language=answers.squad_defaults
)
METRICS = {
    "accuracy": Metric(classification.accuracy, "label", is_mean=True),
    "f1": Metric(classification.f1, "label"),
    "macro_f1": Metric(classification.macro_f1, "label"),
    "micro_f1": Metric(classification.micro_f1, "label"),
    "weighted_f1": Metric(classification.weighted_f1, "label"),
    "matthews": Metric(classification.matthews, "label"),
    "balanced_accuracy": Metric(classification.balanced_accuracy, "label"),
    "average_precision": Metric(classification.average_precision, "row"),
    "pearson": Metric(regression.pearson, "mean"),
    "spearman": Metric(regression.spearman, "mean"),
    "mse": Metric(regression.mse, "mean", lower_is_better=True),
    "tag_accuracy": Metric(tagging.tag_accuracy, "tags"),
    "span_f1": Metric(tagging.span_f1, "tags", values=("precision", "recall", "f1"), selects="f1"),
    "cb": Metric(superglue.cb, "label", values=("accuracy", "macro_f1"), selects="macro_f1"),
    "multirc": Metric(superglue.multirc, "label", values=("f1a", "exact_match"), selects="f1a"),
    "axg": Metric(superglue.axg, "label", values=("accuracy", "gender_parity"), selects="accuracy"),
    "record": Metric(answers.record, values=_ANSWERS, selects="f1"),
    "squad": _SQUAD,
    "squad_v2": Metric(
        answers.squad_v2, in_percent=True, values=("exact", "f1", *_OF_EITHER), selects="best_f1",
        by_language=answers.squad_defaults,
    ),
    "trivia_qa": Metric(answers.trivia_qa, in_percent=True, values=_ANSWERS, selects="f1", is_mean=True),
    "natural_questions": _SQUAD,
    "web_questions": _SQUAD,
    "exact_match": Metric(answers.exact_match, "row", is_mean=True),
    "bleu": Metric(text.bleu, in_percent=True, by_language=text.bleu_defaults),
    "chrf": Metric(text.chrf, in_percent=True),
    "ter": Metric(text.ter, in_percent=True, lower_is_better=True, by_language=text.ter_defaults),
    "rouge": Metric(
        text.rouge, in_percent=True, values=text.ROUGE_TYPES, selects="rouge2", is_mean=True,
        by_language=text.rouge_defaults,
    ),
}  # fmt: skip

_OF_DATA = ("labels", "positive", "groups", "no_answer", "threshold", "best", "scheme", "by_type")
"""Options that a task gives: they are of its data, or of keys of its own."""


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
    options = resolve(metric, targets, **options)
    function = find(metric).function
    if len(predictions) != len(targets):
        raise UserError(f"{metric}: {len(predictions)} predictions for {len(targets)} targets; there is one for each")
    if not len(targets):
        raise UserError(f"{metric}: there are no examples to score")
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty and name not in (*_POSITIONAL, *options):
            raise UserError(f"{metric} needs the option {name!r}, one id for each example")
    return {name: float(value) for name, value in function(predictions, targets, **options).items()}


_POSITIONAL = ("predictions", "targets")


def resolve(metric: str, targets: Sequence, language: str | None = None, **options: Any) -> dict[str, Any]:
    """The options of a metric: those given, then those that fit the language; the rest have their defaults.

    Args:
      metric: a name of `known()`.
      targets: those that are scored.
      language: code of their language; by default found by their letters (`languages.language_of`).
      **options: the metric's.

    Returns:
      Options of the metric's function.

    Raises:
      UserError: no such metric or option.

    Example:
      >>> resolve("bleu", ["今天下雨"]), resolve("bleu", ["今天下雨"], tokenize="char")
      ({'tokenize': 'zh'}, {'tokenize': 'char'})
    """
    definition = find(metric)
    taken = [name for name in inspect.signature(definition.function).parameters if name not in _POSITIONAL]
    known_options = taken + (["language"] if definition.by_language else [])
    for name in (*options, *(["language"] if language else [])):
        if name not in known_options:
            raise UserError(f"{metric}: no option {name!r}{_one_of(name, known_options)}")
    if definition.by_language is None:
        return options
    if language is None:
        references = ((target,) if isinstance(target, str) else target for target in targets)
        language = languages.language_of(text for texts in references for text in texts)
    try:
        defaults = definition.by_language(languages.primary(language))
    except UserError:
        if not options:
            raise
        defaults = {}
    return {**defaults, **options}


def settable(metric: str) -> dict[str, Any]:
    """{name: default} of the options that a recipe can set.

    Example:
      >>> settable("accuracy"), list(settable("ter"))
      ({}, ['normalized', 'no_punct', 'asian_support', 'case_sensitive'])
    """
    parameters = inspect.signature(find(metric).function).parameters
    return {name: p.default for name, p in parameters.items() if name not in (*_POSITIONAL, *_OF_DATA)}


def check_options(options: Iterable[tuple[str, Any]], metrics: Sequence[str], key: str) -> None:
    """Raises UserError for an option that a recipe cannot set, or a value that it does not take.

    Args:
      options: ("METRIC.OPTION", value) of a recipe.
      metrics: those that are computed.
      key: where the options stand, for messages.
    """
    import pydantic

    for name, value in options:
        metric, _, option = name.partition(".")
        if metric not in metrics:
            raise UserError(f"{key}: {metric} is no metric of this task; it has {', '.join(metrics) or 'none'}")
        names = list(settable(metric)) if metric in METRICS else []
        if not option:
            raise UserError(f"{key}.{metric}: wants a mapping of options{_one_of('', names)}")
        if option not in names:
            raise UserError(f"{key}.{metric}: no option {option!r}{_one_of(option, names)}")
        try:
            pydantic.TypeAdapter(get_type_hints(find(metric).function)[option]).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            raise UserError(f"{key}.{name}: {error.errors()[0]['msg'].lower()}, got {value!r}") from None


def options_of(options: Iterable[tuple[str, Any]], metric: str) -> dict[str, Any]:
    """The options of one metric.

    Example:
      >>> options_of((("bleu.tokenize", "intl"), ("chrf.word_order", 2)), "chrf")
      {'word_order': 2}
    """
    return {name.partition(".")[2]: value for name, value in options if name.partition(".")[0] == metric}


def selection_value(metric: str) -> tuple[str, Literal["min", "max"]]:
    """The value by which a metric chooses the best checkpoint, and whether low or high values are better.

    Example:
      >>> selection_value("rouge"), selection_value("ter")
      (('rouge2', 'max'), ('ter', 'min'))
    """
    definition = find(metric)
    return definition.selects or metric, "min" if definition.lower_is_better else "max"


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
    """How a metric was computed, to publish beside its value; None for a metric that has no variants.

    Args:
      metric: a name of `known()`.
      references: references of each text.
      **options: the metric's, as `resolve` gives them.

    Example:
      >>> signature("chrf", word_order=2).partition("|version")[0]
      'nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no'
      >>> signature("squad"), signature("exact_match", ignore_case=True), signature("accuracy")
      ('normalization:squad', 'ignore_case:yes', None)
    """
    if metric in ("bleu", "chrf", "ter", "rouge"):
        return text.text_signature(metric, references, **options)
    if find(metric).function in (answers.squad, answers.squad_v2):
        return f"normalization:{options.get('normalization', 'squad')}"
    if metric == "exact_match":
        return "|".join(f"{name}:yes" for name, value in options.items() if value) or None
    return None


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
