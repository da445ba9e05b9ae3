"""Metrics of SuperGLUE's tasks that are no single metric of the other files. Fractions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from jaxpt.metrics.base import metric
from jaxpt.metrics.classification import Labels, accuracy, f1, macro_f1


@metric(targets=("label",), values=("accuracy", "macro_f1"), selection_value="macro_f1", constant="label")
def cb(predictions: Labels, targets: Labels, labels: Labels | None = None) -> dict[str, float]:
    """CommitmentBank: accuracy, and the unweighted mean of the F1 of each class.

    Args:
      predictions: [N].
      targets: [N].
      labels: the three classes; without them a class that does not occur is left out of the mean.

    Example:
      >>> cb([0, 1, 2], [0, 1, 1], labels=[0, 1, 2])
      {'accuracy': 0.6666666666666666, 'macro_f1': 0.5555555555555555}
    """
    return accuracy(predictions, targets) | macro_f1(predictions, targets, labels)


@metric(targets=("label",), values=("f1a", "exact_match"), constant="positive")
def multirc(
    predictions: Labels, targets: Labels, groups: Sequence[Hashable], labels: Labels | None = None
) -> dict[str, float]:
    """MultiRC: F1 of "True" over all answers (F1a), and the fraction of questions with all answers right.

    Args:
      predictions: [N], a label for each answer.
      targets: [N].
      groups: [N] ids of the questions: (paragraph, question), say.
      labels: ("False", "True"), or as in the data; by default 0 and 1.

    Example:
      >>> multirc([1, 0, 1], [1, 1, 1], groups=["q1", "q1", "q2"])
      {'f1a': 0.8, 'exact_match': 0.5}
    """
    right: dict[Hashable, bool] = {}
    for p, t, group in zip(predictions, targets, groups, strict=True):
        right[group] = right.get(group, True) and p == t
    return {"f1a": f1(predictions, targets, labels)["f1"], "exact_match": sum(right.values()) / len(right)}


@metric(targets=("label",), values=("accuracy", "gender_parity"), constant="label")
def axg(
    predictions: Labels, targets: Labels, groups: Sequence[Hashable], labels: Labels | None = None
) -> dict[str, float]:
    """Winogender diagnostics: accuracy and gender parity, the fraction of pairs with one prediction for both.

    Args:
      predictions: [N].
      targets: [N].
      groups: [N] ids of the pairs, whose texts differ in the pronoun's gender alone.
      labels: not used.

    Example:
      >>> axg([1, 1, 0, 1], [1, 1, 0, 0], groups=[1, 1, 2, 2])
      {'accuracy': 0.75, 'gender_parity': 0.5}
    """
    by_group: dict[Hashable, set] = {}
    for p, group in zip(predictions, groups, strict=True):
        by_group.setdefault(group, set()).add(p)
    return accuracy(predictions, targets) | {
        "gender_parity": sum(len(x) == 1 for x in by_group.values()) / len(by_group)
    }
