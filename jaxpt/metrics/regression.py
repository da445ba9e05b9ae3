"""Metrics of numbers (SciPy)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxpt.errors import UserError
from jaxpt.metrics.base import metric


@metric(targets=("number",), constant="mean")
def pearson(predictions: Sequence[float], targets: Sequence[float]) -> dict[str, float]:
    """Pearson's linear correlation; 0, not NaN, where all predictions or all targets are equal.

    Example:
      >>> pearson([1, 2, 3], [3, 3, 3])
      {'pearson': 0.0}
    """
    from scipy.stats import pearsonr

    if _constant(predictions) or _constant(targets):
        return {"pearson": 0.0}
    return {"pearson": float(pearsonr(targets, predictions)[0])}


@metric(targets=("number",), constant="mean")
def spearman(predictions: Sequence[float], targets: Sequence[float]) -> dict[str, float]:
    """Spearman's rank correlation; equal numbers share their mean rank. 0, not NaN, as `pearson`.

    Example:
      >>> spearman([1, 2, 9], [1, 4, 5])
      {'spearman': 1.0}
    """
    from scipy.stats import spearmanr

    if _constant(predictions) or _constant(targets):
        return {"spearman": 0.0}
    return {"spearman": float(spearmanr(targets, predictions)[0])}


@metric(targets=("number",), unit="number", lower_is_better=True, constant="mean")
def mse(predictions: Sequence[float], targets: Sequence[float]) -> dict[str, float]:
    """Mean squared error.

    Example:
      >>> mse([1.0, 2.0], [1.0, 4.0])
      {'mse': 2.0}
    """
    for values in (predictions, targets):
        _check_finite(values)
    return {"mse": sum((float(p) - float(t)) ** 2 for p, t in zip(predictions, targets)) / len(targets)}


def _constant(values: Sequence[float]) -> bool:
    _check_finite(values)
    return all(value == values[0] for value in values)


def _check_finite(values: Sequence[float]) -> None:
    for row, value in enumerate(values):
        if not math.isfinite(value):
            raise UserError(f"row {row}: {value} is no finite number")
