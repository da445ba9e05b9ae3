"""Metrics of outcomes, with standard errors: a function for each, described as those of `jaxpt.metrics` are.

    acc              Σ log p decides; a tie of k counts 1/k, so that a model that gives all texts one score gets 50 on
                     pairs; acc_strict beside it: a tie is a failure, and such a model gets 0
    acc_norm         Σ log p / characters of the choice (the common harness's)
    acc_token        Σ log p / tokens (GPT-3's)
    acc_mutual_info  log p(choice | context) − log p(choice | unconditional) (GPT-3's)

Values have the unit of their metric (`jaxpt.metrics`). The standard error of a mean is s/√n with the sample's s; of a
ratio of sums (perplexities) and its exponential that of the delta method; of a metric of the whole set (BLEU, F1) that
of 100 bootstrap samples. That of the mean over G groups is s/√G with their spread s where groups are drawn, such as
questions. Where they are a fixed set, as BLiMP's paradigms of pairs, it is √(Σ e²)/G with the error e of each.
"""

from __future__ import annotations

import collections
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxpt import metrics
from jaxpt.config import metric_paths
from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError, shown
from jaxpt.metrics import Metric
from jaxpt.metrics.base import Unit

if TYPE_CHECKING:
    from jaxpt.evals.few_shot.task import HarnessTask

SampleResult = dict[str, Any]
"""What a model says of an example, see `scoring`."""
TIE = 1e-5
"""Relative difference of log-likelihoods in float32 that is a tie: equal texts stand in batches of other shapes."""
RESAMPLES = 100
"""Of the examples, for the standard error of a metric that is no mean."""


class Value(NamedTuple):
    """A value of a metric."""

    value: float
    error: float
    """Standard error; 0 of one example."""
    unit: Unit = "fraction"

    def __str__(self) -> str:
        """As tables print it: fractions in percent.

        Example:
          >>> str(Value(0.612, 0.021)), str(Value(31.04, 0.5, "number"))
          ('61.2 ± 2.1', '31.04 ± 0.50')
        """
        if self.unit == "number":
            return f"{self.value:.2f} ± {self.error:.2f}" if abs(self.value) < 1e4 else f"{self.value:.3g}"
        value, error = (metrics.in_percent(x, self.unit) for x in self[:2])
        return f"{value:.1f} ± {error:.1f}"


Values = dict[str, Value]
OF_FORMS: dict[str, Metric] = {}
"""The metrics of outcomes; their `targets` are forms of tasks. A function of a mean gives a number for each outcome."""
_metric = functools.partial(metrics.metric, registry=OF_FORMS)
_choices = functools.partial(_metric, targets=("multiple_choice",))
_rolling = functools.partial(_metric, targets=("loglikelihood_rolling",), unit="number", lower_is_better=True)


def of_form(form: str) -> dict[str, Metric]:
    """{name: metric} of a form of tasks.

    Example:
      >>> list(of_form("loglikelihood")), list(of_form("similarity"))
      (['acc', 'perplexity'], ['spearman', 'pearson'])
    """
    shared = {"generate_until": metrics.of_targets("text"), "similarity": ("spearman", "pearson")}.get(form, ())
    form_metrics = {name: known for name, known in OF_FORMS.items() if form in known.targets}
    return {name: metrics.find(name) for name in shared} | form_metrics


def named(name: str, form: str) -> Metric:
    """The metric of a name among those of a form, or of a dotted path whose function scores such a form.

    Args:
      name: as tasks name it.
      form: of tasks.

    Raises:
      UserError: there is none, its code cannot be imported, or it scores something else.
    """
    known = of_form(form)
    if name in known:
        return known[name]
    if "." not in name:
        hint = nearest(name, known, "; a dotted path names a function of yours")
        raise UserError(f"a task of form {form} has no such metric; it has {', '.join(known)}{hint}")
    metric_paths.register([name])
    metric = metrics.find(name)
    scored = {form} | {"generate_until": {"text"}, "similarity": {"number"}}.get(form, set())
    if not scored & set(metric.targets):
        wanted = " or ".join(sorted(scored))
        raise UserError(f"scores {' and '.join(metric.targets) or 'nothing'}; a task of form {form} wants {wanted}")
    return metric


