"""Where a classifier is wrong: the loss of its outputs, and lines for the terminal. N examples, C classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxpt.metrics.classification import Labels, class_names

if TYPE_CHECKING:
    import numpy as np

MOST = 12
"""Classes of a matrix that is shown; of more classes the most frequent mistakes are."""
WIDTH = 100
"""Columns of a matrix that is shown: a line of one with long names would be broken into several."""


def negative_log_softmax(logits: np.ndarray) -> np.ndarray:
    """−log softmax over the last axis, in float64.

    Example:
      >>> import numpy as np
      >>> np.exp(-negative_log_softmax(np.log([3.0, 1.0]))).round(6).tolist()
      [0.75, 0.25]
    """
    import numpy as np

    logits = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.log(np.exp(logits).sum(-1, keepdims=True)) - logits


def confusions(predictions: Sequence[int], targets: Sequence[int], names: Sequence[str]) -> list[str]:
    """The confusion matrix; of more than `MOST` classes, or wider than `WIDTH`, the most frequent mistakes alone.

    Args:
      predictions: class ids [N]; −1 is none.
      targets: class ids [N].
      names: of the classes, [C].

    Returns:
      Lines.

    Example:
      >>> letters = [chr(97 + n) for n in range(20)]
      >>> confusions([1, 1, 3, -1], [0, 0, 3, 5], letters)
      ['most frequent mistakes of 3, target → predicted:', '       2  a → b', '       1  f → (none)']
    """
    counts = confusion_matrix(predictions, targets, range(len(names)))
    if len(names) <= MOST and len((lines := table(counts, names))[0]) <= WIDTH:
        return lines
    named = [*names, "(none)"]
    wrong = [(-int(counts[t, p]), t, p) for t, p in zip(*counts.nonzero()) if t != p]
    head = f"most frequent mistakes of {-sum(count for count, *_ in wrong):,}, target → predicted:"
    return [head, *(f"{-count:8,}  {named[t]} → {named[p]}" for count, t, p in sorted(wrong)[:MOST])]


def label_errors(
    predictions: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], names: Sequence[str]
) -> list[str]:
    """How often each of several labels of an example was right, missed, and predicted without being there.

    Args:
      predictions: 0/1 [N, C].
      targets: as predictions.
      names: of the labels, [C].

    Returns:
      Lines; of more than `MOST` labels those with the most mistakes alone.

    Example:
      >>> print("\\n".join(label_errors([[1, 0], [1, 1]], [[1, 1], [0, 1]], ["joy", "anger"])))
      label  right  missed  false
      joy        1       0      1
      anger      1       1      0
    """
    import numpy as np

    predicted_NxC, target_NxC = np.array(predictions, bool), np.array(targets, bool)
    counts = [
        (x & y).sum(0)
        for x, y in ((predicted_NxC, target_NxC), (~predicted_NxC, target_NxC), (predicted_NxC, ~target_NxC))
    ]
    lines = list(zip(names, *counts))
    if len(lines) > MOST:
        lines = sorted(lines, key=lambda line: -(line[2] + line[3]))[:MOST]
    width = max(map(len, ["label", *names]))
    head = f"{'label'.ljust(width)}  right  missed  false"
    return [head, *(f"{name.ljust(width)}  {right:5}  {missed:6}  {false:5}" for name, right, missed, false in lines)]


def confusion_matrix(predictions: Labels, targets: Labels, labels: Labels) -> np.ndarray:
    """Counts of each pair of a target (row) and a prediction (column).

    Args:
      predictions: [N].
      targets: [N], each one of the labels.
      labels: C names in the order of rows and columns.

    Returns:
      int64 [C, C]; [C, C + 1] where some predictions are none of the labels: the last column counts them.

    Raises:
      UserError: a target is none of the labels.

    Example:
      >>> confusion_matrix(["a", "b", "b"], ["a", "a", "b"], ["a", "b"])
      array([[1, 1],
             [0, 1]])
    """
    import numpy as np

    index = {label: i for i, label in enumerate(class_names(predictions, targets, labels))}
    counts = np.zeros((len(labels), len(labels) + 1), np.int64)
    for p, t in zip(predictions, targets, strict=True):
        counts[index[t], index.get(p, len(labels))] += 1
    return counts if counts[:, -1].any() else counts[:, :-1]


def table(counts: np.ndarray, labels: Labels) -> list[str]:
    """Lines of a confusion matrix for the terminal: a row for each target, a column for each prediction.

    Example:
      >>> print("\\n".join(table([[10, 1], [0, 2]], ["no", "yes"])))
      target ↓   no  yes ← predicted
      no         10    1
      yes         0    2
    """
    names = [str(label) for label in labels]
    columns = [*names, "(none)"][: len(counts[0])]
    first = max(map(len, ["target ↓", *names]))
    widths = [max(5, len(name) + 2, *(len(str(row[i])) + 2 for row in counts)) for i, name in enumerate(columns)]
    head = "".join(name.rjust(width) for name, width in zip(columns, widths))
    rows = ["".join(str(count).rjust(width) for count, width in zip(row, widths)) for row in counts]
    return [f"{'target ↓'.ljust(first)}{head} ← predicted", *(n.ljust(first) + r for n, r in zip(names, rows))]
