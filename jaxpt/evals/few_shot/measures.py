"""Metrics of outcomes, with standard errors.

    acc          Σ log p decides; a tie of k counts 1/k, so that a model that gives all texts one score gets 50 on
                 pairs; acc_strict beside it: a tie is a failure, and such a model gets 0
    acc_norm     Σ log p / characters of the choice (the common harness's)
    acc_token    Σ log p / tokens (GPT-3's)
    acc_context  log p(choice | context) − log p(choice | unconditional) (GPT-3's)

The standard error of a mean is s/√n with the sample's s; of a ratio of sums (perplexities) and its exponential that of
the delta method; of a metric of the whole set (BLEU, F1) that of 100 bootstrap samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxpt import metrics
from jaxpt.evals.few_shot.scoring import Outcome
from jaxpt.evals.few_shot.task import HarnessTask

TIE = 1e-5
"""Relative difference of log-likelihoods in float32 that is a tie: equal texts stand in batches of other shapes."""
RESAMPLES = 100
"""Of the examples, for the standard error of a metric that is no mean."""


class Value(NamedTuple):
    """A metric."""

    value: float
    error: float
    """Standard error; 0 of one example."""


def measure(task: HarnessTask, outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """The metrics of a task.

    Args:
      task: the task.
      outcomes: at least one.

    Returns:
      {metric: value}: `task.scored`; `acc_strict` beside `acc`, and of groups `acc_groups`, the mean over groups.

    Example:
      >>> task = HarnessTask(name="x", form="pair", choices=("{{ a }}", "{{ b }}"))
      >>> tie = {"id": 1, "gold": 0, "group": None, "log_probs": [-3.0, -3.0], "chars": [2, 2], "tokens": [1, 1]}
      >>> {name: one.value for name, one in measure(task, [tie]).items()}
      {'acc': 0.5, 'acc_strict': 0.0}
    """
    values: dict[str, Value] = {}
    for metric in task.scored:
        values |= _OF_METRIC[metric](outcomes) if metric in _OF_METRIC else _by_scores(task, metric, outcomes)
    if "acc" in values and any(outcome["group"] is not None for outcome in outcomes):
        values["acc_groups"] = _mean_of_groups(by_group(outcomes))
    return values


def by_group(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """Accuracy of each group, in the order of the outcomes."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(str(outcome["group"]), []).append(outcome)
    return {group: _mean(credits_of(group_outcomes)) for group, group_outcomes in groups.items()}


def credits_of(outcomes: Sequence[Outcome], strict: bool = False) -> np.ndarray:
    """What each outcome counts for `acc`: float64 [N]; with `strict` a tie counts 0."""
    if "is_greedy" in outcomes[0]:
        return np.array([float(outcome["is_greedy"]) for outcome in outcomes])
    return np.array([_credit(outcome["log_probs"], outcome["gold"], strict) for outcome in outcomes])


def _credit(values: Sequence[float], gold: int, strict: bool = False) -> float:
    best = max(values)
    tied = [i for i, score in enumerate(values) if best - score <= TIE * max(abs(best), 1.0)]
    if gold not in tied or (strict and len(tied) > 1):
        return 0.0
    return 1.0 / len(tied)


def _mean(values: np.ndarray) -> Value:
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return Value(float(values.mean()), error)


def _mean_of_groups(groups: dict[str, Value]) -> Value:
    values = list(groups.values())
    return Value(
        float(np.mean([acc.value for acc in values])), math.sqrt(sum(acc.error**2 for acc in values)) / len(values)
    )