def measure(task: HarnessTask, outcomes: Sequence[SampleResult]) -> Values:
    """The metrics of a task.

    Args:
      task: the task.
      outcomes: at least one.

    Returns:
      {metric: value}: `task.scored`; `acc_strict` beside `acc`, and of groups `acc_groups`, the mean over groups.

    Example:
      >>> from jaxpt.evals.few_shot.task import HarnessTask
      >>> task = HarnessTask(name="x", form="pair", choices=("{{ a }}", "{{ b }}"))
      >>> tie = {"id": 1, "gold": 0, "group": None, "log_probs": [-3.0, -3.0], "chars": [2, 2], "tokens": [1, 1]}
      >>> {name: acc.value for name, acc in measure(task, [tie]).items()}
      {'acc': 0.5, 'acc_strict': 0.0}
    """
    values: Values = {}
    for name in task.scored:
        metric = named(name, task.form)
        is_of_form = task.form in metric.targets
        measured = _of_outcomes(metric, outcomes) if is_of_form else _of_answers(task, metric, outcomes)
        values |= {value_name: value._replace(unit=metric.unit) for value_name, value in measured.items()}
    if "acc" in values and "is_greedy" not in outcomes[0]:
        values["acc_strict"] = _mean(credits_of(outcomes, strict=True))
    if "acc" in values and any(outcome["group"] is not None for outcome in outcomes):
        values["acc_groups"] = _mean_of_groups(task, outcomes)
    return values


def _mean_of_groups(task: HarnessTask, outcomes: Sequence[SampleResult]) -> Value:
    """The mean over groups. Those of pairs are always the same ones, and their rows are drawn; others are drawn."""
    groups = list(by_group(outcomes).values())
    mean = _mean(np.array([acc.value for acc in groups]))
    row_counts = collections.Counter(str(outcome["group"]) for outcome in outcomes)
    if task.form != "pair" or min(row_counts.values()) == 1:  # one row does not show how the rows of its group differ
        return mean
    return mean._replace(error=math.sqrt(sum(acc.error**2 for acc in groups)) / len(groups))


def by_group(outcomes: Sequence[SampleResult]) -> Values:
    """Accuracy of each group, in the order of the outcomes."""
    groups: dict[str, list[SampleResult]] = {}
    for outcome in outcomes:
        groups.setdefault(str(outcome["group"]), []).append(outcome)
    return {group: _mean(credits_of(group_outcomes)) for group, group_outcomes in groups.items()}


def computed(task: HarnessTask, outcomes: Sequence[SampleResult]) -> dict[str, str]:
    """{metric: how it is computed} of the metrics whose name does not say all."""
    descriptions = {}
    for name in task.scored:
        metric, options = named(name, task.form), {}
        if task.form == "generate_until" and name not in OF_FORMS:
            options = {"references": metrics.reference_count(outcome["gold"] for outcome in outcomes)}
            options |= _options(task, metric, outcomes)
        descriptions[name] = metric.signature(**{"references": 1, **options})
    return {name: signature for name, signature in descriptions.items() if signature}


def credits_of(outcomes: Sequence[SampleResult], strict: bool = False) -> np.ndarray:
    """What each outcome counts for `acc`: float64 [N]; with `strict` a tie counts 0."""
    if "is_greedy" in outcomes[0]:
        return np.array([float(outcome["is_greedy"]) for outcome in outcomes])
    return _credits(outcomes, lambda outcome: outcome["log_probs"], strict)


def _credits(
    outcomes: Sequence[SampleResult], score_choices: Callable[[SampleResult], Sequence[float]], strict: bool = False
) -> np.ndarray:
    """1 where the right choice has the highest score, 1/k where k have it, else 0: float64 [N]."""

    def credit(scores: Sequence[float], gold: int) -> float:
        best = max(scores)
        tied = [i for i, score in enumerate(scores) if best - score <= TIE * max(abs(best), 1.0)]
        return 0.0 if gold not in tied or (strict and len(tied) > 1) else 1.0 / len(tied)

    return np.array([credit(score_choices(outcome), outcome["gold"]) for outcome in outcomes])


