"""What costs nothing, beside each result: the most frequent answer, the shortest choice, an n-gram model."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from jaxpt.evals.few_shot import measures, scoring
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.measures import SampleResult, Value
from jaxpt.evals.few_shot.scoring import LoglikelihoodResult
from jaxpt.evals.few_shot.task import HarnessTask

ORDER = 6
"""Bytes of the longest n-gram; 8 at most, since one is a 64-bit number."""


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
      examples have; `shortest`, the choice of the fewest characters; `ngram`. Those that a form has. The first two have
      no likelihoods of choices: metrics of other modules, which may read them, are left out there.
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
        is_guess = name != "ngram" and task.form != "generate_until"
        scored = [m for m in task.scored if m not in lacking.get(name, ()) and not (is_guess and "." in m)]
        baseline_task = task.model_copy(update={"metrics": tuple(scored)})
        if baseline_task.metrics:
            named[name] = measures.measure(baseline_task, outcomes)
    if "ngram" in named and task.form == "loglikelihood":
        for name in ("acc", "acc_groups"):  # its first choice is a byte
            named["ngram"].pop(name, None)
    return named


def _guess(example: Example, values: list[float]) -> SampleResult:
    """An outcome where each choice has a value instead of a log-likelihood, whatever its length."""
    n = len(values)
    named = {"id": example.id, "gold": example.gold, "group": example.group}
    return named | {"log_probs": values, "chars": [1] * n, "tokens": [1] * n}


class NGrams:
    """A byte n-gram model, the baseline of likelihoods: Witten–Bell interpolation, counted by sorting.

    p(c | h) = (N(hc) + T(h) · p(c | h')) / (N(h) + T(h)),   h': h without its first byte; p of no context 1/256

    N(h) counts h before a byte, T(h) how many different bytes follow it. Since bytes are what it predicts, its
    likelihood of a text is comparable with that of any model, whatever its tokens.
    Paper: https://doi.org/10.1109/18.87000

    Example:
      >>> model = NGrams(b"abab" * 50, order=3)
      >>> a, b = model.likelihoods(["ba", "ba"], ["b", "a"])
      >>> bool(a.log_prob > b.log_prob)
      True
    """

    def __init__(self, text: bytes, order: int = ORDER) -> None:
        """Counts.

        Args:
          text: the corpus; 20 MB take some seconds for each order.
          order: bytes of the longest n-gram.
        """
        data = np.frombuffer(text, np.uint8)
        self._order = order
        self._grams: list[tuple[np.ndarray, np.ndarray]] = []
        """Of each length from 1 on: the n-grams as numbers, sorted, and how often each is there."""
        self._follow: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        """Of each length from 0 on: contexts, N(h), T(h)."""
        for n in range(1, order + 1):
            grams, counts = np.unique(_codes(data, n), return_counts=True)
            heads, first = np.unique(grams >> np.uint64(8), return_index=True)
            kinds = np.diff(np.append(first, len(grams)))
            self._grams.append((grams, counts))
            self._follow.append((heads, np.add.reduceat(counts, first) if len(first) else counts[:0], kinds))

    def likelihoods(self, contexts: Sequence[str], continuations: Sequence[str]) -> list[LoglikelihoodResult]:
        """Log-likelihoods of continuations; contexts count as far as n-grams reach."""
        pairs = zip(contexts, continuations, strict=True)
        log_probs = [self._log_probs(before.encode(), after.encode()) for before, after in pairs]
        return [LoglikelihoodResult(float(of_text.sum()), len(of_text), False) for of_text in log_probs]

    def rolling(self, texts: Sequence[str]) -> list[LoglikelihoodResult]:
        """Log-likelihoods of texts."""
        return self.likelihoods([""] * len(texts), texts)

    def _log_probs(self, before: bytes, after: bytes) -> np.ndarray:
        context = before[-(self._order - 1) :] if self._order > 1 else b""
        data = np.frombuffer(context + after, np.uint8)
        probs = np.full(len(data), 1 / 256)
        for n in range(1, min(self._order, len(data)) + 1):
            codes, at = _codes(data, n), slice(n - 1, None)
            heads, totals, kinds = self._follow[n - 1]
            total, kind = (_looked_up(heads, x, codes >> np.uint64(8)) for x in (totals, kinds))
            count = _looked_up(*self._grams[n - 1], codes)
            known = total > 0
            better = (count + kind * probs[at]) / np.maximum(total + kind, 1)
            probs[at] = np.where(known, better, probs[at])
        return np.log(probs[len(context) :])


def _codes(data: np.ndarray, n: int) -> np.ndarray:
    """All n-grams as numbers, the last byte lowest."""
    count = max(len(data) - n + 1, 0)
    codes = np.zeros(count, np.uint64)
    for i in range(n):
        codes = (codes << np.uint64(8)) | data[i : i + count].astype(np.uint64)
    return codes


def _looked_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The value of each key, 0 of one that is not there."""
    if not len(keys):
        return np.zeros(len(queries))
    at = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[at] == queries, values[at], 0).astype(np.float64)
