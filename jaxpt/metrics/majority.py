"""The best constant prediction: what a metric is worth that a model has to beat."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jaxpt.metrics.base import find
from jaxpt.metrics.classification import is_matrix
from jaxpt.metrics.registry import score
from jaxpt.metrics.tagging import Tags

if TYPE_CHECKING:
    import numpy as np


def majority(
    metric: str,
    train_targets: Sequence,
    targets: Sequence,
    *,
    train_words: Sequence[Sequence[str]] | None = None,
    words: Sequence[Sequence[str]] | None = None,
    **options: Any,
) -> dict[str, float] | None:
    """Scores the constant prediction that is best on the training set.

    Labels: the most frequent one; for F1 of one label that label. 0/1 matrices: 1 in the most frequent columns, as many
    as are best, or the most frequent row. Numbers: the mean. Tags: the most frequent tag; where words are given, the
    most frequent tag of each word.

    Args:
      metric: a name in `METRICS`.
      train_targets: targets of the training set.
      targets: targets that are scored.
      train_words: words of the training set, for metrics of tags.
      words: words of the scored texts.
      **options: the metric's, for the scored set (`groups`) or both (`labels`).

    Returns:
      As `score`; None for answers and texts, of which no constant is of use.

    Raises:
      UserError: as `score`.

    Example:
      >>> majority("accuracy", ["no", "no", "yes"], ["yes", "no", "no", "no"])
      {'accuracy': 0.75}
      >>> majority("f1", [0, 0, 1], [1, 0])
      {'f1': 0.6666666666666666}
    """
    kind = find(metric).constant
    if kind is None or not len(train_targets) or (kind == "row" and isinstance(train_targets[0], str)):
        return None
    if kind == "tags":
        if train_words is None or words is None:
            train_words, words = ([[""] * len(row) for row in rows] for rows in (train_targets, targets))
        return score(metric, most_frequent_tags(train_words, train_targets, words), targets, **options)
    if kind in ("mean", "means"):
        constant: Any = (
            _means(train_targets) if kind == "means" else sum(map(float, train_targets)) / len(train_targets)
        )
    elif is_matrix(train_targets):
        if any(isinstance(target, str) for target in train_targets[0]):  # several right texts
            return None
        constant = _best_row(metric, train_targets, options)
    else:
        frequent = [label for label, _ in collections.Counter(train_targets).most_common()]
        constant = _best("f1", frequent, train_targets, options) if kind == "positive" else frequent[0]
    return score(metric, [constant] * len(targets), targets, **options)


def _best(metric: str, candidates: Iterable, targets: Sequence, options: dict[str, Any]) -> Any:
    """The constant with the highest score; the first of equal ones."""
    options = {name: value for name, value in options.items() if name in ("labels", "positive")}

    def value(constant: Any) -> float:
        return next(iter(find(metric).function([constant] * len(targets), targets, **options).values()))

    return max(candidates, key=value)  # the first of equal ones


def _best_row(metric: str, targets: Sequence[Sequence[int]], options: dict[str, Any]) -> list[int]:
    """The most frequent row, or 1 in the k most frequent columns: the one with the highest score, the first of equals.

    Scores that follow from the counts of columns or rows are computed from these, not from all rows for each k.
    """
    import numpy as np

    target_NxC = np.asarray(targets).astype(np.int64)
    frequent = list(collections.Counter(map(tuple, target_NxC.tolist())).most_common(1)[0][0])
    if metric == "exact_match":
        return frequent
    size, count_C = len(target_NxC), target_NxC.sum(axis=0)
    rank_C = np.argsort(np.argsort(-count_C, kind="stable"))
    prefixes = ((rank_C < k).astype(int).tolist() for k in range(1, len(count_C) + 1))
    candidates = itertools.chain([frequent], prefixes)
    if metric not in ("micro_f1", "macro_f1", "weighted_f1"):
        return _best(metric, candidates, targets, options)
    return max(candidates, key=lambda row: _constant_f1(metric, np.asarray(row), count_C, size))


def _constant_f1(metric: str, row_C: np.ndarray, count_C: np.ndarray, size: int) -> float:
    """A mean F1 of the same row for all examples.

    Args:
      metric: micro_f1, macro_f1 or weighted_f1.
      row_C: 0/1 of each label.
      count_C: examples that have each label.
      size: number of examples.
    """
    import numpy as np

    right_C, all_C = row_C * count_C, row_C * size + count_C
    if metric == "micro_f1":
        right_C, all_C = right_C.sum(keepdims=True), all_C.sum(keepdims=True)
    f1_C = 2 * right_C / np.maximum(all_C, 1)
    if metric != "weighted_f1":
        return float(f1_C.mean())
    return float((f1_C * count_C).sum() / max(count_C.sum(), 1))


def _means(targets: Sequence) -> np.ndarray:
    """Mean of each column; of all values of a vector."""
    import numpy as np

    return np.asarray(targets, np.float64).mean(axis=0)


def most_frequent_tags(train_words: Tags, train_tags: Tags, words: Tags) -> list[list[str]]:
    """The most frequent tag of each word in the training set; of an unknown word the most frequent of all.

    Args:
      train_words: sentences of the training set.
      train_tags: their tags.
      words: sentences that are tagged.

    Example:
      >>> most_frequent_tags([["a", "dog", "barks"], ["dog"]], [["D", "N", "V"], ["N"]], [["a", "cat"]])
      [['D', 'N']]
    """
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for row, tags in zip(train_words, train_tags, strict=True):
        for word, tag in zip(row, tags, strict=True):
            counts[word][tag] += 1
    best = {word: counter.most_common(1)[0][0] for word, counter in counts.items()}
    overall = sum(counts.values(), collections.Counter()).most_common(1)[0][0]
    return [[best.get(word, overall) for word in row] for row in words]
