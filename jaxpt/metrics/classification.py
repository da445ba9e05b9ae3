"""Metrics of labels (scikit-learn), and of SuperGLUE's tasks. N examples, C classes.

A label is a string, a number or a boolean; `labels` lists them in the order of the class ids. A prediction that is none
of the labels (an unparseable text: −1 or None) is wrong and is no class of its own. For several labels per example
predictions and targets are 0/1 matrices [N, C].
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from jaxpt.errors import UserError
from jaxpt.metrics.base import metric
from jaxpt.metrics.tagging import check_lengths

if TYPE_CHECKING:
    import numpy as np

UNPARSEABLE = (-1, None)
"""Predictions that are no label, unless they are one in the targets."""

Labels = Sequence[Hashable]


@metric(targets=("label", "choice"), aggregation="mean", constant="label")
def accuracy(predictions: Labels, targets: Labels, labels: Labels | None = None) -> dict[str, float]:
    """Fraction of predictions that equal the target.

    Example:
      >>> accuracy(["yes", "no", -1], ["yes", "yes", "no"])
      {'accuracy': 0.3333333333333333}
    """
    return {"accuracy": sum(p == t for p, t in zip(predictions, targets)) / len(targets)}


@metric(targets=("label",), constant="positive")
def f1(
    predictions: Labels, targets: Labels, labels: Labels | None = None, positive: Hashable | None = None
) -> dict[str, float]:
    """F1 of one label against the rest. An unparseable prediction counts as the opposite of its target, as in T5.

    Args:
      predictions: [N].
      targets: [N].
      labels: all labels in order; by default those that occur, sorted (0 and 1 where nothing else occurs).
      positive: the label; by default the second of two `labels`, or 1 where only 0 and 1 occur.

    Returns:
      {"f1": …}; 0 where the label is neither predicted nor a target.

    Raises:
      UserError: nothing says which label counts: it may not depend on those that happen to occur.

    Example:
      >>> f1([1, 1, 0, -1], [1, 0, 0, 1])
      {'f1': 0.5}
    """
    from sklearn.metrics import f1_score

    classes = class_names(predictions, targets, labels)
    if labels is None and set(classes) <= {0, 1}:
        classes = [0, 1]
    positive = positive_label(classes, labels is not None) if positive is None else positive
    if positive not in classes and labels is not None:
        raise UserError(f"f1: {positive!r} is none of the labels: {', '.join(map(str, classes))}")
    target_N = [t == positive for t in targets]
    predicted_N = [p == positive if p in classes else not t for p, t in zip(predictions, target_N)]
    return {"f1": float(f1_score(target_N, predicted_N, zero_division=0))}


def positive_label(classes: Labels, are_all: bool = True) -> Hashable:
    """The label that binary F1 is of where none is named: the second of two.

    Args:
      classes: labels in order.
      are_all: these are all labels that there are, not those that occur.

    Raises:
      UserError: there are more than two, or nobody knows whether there are.

    Example:
      >>> positive_label(["negative", "positive"])
      'positive'
    """
    if len(classes) == 2 and (are_all or list(classes) == [0, 1]):
        return classes[1]
    named = ", ".join(map(str, classes))
    reason = "is of one of two labels, here are" if len(classes) > 2 else "is of one label, nothing says which of these"
    raise UserError(
        f"f1 {reason} {len(classes)} ({named}): name it with `positive`, or take an average over "
        "the labels: macro_f1, micro_f1 or weighted_f1"
    )


@metric(targets=("label", "labels", "tags"), constant="label")
def macro_f1(predictions: Sequence, targets: Sequence, labels: Labels | None = None) -> dict[str, float]:
    """Mean of the F1 of each label; a label that is neither predicted nor a target counts 0 if `labels` has it.

    Args:
      predictions: [N], or 0/1 [N, C], or the tags of the words of each text.
      targets: as predictions.
      labels: all labels in order; by default those that occur.

    Example:
      >>> macro_f1([0, 1], [0, 1], labels=[0, 1, 2])
      {'macro_f1': 0.6666666666666666}
      >>> macro_f1([0, 0], [0, 0])
      {'macro_f1': 1.0}
      >>> macro_f1([["A", "B"], ["B"]], [["A", "B"], ["B"]])
      {'macro_f1': 1.0}
    """
    if is_matrix(targets) and any(isinstance(tag, str) for row in targets for tag in row):
        check_lengths(predictions, targets)
        predictions, targets = ([tag for row in rows for tag in row] for rows in (predictions, targets))
    return {"macro_f1": _averaged_f1(predictions, targets, labels, "macro")}


@metric(targets=("label", "labels"), constant="label")
def micro_f1(predictions: Sequence, targets: Sequence, labels: Labels | None = None) -> dict[str, float]:
    """F1 of the counts summed over all labels: the accuracy where each example has one label and one prediction.

    Args:
      predictions: [N], or 0/1 [N, C].
      targets: as predictions.
      labels: as of `macro_f1`.

    Example:
      >>> micro_f1([[1, 0], [1, 1]], [[1, 0], [0, 1]])
      {'micro_f1': 0.8}
    """
    return {"micro_f1": _averaged_f1(predictions, targets, labels, "micro")}


@metric(targets=("label", "labels"), constant="label")
def weighted_f1(predictions: Sequence, targets: Sequence, labels: Labels | None = None) -> dict[str, float]:
    """Mean of the F1 of each label, weighted by how often it is a target.

    Args:
      predictions: [N], or 0/1 [N, C].
      targets: as predictions.
      labels: as of `macro_f1`.

    Example:
      >>> weighted_f1([0, 0, 1], [0, 0, 2])
      {'weighted_f1': 0.6666666666666666}
    """
    return {"weighted_f1": _averaged_f1(predictions, targets, labels, "weighted")}


@metric(targets=("label",), constant="label")
def matthews(predictions: Labels, targets: Labels, labels: Labels | None = None) -> dict[str, float]:
    """Matthews correlation (R_K for more than two classes); 0 where all predictions or all targets are equal.

    As in T5, unparseable predictions are one more class.

    Example:
      >>> matthews([1, 0, 1, 1], [1, 0, 0, 1])
      {'matthews': 0.5773502691896258}
    """
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"matthews": float(matthews_corrcoef(*_ids(targets, predictions, labels)))}


@metric(targets=("label",), constant="label")
def balanced_accuracy(predictions: Labels, targets: Labels, labels: Labels | None = None) -> dict[str, float]:
    """Mean of the recall of each label of the targets.

    Example:
      >>> balanced_accuracy([0, 0, 0, 1], [0, 0, 1, 1])
      {'balanced_accuracy': 0.75}
    """
    from sklearn.metrics import balanced_accuracy_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels are predicted that no target has
        return {"balanced_accuracy": float(balanced_accuracy_score(*_ids(targets, predictions, labels)))}


@metric(targets=("labels",), constant="means")
def average_precision(predictions: Sequence, targets: Sequence, labels: Labels | None = None) -> dict[str, float]:
    """Area under the curve of precision over recall, by steps; for several labels the mean over them.

    Args:
      predictions: scores or probabilities, [N] or [N, C].
      targets: 0/1, of the same shape.
      labels: their names; not used.

    Returns:
      {"average_precision": …}; a label that no target has counts 0.

    Example:
      >>> average_precision([0.9, 0.8, 0.1], [1, 0, 1])
      {'average_precision': 0.8333333333333333}
    """
    import numpy as np
    from sklearn.metrics import average_precision_score

    target_NxC = np.asarray(targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a label without a positive target
        return {"average_precision": float(average_precision_score(target_NxC, np.asarray(predictions)))}


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


def is_matrix(targets: Sequence) -> bool:
    """True for 0/1 rows, False for labels."""
    return hasattr(targets[0], "__len__") and not isinstance(targets[0], str | bytes)


def class_names(predictions: Labels, targets: Labels, labels: Labels | None) -> list:
    """The labels in order: those given, or those that occur, sorted."""
    if labels is not None:
        if strange := [t for t in dict.fromkeys(targets) if t not in set(labels)]:
            raise UserError(f"the target {strange[0]!r} is none of the labels: {', '.join(map(str, labels))}")
        return list(labels)
    classes = set(targets) | (set(predictions) - set(UNPARSEABLE))
    try:
        return sorted(classes)
    except TypeError:
        raise UserError(f"labels are of one type, not {classes!r}; `labels` gives their order") from None


def _ids(targets: Labels, predictions: Labels, labels: Labels | None) -> tuple[np.ndarray, np.ndarray]:
    """Class ids of targets and predictions, in the order of scikit-learn's arguments; −1 is unparseable."""
    import numpy as np

    index = {label: i for i, label in enumerate(class_names(predictions, targets, labels))}
    return np.array([index[t] for t in targets]), np.array([index.get(p, -1) for p in predictions])


def _averaged_f1(predictions: Sequence, targets: Sequence, labels: Labels | None, average: str) -> float:
    import numpy as np
    from sklearn.metrics import f1_score

    options: dict[str, Any] = {"average": average, "zero_division": 0}
    if is_matrix(targets):
        targets_NxC, predictions_NxC = np.asarray(targets), np.asarray(predictions)
        if targets_NxC.shape[1] == 1:  # scikit-learn takes one column for two classes
            options["average"] = "binary"
        return float(f1_score(targets_NxC, predictions_NxC, **options))
    ids = range(len(class_names(predictions, targets, labels)))
    return float(f1_score(*_ids(targets, predictions, labels), labels=ids, **options))
