"""Texts without a decoder: the lead, the input itself, the target of the nearest training row, the commonest target."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxpt.data import tables
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.evals.simple_models import texts
from jaxpt.evals.simple_models.base import Candidate, SimpleModel, Splits

LEAD = 3
"""Sentences of a lead: lead-3, the usual baseline of summaries (https://arxiv.org/abs/1704.04368)."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"'”’)])\s+|(?<=[。！？])|\n+")
_ROWS_AT_ONCE = 256


def sentences(text: str) -> list[str]:
    """The sentences of a text, by the signs that end them.

    Example:
      >>> sentences('It rained. "Did it stop?"  No .')
      ['It rained.', '"Did it stop?"', 'No .']
    """
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence and sentence.strip()]


def source(task: Any, row: LocatedRow) -> str:
    """The text of a row without the words around it: "summarize: {article}" has that of the column article."""
    if not task.columns():  # a format of T5's code
        return task.input_text(row.row, row.where)
    return " ".join(tables.text(row.row, name, row.where, as_text=True) for name in task.columns())


def _from_source(make: Callable[[str], str], splits: Splits) -> Iterator[Candidate]:
    predictions = {
        split: [splits.task.parse(make(source(splits.task, row)), row.row, row.where) for row in splits.rows[split]]
        for split in splits.scored
    }
    yield Candidate("", 0, predictions)


def _lead(splits: Splits) -> Iterator[Candidate]:
    """The first sentences, a line each as ROUGE-Lsum reads them."""
    return _from_source(lambda text: "\n".join(sentences(text)[:LEAD]), splits)


def _copy(splits: Splits) -> Iterator[Candidate]:
    return _from_source(str, splits)


def _train_targets(splits: Splits) -> tuple[list[LocatedRow], list[str]]:
    """(rows, their first targets) of the training rows that have one."""
    pairs = [(row, splits.task.target_texts(row.row, row.where)) for row in splits.rows["train"]]
    known = [(row, of_row[0]) for row, of_row in pairs if of_row]
    return [row for row, _ in known], [text for _, text in known]


def _commonest(splits: Splits) -> Iterator[Candidate]:
    target = collections.Counter(_train_targets(splits)[1]).most_common(1)[0][0]
    predictions = {
        split: [splits.task.parse(target, row.row, row.where) for row in splits.rows[split]] for split in splits.scored
    }
    yield Candidate("", 0, predictions)


def _nearest(splits: Splits) -> Iterator[Candidate]:
    """The target of the training row whose input has the largest cosine of TF-IDF; the first of equal ones."""
    rows, targets = _train_targets(splits)
    of_split = {"train": rows, **{split: splits.rows[split] for split in splits.scored}}
    inputs = {split: [(source(splits.task, row),) for row in of_split[split]] for split in of_split}
    x = texts.matrices(texts.vectorizer("words"), inputs)
    train_FxN = x["train"].T.tocsr()
    predictions: dict[str, list[Any]] = {}
    for split in splits.scored:
        blocks = range(0, x[split].shape[0], _ROWS_AT_ONCE)
        nearest = [np.asarray((x[split][at : at + _ROWS_AT_ONCE] @ train_FxN).argmax(1)).ravel() for at in blocks]
        texts_of_split = [targets[n] for n in np.concatenate(nearest)]
        predictions[split] = [
            splits.task.parse(text, row.row, row.where) for text, row in zip(texts_of_split, splits.rows[split])
        ]
    yield Candidate("", x["train"].shape[1], predictions)


MODELS = (
    SimpleModel(f"lead_{LEAD}", f"the first {LEAD} sentences of the input", _lead, is_quick=True),
    SimpleModel("copy", "the input", _copy, is_quick=True),
    SimpleModel("commonest", "the most frequent target of the training set", _commonest, is_quick=True),
    SimpleModel("nearest", "the target of the training row with the most similar input, by TF-IDF", _nearest),
)
