"""What a loss returns: messages about what does not fit, where it is someone's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxpt.errors import UserError
from jaxpt.models.network import Head, Network
from jaxpt.models.output import Output


def check_sums(kind: str, method: str, found: Any, count: int = 2) -> None:
    """Raises UserError where a method of `Loss` does not return sums and metrics.

    Args:
      kind: of the objective.
      method: its name.
      found: what it returned.
      count: 2, or 3 with the next carry.
    """
    where = f"objective.kind: {kind}: Loss.{method}"
    if not isinstance(found, tuple) or len(found) != count or not all(isinstance(x, Mapping) for x in found[:2]):
        got = f"({', '.join(map(_form, found))})" if isinstance(found, tuple) else _form(found)
        expected = "({part: Σ loss}, {metric: (Σ value, Σ weight)}" + (", next carry)" if count == 3 else ")")
        raise UserError(f"{where} must return {expected}, it returns {got}")
    _check_numbers(where, found[0])
    for name, pair in found[1].items():
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_number, pair)):
            got = f"({', '.join(map(_form, pair))})" if isinstance(pair, tuple) else _form(pair)
            raise UserError(f"{where}: the metric {name!r} must be (Σ value, Σ weight), two numbers; it is {got}")


def check_parts(kind: str, coefficients: Any, sums: Mapping[str, Any], weights: Any) -> None:
    """Raises UserError where a part of the loss is missing in what it returns, or has no weight that it is divided by.

    Args:
      kind: of the objective.
      coefficients: what `Loss.coefficients` returns.
      sums: Σ loss of each part.
      weights: what `Loss.weights` returns.
    """
    for method, numbers in (("coefficients", coefficients), ("weights", weights)):
        _check_numbers(f"objective.kind: {kind}: Loss.{method}", numbers)
    for part in coefficients:
        for name, numbers in (("the loss", sums), ("Loss.weights", weights)):
            if part not in numbers:
                raise UserError(
                    f"objective.kind: {kind}: Loss.coefficients has the part {part!r}, but {name} returns "
                    f"{', '.join(map(repr, numbers)) or 'none'}"
                )


def check_part(kind: str, name: str, found: Any, base: type) -> None:
    """Raises UserError where a property of an objective is not the component that it has to be.

    Args:
      kind: of the objective.
      name: of the property.
      found: what it returned.
      base: the class of such components.
    """
    if not isinstance(found, base):
        expected = f"a {base.__name__} of {base.__module__}"
        raise UserError(f"objective.kind: {kind}: {name} must return {expected}, it returns {_form(found)}")


def check_output(kind: str, found: Any) -> None:
    """Raises UserError where `Loss.output` returns something else than an `Output`.

    Args:
      kind: of the objective.
      found: what it returned.
    """
    if not isinstance(found, Output):
        raise UserError(f"objective.kind: {kind}: Loss.output must return a model's Output, it returns {_form(found)}")


def check_heads(kind: str, found: Any) -> None:
    """Raises UserError where `Loss.heads` returns something else than heads by name.

    Args:
      kind: of the objective.
      found: what it returned.
    """
    where = f"objective.kind: {kind}: Loss.heads"
    if not isinstance(found, Mapping):
        raise UserError(f"{where} must return {{name: Head}}, it returns {_form(found)}")
    for name, head in found.items():
        if not isinstance(head, Head | Network):
            raise UserError(f"{where}: {name!r} must be a jaxpt.models.network.Head, it is {_form(head)}")


def _check_numbers(where: str, numbers: Any) -> None:
    if not isinstance(numbers, Mapping):
        raise UserError(f"{where} must return {{part: number}}, it returns {_form(numbers)}")
    for part, x in numbers.items():
        if not _is_number(x):
            raise UserError(f"{where}: {part!r} must be one number, summed over the batch; it is {_form(x)}")


def _is_number(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | int | float) and np.ndim(x) == 0


def _form(x: Any) -> str:
    return f"an array {list(np.shape(x))}" if hasattr(x, "shape") else type(x).__name__
