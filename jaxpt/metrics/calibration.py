"""How far probabilities can be trusted, and what makes them better: a temperature, thresholds. N examples, C classes.

Papers: https://arxiv.org/abs/1706.04599 (temperature scaling, expected calibration error); smoothed targets: Platt,
"Probabilistic outputs for support vector machines" (1999)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxpt.metrics.confusion import negative_log_softmax

if TYPE_CHECKING:
    import numpy as np

MIN_ROWS = 50
"""Rows from which a temperature is fitted."""
MIN_LABELLED = 10
"""Rows with a label, and rows without it, from which its threshold is fitted."""
BINS = 15
_LIMITS = (0.05, 20.0)  # temperatures beyond these are no calibration


class ReliabilityBin(NamedTuple):
    """Predictions of about the same probability."""

    confidence: float
    """Mean probability of the predicted label."""
    accuracy: float
    """Share that is right."""
    count: int


def fit_temperature(logits_NxC: np.ndarray, targets: Sequence[int]) -> float:
    """The temperature T that makes the cross-entropy of softmax(logits / T) and the targets least.

    A target has the probability (N + 1) / (N + 2), and the other classes share the rest, as in Platt's scaling: N rows
    that are all right do not show that a prediction is certain.

    Args:
      logits_NxC: outputs of the head.
      targets: class ids [N].

    Example:
      >>> import numpy as np
      >>> logits = np.array([[4.0, 0.0]] * 98)  # p = 0.98; all right: the best p is 99 / 100, T = 4 / log 99
      >>> round(fit_temperature(logits, [0] * 98), 3)
      0.87
    """
    import numpy as np
    from scipy.optimize import minimize_scalar

    rows, classes = logits_NxC.shape
    p_NxC = np.full((rows, classes), 1 / ((rows + 2) * max(classes - 1, 1)))
    p_NxC[np.arange(rows), np.asarray(targets)] = (rows + 1) / (rows + 2)

    def loss(log_temperature: float) -> float:
        return float((p_NxC * negative_log_softmax(logits_NxC / np.exp(log_temperature))).sum(-1).mean())

    return float(np.exp(minimize_scalar(loss, bounds=tuple(np.log(_LIMITS)), method="bounded").x))


def reliability(confidences: Sequence[float], is_correct: Sequence[bool], bins: int = BINS) -> list[ReliabilityBin]:
    """Accuracy against confidence, in bins of equal width; empty bins are left out.

    Args:
      confidences: probability of the predicted label, [N].
      is_correct: whether it is right, [N].
      bins: their number.

    Example:
      >>> reliability([0.95, 0.99, 0.3], [True, False, False], bins=2)
      [ReliabilityBin(confidence=0.3, accuracy=0.0, count=1), ReliabilityBin(confidence=0.97, accuracy=0.5, count=2)]
    """
    import numpy as np

    p, right = np.asarray(confidences, np.float64), np.asarray(is_correct, np.float64)
    index = np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)
    chosen = [index == number for number in range(bins) if (index == number).any()]
    return [ReliabilityBin(float(p[mask].mean()), float(right[mask].mean()), int(mask.sum())) for mask in chosen]


def expected_calibration_error(confidences: Sequence[float], is_correct: Sequence[bool], bins: int = BINS) -> float:
    """Mean distance of confidence and accuracy over the bins, each with the share of its rows.

    Example:
      >>> round(expected_calibration_error([0.9, 0.9], [True, False]), 6)
      0.4
    """
    rows_by_bin = reliability(confidences, is_correct, bins)
    total = sum(bin.count for bin in rows_by_bin)
    return sum(bin.count * abs(bin.confidence - bin.accuracy) for bin in rows_by_bin) / total if total else 0.0


def fit_threshold(p: Sequence[float], is_labelled: Sequence[bool]) -> float | None:
    """The threshold of a label above which F1 is largest, halfway between two probabilities.

    Args:
      p: probability of the label, [N].
      is_labelled: whether a row has it, [N].

    Returns:
      None where fewer than `MIN_LABELLED` rows have the label, or have it not.

    Example:
      >>> p = [0.1] * 10 + [0.3] * 10
      >>> fit_threshold(p, [False] * 10 + [True] * 10), fit_threshold(p, [False] * 19 + [True])
      (0.2, None)
    """
    import numpy as np

    order = np.argsort(-np.asarray(p, np.float64), kind="stable")
    p_N, target_N = np.asarray(p, np.float64)[order], np.asarray(is_labelled, np.float64)[order]
    if min(target_N.sum(), len(target_N) - target_N.sum()) < MIN_LABELLED:
        return None
    f1_N = 2 * target_N.cumsum() / (np.arange(1, len(p_N) + 1) + target_N.sum())
    below_N = np.append(p_N[1:], 0.0)
    best = int(np.where(below_N < p_N, f1_N, -1.0).argmax())  # equal probabilities are on one side
    return float(np.clip((p_N[best] + below_N[best]) / 2, 1e-6, 1 - 1e-6))
