"""Metrics: pure functions of predictions and targets, computed by the libraries with which scores are published.

`score("matthews", predictions, targets)`; `METRICS` has their descriptions by name. See README.md for their units.
"""

from jaxpt.metrics.base import (
    METRICS,
    Metric,
    Targets,
    check_targets,
    check_value_names,
    describe,
    find,
    in_percent,
    metric,
    of_targets,
    of_value,
)
from jaxpt.metrics.confusion import confusion_matrix, confusions, label_errors, negative_log_softmax, table
from jaxpt.metrics.majority import majority
from jaxpt.metrics.registry import check_options, language_of, options_of, resolve, score, settable
from jaxpt.metrics.tagging import scheme_of
from jaxpt.metrics.text import reference_count

__all__ = [
    "METRICS", "Metric", "Targets", "check_options", "check_targets", "check_value_names", "confusion_matrix",
    "confusions", "describe", "find", "in_percent", "label_errors", "language_of", "majority", "metric",
    "negative_log_softmax", "of_targets", "of_value", "options_of", "reference_count", "resolve", "scheme_of", "score",
    "settable", "table",
]  # fmt: skip
