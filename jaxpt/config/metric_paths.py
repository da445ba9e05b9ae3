"""Metrics that are functions of other people's modules, named by dotted path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxpt.config.kinds import import_failure
from jaxpt.errors import UserError
from jaxpt.metrics import METRICS, Metric
from jaxpt.metrics.base import one_of
from jaxpt.runtime import plugins


def register(names: Iterable[str]) -> None:
    """Adds the functions among some metrics to `METRICS`, under their dotted paths; their modules are imported.

    Nothing is imported within `plugins.unread`.

    Args:
      names: of metrics; those without a dot are skipped.

    Raises:
      UserError: a module cannot be imported, or has no such metric.
    """
    for name in names:
        if "." in name and name not in METRICS and not plugins.are_unread():
            METRICS[name] = _imported(name)


def _imported(path: str) -> Metric:
    """The metric that a function is, under its dotted path."""
    module, _, function_name = path.rpartition(".")
    try:
        functions = vars(plugins.import_module(module, "metrics"))
    except Exception as error:  # whatever anyone's module raises
        raise UserError(f"{path}: {import_failure(module, error)}") from error
    if not callable(function := functions.get(function_name)):
        names = [name for name, member in functions.items() if hasattr(member, "metric")]
        raise UserError(f"{path}: module {module} has no function {function_name}{one_of(function_name, names)}")
    if not isinstance(described := getattr(function, "metric", None), Metric):
        example = '@jaxpt.metrics.metric(targets=("label",))'
        raise UserError(f"{path}: the function is not described as a metric; decorate it: {example}")
    return dataclasses.replace(described, name=path)