@_metric(targets=("multiple_choice", "pair", "loglikelihood"), aggregation="mean")
def acc(outcomes: Sequence[SampleResult]) -> np.ndarray:
    """The likeliest choice is right, or each token is the model's first choice."""
    return credits_of(outcomes)


@_choices(aggregation="mean")
def acc_norm(outcomes: Sequence[SampleResult]) -> np.ndarray:
    """Likeliest by character."""
    return _credits(outcomes, lambda o: np.divide(o["log_probs"], np.maximum(o["chars"], 1)))


@_choices(aggregation="mean")
def acc_token(outcomes: Sequence[SampleResult]) -> np.ndarray:
    """Likeliest by token."""
    return _credits(outcomes, lambda o: np.divide(o["log_probs"], np.maximum(o["tokens"], 1)))


@_choices(aggregation="mean")
def acc_mutual_info(outcomes: Sequence[SampleResult]) -> np.ndarray:
    """Likeliest beside its likelihood without the context."""
    return _credits(outcomes, lambda o: np.subtract(o["log_probs"], o["unconditional"]))


@_choices(signature=lambda references: "mean over the choices that occur")
def f1(outcomes: Sequence[SampleResult]) -> float:
    """Macro F1 of the likeliest choice."""
    golds = [outcome["gold"] for outcome in outcomes]
    return metrics.score("macro_f1", [int(np.argmax(o["log_probs"])) for o in outcomes], golds)["macro_f1"]


@_choices(signature=lambda references: "of the last choice")
def f1_last(outcomes: Sequence[SampleResult]) -> float:
    """F1 of the last of two choices, "yes" of MultiRC's F1a."""
    last = len(outcomes[0]["log_probs"]) - 1
    guesses = [int(np.argmax(outcome["log_probs"]) == last) for outcome in outcomes]
    return metrics.score("f1", guesses, [int(outcome["gold"] == last) for outcome in outcomes])["f1"]


@_choices(aggregation="mean")
def acc_all(outcomes: Sequence[SampleResult]) -> np.ndarray:
    """The share of groups whose rows are all right: 0 or 1 for each group."""
    groups: dict[str, bool] = {}
    for outcome, credit in zip(outcomes, credits_of(outcomes, strict=True)):
        groups[outcome["group"]] = groups.get(outcome["group"], True) and credit == 1
    return np.array(list(groups.values()), np.float64)


@_metric(targets=("loglikelihood",), unit="number", lower_is_better=True)
def perplexity(outcomes: Sequence[SampleResult]) -> Value:
    """exp(−mean log p of a continuation)."""
    return _exp(_mean(np.array([-outcome["log_prob"] for outcome in outcomes])))


@_rolling()
def token_perplexity(outcomes: Sequence[SampleResult]) -> Value:
    """exp(nats per token)."""
    return _exp(_rate(outcomes, "tokens"))


@_rolling()
def word_perplexity(outcomes: Sequence[SampleResult]) -> Value:
    """exp(nats per word)."""
    return _exp(_rate(outcomes, "words"))


@_rolling()
def byte_perplexity(outcomes: Sequence[SampleResult]) -> Value:
    """exp(nats per byte)."""
    return _exp(_rate(outcomes, "bytes"))


@_rolling()
def bits_per_byte(outcomes: Sequence[SampleResult]) -> Value:
    """Nats per byte / log 2."""
    rate = _rate(outcomes, "bytes")
    return Value(rate.value / math.log(2), rate.error / math.log(2))


@_metric(targets=("generate_until",), aggregation="mean")
def number(outcomes: Sequence[SampleResult]) -> np.ndarray:
    """The answer is the same number as one of the right ones: without $, commas and a final point."""

    def plain(text: str) -> str:
        return re.sub(r"[,$%\s]", "", text).rstrip(".").removesuffix(".00").removesuffix(".0")

    return np.array([plain(o["answer"]) in map(plain, o["gold"]) for o in outcomes], np.float64)