def _accuracy(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    values = {"acc": _mean(credits_of(outcomes))}
    return values if "is_greedy" in outcomes[0] else values | {"acc_strict": _mean(credits_of(outcomes, strict=True))}


def _accuracy_by(
    name: str, score_choices: Callable[[Outcome], np.ndarray]
) -> Callable[[Sequence[Outcome]], dict[str, Value]]:
    """Accuracy where other numbers than Σ log p decide."""
    return lambda outcomes: {
        name: _mean(np.array([_credit(score_choices(outcome).tolist(), outcome["gold"]) for outcome in outcomes]))
    }


def _divided(by: str) -> Callable[[Outcome], np.ndarray]:
    return lambda outcome: np.array(outcome["log_probs"]) / np.maximum(outcome[by], 1)


def _f1(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """Macro F1 of the likeliest choice."""

    def score(chosen: Sequence[Outcome]) -> dict[str, float]:
        guesses = [int(np.argmax(outcome["log_probs"])) for outcome in chosen]
        return {"f1": metrics.score("macro_f1", guesses, [outcome["gold"] for outcome in chosen])["macro_f1"]}

    return _of_whole(score, outcomes)


def _f1_of_last(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """F1 of the last of two choices, "yes" of MultiRC's F1a."""

    def score(chosen: Sequence[Outcome]) -> dict[str, float]:
        guesses = [int(np.argmax(outcome["log_probs"])) for outcome in chosen]
        last = len(chosen[0]["log_probs"]) - 1
        scores = metrics.score(
            "f1", [int(g == last) for g in guesses], [int(outcome["gold"] == last) for outcome in chosen]
        )
        return {"f1_last": scores["f1"]}

    return _of_whole(score, outcomes)


def _all_right(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """The share of groups whose rows are all right."""
    credit = credits_of(outcomes, strict=True)
    groups: dict[str, bool] = {}
    for outcome, right in zip(outcomes, credit):
        groups[outcome["group"]] = groups.get(outcome["group"], True) and right == 1
    return {"groups": _mean(np.array([float(right) for right in groups.values()]))}


def _perplexity(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """exp(−mean log p of a continuation)."""
    mean = _mean(np.array([-outcome["log_prob"] for outcome in outcomes]))
    value = math.exp(min(mean.value, 700.0))
    return {"perplexity": Value(value, value * mean.error)}


def _rate(outcomes: Sequence[Outcome], unit: str) -> Value:
    """Nats per unit: Σ −log p / Σ units."""
    nats, units = (np.array([outcome[key] for outcome in outcomes], np.float64) for key in ("log_prob", unit))
    rate = float(-nats.sum() / max(units.sum(), 1.0))
    n = len(outcomes)
    spread = float(np.square(-nats - rate * units).sum()) * n / max(n - 1, 1)
    return Value(rate, math.sqrt(spread) / max(units.sum(), 1.0) if n > 1 else 0.0)


def _per(name: str, unit: str) -> Callable[[Sequence[Outcome]], dict[str, Value]]:
    def perplexity(outcomes: Sequence[Outcome]) -> dict[str, Value]:
        rate = _rate(outcomes, unit)
        value = math.exp(min(rate.value, 700.0))
        return {name: Value(value, value * rate.error)}

    return perplexity


def _bits(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    rate = _rate(outcomes, "bytes")
    return {"bits_per_byte": Value(rate.value / math.log(2), rate.error / math.log(2))}


def _number(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """The answer is the same number as one of the right ones: without $, commas and a final point."""

    def plain(text: str) -> str:
        return re.sub(r"[,$%\s]", "", text).rstrip(".").removesuffix(".00").removesuffix(".0")

    right = [plain(outcome["answer"]) in {plain(gold) for gold in outcome["gold"]} for outcome in outcomes]
    return {"number": _mean(np.array(right, np.float64))}


def _by_scores(task: HarnessTask, metric: str, outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """A metric of `jaxpt.metrics`, as a fraction: the mean over examples where it is one, else of the whole."""
    percent, options = 100.0 if metrics.in_percent(metric) else 1.0, _options(task, metric, outcomes)

    def score(chosen: Sequence[Outcome]) -> dict[str, float]:
        if metric in ("spearman", "pearson"):
            return metrics.score(
                metric, [outcome["cosine"] for outcome in chosen], [outcome["gold"] for outcome in chosen]
            )
        golds = [outcome["gold"] for outcome in chosen]
        scores = metrics.score(metric, [outcome["answer"] for outcome in chosen], golds, **options)
        return {name: value / percent for name, value in scores.items()}

    if metrics.is_mean(metric):
        each = [score([outcome]) for outcome in outcomes]
        return {name: _mean(np.array([scores[name] for scores in each])) for name in each[0]}
    return _of_whole(score, outcomes)


def _options(task: HarnessTask, metric: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The options of a metric; those that depend on the language from all answers, not from each alone."""
    if not metrics.find(metric).by_language:
        return metrics.options_of(task.metric_options, metric)
    golds = [outcome["gold"] for outcome in outcomes]
    return metrics.resolve(metric, golds, task.language, **metrics.options_of(task.metric_options, metric))


def computed(task: HarnessTask, outcomes: Sequence[Outcome]) -> dict[str, str]:
    """{metric: how it is computed} of the metrics whose name does not say all."""
    known = {"f1": "mean over the choices that occur", "f1_last": "of the last choice"}
    descriptions = {metric: known[metric] for metric in task.scored if metric in known}
    for metric in task.scored if task.form == "generation" else ():
        if metric in metrics.known():
            references = max(len(outcome["gold"]) for outcome in outcomes)
            how = metrics.signature(metric, references, **_options(task, metric, outcomes))
            descriptions |= {metric: how} if how else {}
    return descriptions


def _of_whole(score: Callable[[Sequence[Outcome]], dict[str, float]], outcomes: Sequence[Outcome]) -> dict[str, Value]:
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


_OF_METRIC: dict[str, Callable[[Sequence[Outcome]], dict[str, Value]]] = {
    "acc": _accuracy,
    "acc_norm": _accuracy_by("acc_norm", _divided("chars")),
    "acc_token": _accuracy_by("acc_token", _divided("tokens")),
    "acc_context": _accuracy_by(
        "acc_context", lambda outcome: np.subtract(outcome["log_probs"], outcome["unconditional"])
    ),
    "f1": _f1,
    "f1_last": _f1_of_last,
    "groups": _all_right,
    "perplexity": _perplexity,
    "token_perplexity": _per("token_perplexity", "tokens"),
    "word_perplexity": _per("word_perplexity", "words"),
    "byte_perplexity": _per("byte_perplexity", "bytes"),
    "bits_per_byte": _bits,
    "number": _number,
}  # fmt: skip
