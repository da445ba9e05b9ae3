"""Metrics: pure functions of predictions and targets, computed by the libraries with which scores are published.

`score("matthews", predictions, targets)`; `known()` lists the names. Values are fractions from 0 to 1 (correlations
from −1), but percentages where the official scorer prints these: see `in_percent`.
"""

from jaxpt.metrics.classification import confusion, table
from jaxpt.metrics.errors import confusions, label_errors, negative_log_softmax
from jaxpt.metrics.majority import majority
from jaxpt.metrics.registry import (
    check_options,
    find,
    in_percent,
    is_mean,
    known,
    options_of,
    resolve,
    score,
    selection_value,
    settable,
    signature,
    values,
)
from jaxpt.metrics.tagging import scheme_of

__all__ = [
    "check_options", "confusion", "confusions", "find", "in_percent", "is_mean", "known", "label_errors", "majority",
    "negative_log_softmax", "options_of", "resolve", "scheme_of", "score", "selection_value", "settable", "signature",
    "table", "values",
]  # fmt: skip
