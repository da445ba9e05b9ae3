"""Where a classifier is wrong: the loss of its outputs, and lines for the terminal. N examples, C classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxpt.metrics.classification import confusion, table

if TYPE_CHECKING:
    import numpy as np

MOST = 12
"""Classes of a matrix that is shown; of more classes the most frequent mistakes are."""


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
    """The confusion matrix; of more than `MOST` classes the most frequent mistakes alone.

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
    counts = confusion(predictions, targets, range(len(names)))
    if len(names) <= MOST:
        return table(counts, names)
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
