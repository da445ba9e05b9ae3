"""What a model says of examples: outcomes, plain values that a file keeps, from which all metrics follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.measures import SampleResult
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.runtime import linear_regex

"""A `SampleResult` has "id", "gold", "group" and, by form:

multiple_choice, pair   "log_probs": Σ log p of each continuation, "chars" and "tokens" of each; "unconditional":
                        Σ log p of each after the context that says nothing
loglikelihood           "log_prob", "tokens", "is_greedy": each token is the model's first choice
loglikelihood_rolling   "log_prob" and "tokens" of the text; "words" and "bytes" of it, or of the task's `counted`
generate_until          "text" as it was written, "answer" taken from it
similarity              "cosine"
"""


class LoglikelihoodResult(NamedTuple):
    """The likelihood of a continuation."""

    log_prob: float
    """Σ log p of its tokens, in nats."""
    tokens: int
    is_greedy: bool


class Model(Protocol):
    """What the harness asks of a model. Results have the order of the questions and do not depend on the others."""

    def likelihoods(self, contexts: Sequence[str], continuations: Sequence[str]) -> list[LoglikelihoodResult]:
        """Log-likelihoods of continuations given contexts."""

    def rolling(self, texts: Sequence[str]) -> list[LoglikelihoodResult]:
        """Log-likelihoods of whole texts of any length."""

    def completions(self, prompts: Sequence[str], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        """Written answers, without the stop string."""

    def embeddings(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, any]."""


def score(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[SampleResult]:
    """Asks a model.

    Args:
      task: the task.
      model: any.
      examples: of the task.

    Returns:
      An outcome for each example.
    """
    outcomes = _OF_FORM[task.form](task, model, examples)
    return [of_example(task, example) | values for example, values in zip(examples, outcomes, strict=True)]


def of_example(task: HarnessTask, example: Example) -> SampleResult:
    """The part of an outcome that does not depend on the model.

    Args:
      task: the task.
      example: one of its examples.

    Returns:
      "id", "gold", "group", and the "chars" of choices, or the "words" and "bytes" of a text.
    """
    values: SampleResult = {"id": example.id, "gold": example.gold, "group": example.group}
    if task.form in ("multiple_choice", "pair"):
        values["chars"] = [len(choice) for choice in example.choices]
    if task.form == "loglikelihood_rolling":
        text = example.continuations[0] if example.counted is None else example.counted
        values |= {"words": word_count(text), "bytes": len(text.encode())}
    return values


def _compared(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[SampleResult]:
    """Several continuations each."""
    scored = iter(_likelihoods(model, examples))
    outcomes = []
    for example in examples:
        of_choices = [next(scored) for _ in example.choices]
        outcome: SampleResult = {
            "log_probs": [likelihood.log_prob for likelihood in of_choices],
            "tokens": [likelihood.tokens for likelihood in of_choices],
        }
        if example.unconditional is not None:
            outcome["unconditional"] = [next(scored).log_prob for _ in example.choices]
        outcomes.append(outcome)
    return outcomes


def _likelihood(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[SampleResult]:
    return [likelihood._asdict() for likelihood in _likelihoods(model, examples)]


def pairs(example: Example) -> list[tuple[str, str]]:
    """The (context, continuation) of which an example wants the likelihoods: all choices, then without the context."""
    unconditional = [] if example.unconditional is None else [example.unconditional] * len(example.continuations)
    return [*zip(example.contexts, example.continuations), *zip(unconditional, example.continuations)]


def _likelihoods(model: Model, examples: Sequence[Example]) -> list[LoglikelihoodResult]:
    asked = [pair for example in examples for pair in pairs(example)]
    return model.likelihoods([context for context, _ in asked], [continuation for _, continuation in asked])


def _rolling(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[SampleResult]:
    scored = model.rolling([example.continuations[0] for example in examples])
    return [{"log_prob": likelihood.log_prob, "tokens": likelihood.tokens} for likelihood in scored]


def word_count(text: str) -> int:
    """Words as the common harness counts them: white space at an end counts one more.

    Args:
      text: any text.

    Returns:
      Their number.
    """
    return len(re.split(r"\s+", text))


def _generation(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[SampleResult]:
    texts = model.completions([example.contexts[0] for example in examples], task.max_new_tokens, task.stop)
    return [{"text": text, "answer": extracted(text, task.extract)} for text in texts]


def extracted(text: str, pattern: str | None) -> str:
    """The answer in a written text.

    Args:
      text: as it was written.
      pattern: a regular expression: its first group in the text, or the whole match; None: all of the text.

    Returns:
      The last match, without white space around it; "" without one, or where its first group took no part.

    Example:
      >>> extracted("2 + 2 is 4. #### 4", "#### (-?[0-9.,]+)")
      '4'
    """
    if pattern is None:
        return text.strip()
    return linear_regex.last_match(text, pattern).strip()


def _similarity(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[SampleResult]:
    vectors = np.asarray(model.embeddings([text for example in examples for text in example.continuations]), np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return [{"cosine": float(a @ b)} for a, b in vectors.reshape(len(examples), 2, -1)] if examples else []


_OF_FORM: dict[str, Callable[[HarnessTask, Model, Sequence[Example]], list[SampleResult]]] = {
    "multiple_choice": _compared, "pair": _compared, "loglikelihood": _likelihood, "loglikelihood_rolling": _rolling,
    "generate_until": _generation, "similarity": _similarity,
}  # fmt: skip
