"""Answers to questions by counts of words: the sentence of a context, or a window of it, that fits the question best.

    sentence   the sentence with the largest Σ idf of the question's words
    window     near words of the question: the span that maximises Σ_{words of the question around it} idf / distance

The second one is a relative of the sliding window with distances of MCTest (https://aclanthology.org/D13-1020), which
SQuAD's paper has as its baseline. A span is as long as one of the usual answers of the training set, stays in its
sentence, has no word of the question, and begins and ends with a content word, whose idf is not below the sentence's
mean.
"""

from __future__ import annotations

import collections
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxpt.data.tasks.question_answering import Found
from jaxpt.evals.simple_models.base import Candidate, SimpleModel, Splits

_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^.!?。！？\n]+(?:[.!?。！？]+(?!\s|$)[^.!?。！？\n]+)*[.!?。！？]*")
_LENGTHS = 4
"""So many of the most frequent lengths of answers are tried."""
_REACH = 12  # words around a span that count


class Words(NamedTuple):
    """The words of a text, with their places."""

    words: list[str]
    """In lower case."""
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, text: str, start: int = 0, end: int | None = None) -> Words:
        """Of a part of a text."""
        matches = list(_WORD.finditer(text, start, len(text) if end is None else end))
        return cls([match[0].lower() for match in matches], [match.span() for match in matches])


class Counts(NamedTuple):
    """What is counted in the training set."""

    idf: dict[str, float]
    unknown: float
    """idf of another word."""
    lengths: tuple[int, ...]
    """Usual numbers of words of an answer, the most frequent first."""

    def weights(self, words: list[str]) -> np.ndarray:
        """idf of each word."""
        return np.array([self.idf.get(word, self.unknown) for word in words])


def count(splits: Splits) -> Counts:
    """Document frequencies of the training contexts, and lengths of answers."""
    task: Any = splits.task
    contexts = {task.texts(row.row, row.where)[1] for row in splits.rows["train"]}
    seen = collections.Counter(word for context in contexts for word in set(Words.of(context).words))
    lengths = collections.Counter(
        len(_WORD.findall(answer)) for answers in splits.targets["train"] for answer in answers[:1]
    )
    lengths.pop(0, None)
    unknown = math.log(1 + len(contexts)) + 1
    idf = {word: math.log((1 + len(contexts)) / (1 + n)) + 1 for word, n in seen.items()}
    return Counts(idf, unknown, tuple(length for length, _ in lengths.most_common(_LENGTHS)) or (1,))


def best_sentence(counts: Counts, question: str, context: str) -> Found:
    """The sentence with the largest Σ idf of the question's words that it has; the first of equal ones."""
    asked = set(Words.of(question).words)
    best = Found("", None, -math.inf)
    for match in _SENTENCE.finditer(context):
        words = sorted(asked & set(Words.of(match[0]).words))
        score, text = float(counts.weights(words).sum()), match[0].strip()
        if text and score > best.score:
            start = match.start() + len(match[0]) - len(match[0].lstrip())
            best = Found(text, start, score)
    return best


def best_window(counts: Counts, question: str, context: str) -> Found:
    """The span with the question's words nearest to it."""
    asked = set(Words.of(question).words)
    best = Found("", None, -math.inf)
    for match in _SENTENCE.finditer(context):
        words, spans = Words.of(context, *match.span())
        if not words:
            continue
        is_asked_N = np.array([word in asked for word in words])
        weights_N = counts.weights(words)
        is_content_N = weights_N >= weights_N.mean()
        asked_N = np.where(is_asked_N, weights_N, 0.0)
        for length in counts.lengths:
            for first in range(len(words) - length + 1):
                last = first + length - 1
                if is_asked_N[first : last + 1].any() or not (is_content_N[first] and is_content_N[last]):
                    continue
                before, after = asked_N[max(first - _REACH, 0) : first][::-1], asked_N[last + 1 : last + 1 + _REACH]
                score = sum(float((side / np.arange(2, len(side) + 2)).sum()) for side in (before, after))
                score += float(asked_N.sum())  # of two spans that are as near that of the better sentence
                if score > best.score:
                    start, end = spans[first][0], spans[last][1]
                    best = Found(context[start:end], start, score)
    return best if best.start is not None else best_sentence(counts, question, context)


def _candidates(find: Callable[[Counts, str, str], Found], splits: Splits) -> Iterator[Candidate]:
    counts, task = splits.shared("counts", lambda: count(splits)), splits.task
    predictions = {
        split: [find(counts, *task.texts(row.row, row.where)) for row in splits.rows[split]] for split in splits.scored
    }
    yield Candidate("", len(counts.idf), predictions)


MODELS = (
    SimpleModel(
        "sentence", "the sentence with most words of the question, by idf",
        functools.partial(_candidates, best_sentence), is_quick=True,
    ),
    SimpleModel(
        "window", "the span nearest to the question's words, by idf and distance",
        functools.partial(_candidates, best_window),
    ),
)  # fmt: skip
