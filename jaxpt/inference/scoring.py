"""Log-likelihoods of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from jaxpt.decode import likelihood
from jaxpt.errors import UserError
from jaxpt.inference import filling

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded


def loglikelihood(
    model: Loaded,
    contexts: Sequence[str],
    continuations: Sequence[str],
    unit: Literal["piece", "word"],
    form: Literal["plain", "span"] | None,
) -> likelihood.Likelihoods:
    """Log-likelihoods of continuations given contexts; see `Loaded.loglikelihood`."""
    if len(contexts) != len(continuations):
        raise UserError(f"{len(contexts)} contexts and {len(continuations)} continuations: there must be as many")
    model.objective.check_writes(model.path)
    if model.family == "encoder":
        filling.check(model)
    if not contexts:
        return likelihood.Likelihoods([], 0)
    pairs = [model.reader.pair(*pair) for pair in zip(contexts, continuations)]
    word_starts = model.tokenizer.word_starts() if unit == "word" else None
    with model.current():
        return likelihood.loglikelihood(
            model.network, model.params, model.objective, model.vocabulary, *map(list, zip(*pairs)), form=form,
            unit=unit, word_starts=word_starts, language=model.language,
        )  # fmt: skip