def _rate(outcomes: Sequence[SampleResult], unit: str) -> Value:
    """Nats per unit: Σ −log p / Σ units."""
    nats, units = (np.array([outcome[key] for outcome in outcomes], np.float64) for key in ("log_prob", unit))
    rate = float(-nats.sum() / max(units.sum(), 1.0))
    n = len(outcomes)
    spread = float(np.square(-nats - rate * units).sum()) * n / max(n - 1, 1)
    return Value(rate, math.sqrt(spread) / max(units.sum(), 1.0) if n > 1 else 0.0)


def _exp(rate: Value) -> Value:
    value = math.exp(min(rate.value, 700.0))
    return Value(value, value * rate.error)


def _mean(values: np.ndarray) -> Value:
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return Value(float(values.mean()), error)


def _of_outcomes(metric: Metric, outcomes: Sequence[SampleResult]) -> Values:
    """A metric of outcomes: of a mean a number for each, else one number, or a value whose error it knows itself."""
    name = metric.values[0]
    scores = metric.function(outcomes)
    if isinstance(scores, Value):
        return {name: scores}
    is_mean = metric.aggregation == "mean"
    try:
        numbers = np.asarray(scores, np.float64)
    except (TypeError, ValueError):  # no numbers, or lists of other lengths
        numbers = None
    # Of jaxpt's own acc_all has a number for each group.
    has_length = not is_mean or "." not in metric.name or np.shape(numbers) == (len(outcomes),)
    if numbers is None or numbers.ndim != is_mean or not has_length:
        shape = np.shape(numbers)
        gave = f"numbers of shape {list(shape)}" if shape else "one number" if numbers is not None else shown(scores)
        each = f"a list of {len(outcomes)} numbers, one for each outcome"
        wants = each if is_mean else 'one number; a mean has aggregation="mean"'
        raise UserError(f"metrics: {metric.name}: gave {gave}, wants {wants}")
    if is_mean:
        return {name: _mean(numbers)}
    return _of_whole(lambda chosen: {name: float(metric.function(chosen))}, outcomes)


def _of_answers(task: HarnessTask, metric: Metric, outcomes: Sequence[SampleResult]) -> Values:
    """A metric of `jaxpt.metrics`: the mean over examples where it is one, else of the whole."""
    key, options = "cosine" if task.form == "similarity" else "answer", _options(task, metric, outcomes)

    def score(chosen: Sequence[SampleResult]) -> dict[str, float]:
        predictions, golds = ([outcome[name] for outcome in chosen] for name in (key, "gold"))
        return metrics.score(metric.name, predictions, golds, **options)

    if metric.aggregation == "mean":
        each = [score([outcome]) for outcome in outcomes]
        return {name: _mean(np.array([scores[name] for scores in each])) for name in each[0]}
    return _of_whole(score, outcomes)


def _options(task: HarnessTask, metric: Metric, outcomes: Sequence[SampleResult]) -> dict[str, Any]:
    """The options of a metric; those that depend on the language from all answers, not from each alone."""
    options = metrics.options_of(task.metric_options, metric.name)
    if metric.by_language is None:
        return options
    return metrics.resolve(metric.name, [outcome["gold"] for outcome in outcomes], task.language, **options)


def _of_whole(score: Callable[[Sequence[SampleResult]], dict[str, float]], outcomes: Sequence[SampleResult]) -> Values:
    """Metrics of the whole set; the errors are standard deviations over the same resamples of the outcomes."""
    whole, n = score(outcomes), len(outcomes)
    if n < 2:
        return {name: Value(value, 0.0) for name, value in whole.items()}
    draws = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    resampled = [score([outcomes[i] for i in draw]) for draw in draws]
    return {
        name: Value(value, float(np.std([scores[name] for scores in resampled], ddof=1)))
        for name, value in whole.items()
    }
