"""What costs nothing, beside each result: the most frequent answer, the shortest choice, an n-gram model."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from jaxpt.evals.few_shot import measures, scoring
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.measures import SampleResult, Value
from jaxpt.evals.few_shot.ngram import NGrams
from jaxpt.evals.few_shot.task import HarnessTask


def baselines(
    task: HarnessTask, examples: Sequence[Example], ngrams: NGrams | None = None
) -> dict[str, dict[str, Value]]:
    """The metrics of trivial answers.

    Args:
      task: the task.
      examples: those that are scored.
      ngrams: of a corpus.

    Returns:
      {baseline: {metric: value}}: `majority`, the choice whose number is most often right, or the answer that most
      examples have; `shortest`, the choice of the fewest characters; `ngram`. Those that a form has.
    """
    baseline_outcomes: dict[str, list[SampleResult]] = {}
    if task.form in ("multiple_choice", "pair"):
        if task.form == "multiple_choice":
            majority = collections.Counter(example.gold for example in examples).most_common(1)[0][0]
            baseline_outcomes["majority"] = [
                _guess(example, [float(i == majority) for i in range(len(example.choices))]) for example in examples
            ]
        baseline_outcomes["shortest"] = [
            _guess(example, [-float(len(choice)) for choice in example.choices]) for example in examples
        ]
    if task.form == "generate_until":
        common = collections.Counter(
            gold for example in examples for gold in dict.fromkeys(example.gold)
        ).most_common(1)[0][0]  # fmt: skip
        baseline_outcomes["majority"] = [
            {"id": example.id, "gold": example.gold, "group": example.group, "text": common, "answer": common}
            for example in examples
        ]
    if ngrams is not None and task.form in ("multiple_choice", "pair", "loglikelihood", "loglikelihood_rolling"):
        baseline_outcomes["ngram"] = scoring.score(task, ngrams, examples)
    lacking = {"majority": ("acc_mutual_info",), "shortest": ("acc_mutual_info",), "ngram": ("token_perplexity",)}
    named: dict[str, dict[str, Value]] = {}
    for name, outcomes in baseline_outcomes.items():
        baseline_task = task.model_copy(
            update={"metrics": tuple(m for m in task.scored if m not in lacking.get(name, ()))}
        )
        if baseline_task.metrics:
            named[name] = measures.measure(baseline_task, outcomes)
    if "ngram" in named and task.form == "loglikelihood":
        named["ngram"].pop("acc", None)  # its first choice is a byte
    return named


def _guess(example: Example, values: list[float]) -> SampleResult:
    """An outcome where each choice has a value instead of a log-likelihood, whatever its length."""
    n = len(values)
    named = {"id": example.id, "gold": example.gold, "group": example.group}
    return named | {"log_probs": values, "chars": [1] * n, "tokens": [1] * n}
