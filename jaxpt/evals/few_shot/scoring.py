"""What a model says of examples: outcomes, plain values that a file keeps, from which all metrics follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.runtime import linear_regex

Outcome = dict[str, Any]
"""{"id", "gold", "group"} and, by form:

choice, pair    "log_probs": Σ log p of each continuation, "chars" and "tokens" of each; "unconditional": Σ log p of
                each after the context that says nothing
likelihood      "log_prob", "tokens", "is_greedy": each token is the model's first choice
rolling         "log_prob" and "tokens" of the text; "words" and "bytes" of it, or of the task's `counted`
generation      "text" as it was written, "answer" taken from it
similarity      "cosine"
"""


class Scored(NamedTuple):
    """The likelihood of a continuation."""

    log_prob: float
    """Σ log p of its tokens, in nats."""
    tokens: int
    is_greedy: bool


class Model(Protocol):
    """What the harness asks of a model. Results have the order of the questions and do not depend on the others."""

    def likelihoods(self, contexts: Sequence[str], continuations: Sequence[str]) -> list[Scored]:
        """Log-likelihoods of continuations given contexts."""

    def rolling(self, texts: Sequence[str]) -> list[Scored]:
        """Log-likelihoods of whole texts of any length."""

    def completions(self, prompts: Sequence[str], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        """Written answers, without the stop string."""

    def embeddings(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, any]."""


def score(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[Outcome]:
    """Asks a model.

    Args:
      task: the task.
      model: any.
      examples: of the task.

    Returns:
      An outcome for each example.
    """
    found = _OF_FORM[task.form](task, model, examples)
    return [
        {"id": one.id, "gold": one.gold, "group": one.group, **values}
        for one, values in zip(examples, found, strict=True)
    ]


def _compared(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[Outcome]:
    """Several continuations each."""
    contexts, continuations = [], []
    for one in examples:
        contexts += one.contexts
        continuations += one.continuations
        if one.unconditional is not None:
            contexts += [one.unconditional] * len(one.choices)
            continuations += one.continuations
    scored = iter(model.likelihoods(contexts, continuations))
    found = []
    for one in examples:
        of_choices = [next(scored) for _ in one.choices]
        outcome: Outcome = {
            "log_probs": [of.log_prob for of in of_choices],
            "chars": [len(choice) for choice in one.choices],
            "tokens": [of.tokens for of in of_choices],
        }
        if one.unconditional is not None:
            outcome["unconditional"] = [next(scored).log_prob for _ in one.choices]
        found.append(outcome)
    return found


def _likelihood(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[Outcome]:
    found = model.likelihoods([one.contexts[0] for one in examples], [one.continuations[0] for one in examples])
    return [{"log_prob": of.log_prob, "tokens": of.tokens, "is_greedy": of.is_greedy} for of in found]


def _rolling(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[Outcome]:
    texts = [one.continuations[0] for one in examples]
    counted = [text if one.counted is None else one.counted for one, text in zip(examples, texts)]
    return [
        {"log_prob": of.log_prob, "tokens": of.tokens, "words": word_count(text), "bytes": len(text.encode())}
        for text, of in zip(counted, model.rolling(texts), strict=True)
    ]


def word_count(text: str) -> int:
    """Words as the common harness counts them: white space at an end counts one more.

    Args:
      text: any text.

    Returns:
      Their number.
    """
    return len(re.split(r"\s+", text))


def _generation(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[Outcome]:
    texts = model.completions([one.contexts[0] for one in examples], task.max_new_tokens, task.stop)
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


def _similarity(task: HarnessTask, model: Model, examples: Sequence[Example]) -> list[Outcome]:
    vectors = np.asarray(model.embeddings([text for one in examples for text in one.continuations]), np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return [{"cosine": float(a @ b)} for a, b in vectors.reshape(len(examples), 2, -1)] if examples else []


_OF_FORM: dict[str, Callable[[HarnessTask, Model, Sequence[Example]], list[Outcome]]] = {
    "choice": _compared, "pair": _compared, "likelihood": _likelihood, "rolling": _rolling, "generation": _generation,
    "similarity": _similarity,
}  # fmt: skip
