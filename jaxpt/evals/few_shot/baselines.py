"""What costs nothing, beside each result: the most frequent answer, the shortest choice, an n-gram model."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from jaxpt.evals.few_shot import measures, scoring
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.measures import Value
from jaxpt.evals.few_shot.ngram import NGrams
from jaxpt.evals.few_shot.scoring import Outcome
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
    found: dict[str, list[Outcome]] = {}
    if task.form in ("choice", "pair"):
        if task.form == "choice":
            most = collections.Counter(one.gold for one in examples).most_common(1)[0][0]
            found["majority"] = [_guess(one, [float(i == most) for i in range(len(one.choices))]) for one in examples]
        found["shortest"] = [_guess(one, [-float(len(choice)) for choice in one.choices]) for one in examples]
    if task.form == "generation":
        common = collections.Counter(gold for one in examples for gold in dict.fromkeys(one.gold)).most_common(1)[0][0]
        found["majority"] = [
            {"id": one.id, "gold": one.gold, "group": one.group, "text": common, "answer": common} for one in examples
        ]
    if ngrams is not None and task.form in ("choice", "pair", "likelihood", "rolling"):
        found["ngram"] = scoring.score(task, ngrams, examples)
    lacking = {"majority": ("acc_context",), "shortest": ("acc_context",), "ngram": ("token_perplexity",)}
    named: dict[str, dict[str, Value]] = {}
    for name, outcomes in found.items():
        own = task.model_copy(update={"metrics": tuple(m for m in task.scored if m not in lacking.get(name, ()))})
        if own.metrics:
            named[name] = measures.measure(own, outcomes)
    if "ngram" in named and task.form == "likelihood":
        named["ngram"].pop("acc", None)  # its first choice is a byte
    return named


def _guess(one: Example, values: list[float]) -> Outcome:
    """An outcome where each choice has a value instead of a log-likelihood, whatever its length."""
    n = len(values)
    named = {"id": one.id, "gold": one.gold, "group": one.group}
    return named | {"log_probs": values, "chars": [1] * n, "tokens": [1] * n}
