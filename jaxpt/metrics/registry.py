"""The metrics by name: scores, and the options that recipes set."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from jaxpt.errors import UserError, shown
from jaxpt.metrics import answers, classification, regression, tagging, text  # noqa: F401
from jaxpt.metrics.base import METRICS, find, one_of

_OF_DATA = ("labels", "positive", "groups", "no_answer", "threshold", "best", "scheme", "by_type")
"""Options that a task gives: they are of its data, or of keys of its own."""


def score(metric: str, predictions: Sequence, targets: Sequence, **options: Any) -> dict[str, float]:
    """Scores predictions.

    Args:
      metric: a name in `METRICS`.
      predictions: one for each example, as the metric's function takes them.
      targets: one for each prediction.
      **options: of the metric's function: `labels`, `positive`, `groups`, …

    Returns:
      {name: value}; finite numbers.

    Raises:
      UserError: no such metric or option, no examples, not as many predictions, `groups` or `no_answer` as targets, or
        the function of another module returns something else (`NotFiniteError`: NaN or infinity).

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
    for name in ("groups", "no_answer"):
        if (given := options.get(name)) is not None and len(given) != len(targets):
            raise UserError(f"{metric}: {name}: {len(given)} values for {len(targets)} targets; there is one for each")
    scores = _numbers(metric, function(predictions, targets, **options))
    if "." in metric:  # jaxpt's own have values that depend on the data
        _check_values(metric, scores)
    return scores


class NotFiniteError(UserError):
    """A metric of another module returned NaN or infinity, perhaps of predictions for which it is undefined."""


def _check_values(metric: str, scores: Mapping[str, float]) -> None:
    """Raises UserError where the function of a metric did not return what its description says, or no finite number."""
    values = find(metric).values
    if missing := [name for name in values if name not in scores]:
        raise UserError(
            f"{metric}: must return {', '.join(map(repr, values))}, it returns {', '.join(map(repr, scores)) or '{}'}; "
            f"name {missing[0]!r} in what it returns, or the names that it has in @metric(values=…)"
        )
    for name, value in scores.items():
        if not math.isfinite(value):
            raise NotFiniteError(
                f"{metric}: {name} must be a finite number, it is {value}; return 0 where it is undefined"
            )


def _numbers(metric: str, returned: Any) -> dict[str, float]:
    """What the function of a metric returned, checked; its numbers may be of any library."""
    try:
        if isinstance(returned, Mapping) and not any(isinstance(value, str) for value in returned.values()):
            return {name: float(value) for name, value in returned.items()}
    except (TypeError, ValueError):  # a value that is no number
        pass
    raise UserError(f"{metric}: must return {{name: number}}, it returns {shown(returned)}")


_POSITIONAL = ("predictions", "targets")


def resolve(metric: str, targets: Sequence, language: str | None = None, **options: Any) -> dict[str, Any]:
    """The options of a metric: those given, then those that fit the language; the rest have their defaults.

    Args:
      metric: a name in `METRICS`.
      targets: those that are scored.
      language: code of their language; by default found by their letters (`text.language_of`).
      **options: the metric's.

    Returns:
      Options of the metric's function.

    Raises:
      UserError: no such metric or option, or none of its options fits the language.

    Example:
      >>> resolve("bleu", ["今天下雨"]), resolve("bleu", ["今天下雨"], tokenize="char")
      ({'tokenize': 'zh'}, {'tokenize': 'char'})
    """
    definition = find(metric)
    taken = [name for name in inspect.signature(definition.function).parameters if name not in _POSITIONAL]
    known_options = taken + (["language"] if definition.by_language else [])
    for name in (*options, *(["language"] if language else [])):
        if name not in known_options:
            raise UserError(f"{metric}: no option {name!r}{one_of(name, known_options)}")
    if definition.by_language is None:
        return options
    language = language or language_of(targets)
    return {**definition.by_language(text.primary(language)), **options}


def language_of(targets: Iterable[str | Sequence[str]]) -> str:
    """The code of the language of targets, each a text or several, by their letters (`text.language_of`)."""
    references = ((target,) if isinstance(target, str) else target for target in targets)
    return text.language_of(reference for texts in references for reference in texts)


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
        named = name.rpartition(".")[0] or name
        metric = next((known for known in metrics if f"{name}.".startswith(f"{known}.")), named)
        option = name.removeprefix(metric).removeprefix(".")
        if metric not in metrics:
            raise UserError(f"{key}: {metric} is no metric of this task; it has {', '.join(metrics) or 'none'}")
        names = list(settable(metric)) if metric in METRICS or "." in metric else []
        if not option:
            raise UserError(f"{key}.{metric}: wants a mapping of options{one_of('', names)}")
        if option not in names:
            raise UserError(f"{key}.{metric}: no option {option!r}{one_of(option, names)}")
        try:
            hint = get_type_hints(find(metric).function, include_extras=True).get(option, Any)
            pydantic.TypeAdapter(hint).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            raise UserError(f"{key}.{name}: {error.errors()[0]['msg'].lower()}, got {value!r}") from None


def options_of(options: Iterable[tuple[str, Any]], metric: str) -> dict[str, Any]:
    """The options of one metric.

    Example:
      >>> options_of((("bleu.tokenize", "intl"), ("chrf.word_order", 2)), "chrf")
      {'word_order': 2}
    """
    return {name.removeprefix(f"{metric}."): value for name, value in options if name.startswith(f"{metric}.")}
