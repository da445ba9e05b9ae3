"""Multiple choice by counts: the choice most similar to its context, and linear models that rank the choices of a row.

A ranking model sees each choice beside its context as a pair of texts (`texts.py`), learns which are right, and takes
the choice with the highest output. That it does well says that choices alone give the answer away
(https://arxiv.org/abs/1803.02324).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxpt.evals.simple_models import texts
from jaxpt.evals.simple_models.base import Candidate, SimpleModel, Splits


def _pairs(splits: Splits) -> tuple[dict[str, list[tuple[str, str]]], dict[str, list[int]]]:
    """(context and choice of each choice of each row, number of choices of each row), of each split."""
    task: Any = splits.task
    of_rows = {split: [task.pairs(row.row, row.where) for row in rows] for split, rows in splits.rows.items()}
    pairs = {split: [pair for of_row in rows for pair in of_row] for split, rows in of_rows.items()}
    return pairs, {split: list(map(len, rows)) for split, rows in of_rows.items()}


def _best(scores: np.ndarray, counts: list[int]) -> list[int]:
    """The choice of each row with the highest score; the first of equal ones."""
    ends = np.cumsum(counts)[:-1]
    return [int(of_row.argmax()) for of_row in np.split(scores, ends)]


def _similar(splits: Splits) -> Iterator[Candidate]:
    """The choice whose words are most similar to those of its context: cosine of TF-IDF vectors."""
    pairs, counts = splits.shared("pairs", lambda: _pairs(splits))
    x = splits.shared("words", lambda: texts.matrices(texts.vectorizer("words"), pairs))
    cosines = {split: x[split][:, -1].toarray()[:, 0] for split in splits.scored}
    yield Candidate("", 1, {split: _best(cosines[split], counts[split]) for split in splits.scored})


def _ranked(features: str, name: str, splits: Splits) -> Iterator[Candidate]:
    """A linear model of which choices are right, one for each strength of the penalty."""
    pairs, counts = splits.shared("pairs", lambda: _pairs(splits))
    x = splits.shared(features, lambda: texts.matrices(texts.vectorizer(features), pairs))
    right = splits.targets["train"]
    is_right = np.array([n == of_row for count, of_row in zip(counts["train"], right) for n in range(count)], np.int64)
    for strength in texts.GRIDS[name]:
        model = texts.linear_model(name, strength, splits.seed).fit(x["train"], is_right)
        scores = {split: model.decision_function(x[split]) for split in splits.scored}
        predictions = {split: _best(scores[split], counts[split]) for split in splits.scored}
        yield Candidate(f"C={strength:g}", x["train"].shape[1], predictions)


MODELS = (
    SimpleModel("similarity", "the choice most similar to its context, cosine of TF-IDF", _similar, is_quick=True),
    *(
        model._replace(
            summary=f"{model.summary}, of each choice", candidates=functools.partial(_ranked, *model.name.split("_"))
        )
        for model in texts.models("logistic", "svm")
    ),
)
