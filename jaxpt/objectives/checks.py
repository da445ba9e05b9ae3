"""What an objective's methods return: messages about what does not fit, where it is someone's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxpt.errors import UserError
from jaxpt.models.moe import ROUTERS
from jaxpt.models.network import Head, Network


def check_type(kind: str, method: str, returned: Any, expected: type) -> None:
    """Raises UserError where a method of an objective does not return what it has to.

    Args:
      kind: of the objective.
      method: its name.
      returned: what it returned.
      expected: the class of such values.
    """
    if not isinstance(returned, expected):
        name = f"{expected.__name__} of {expected.__module__}"
        raise UserError(f"objective.kind: {kind}: {method} must return {name}, it returns {_form(returned)}")


def check_sums(kind: str, method: str, returned: Any, count: int = 2) -> None:
    """Raises UserError where a method of an objective does not return sums and metrics.

    Args:
      kind: of the objective.
      method: its name.
      returned: what it returned.
      count: 2, or 3 with the next carry.
    """
    where = f"objective.kind: {kind}: {method}"
    is_tuple = isinstance(returned, tuple)
    if not is_tuple or len(returned) != count or not all(isinstance(x, Mapping) for x in returned[:2]):
        got = f"({', '.join(map(_form, returned))})" if is_tuple else _form(returned)
        expected = "({part: Σ loss}, {metric: (Σ value, Σ weight)}" + (", next carry)" if count == 3 else ")")
        raise UserError(f"{where} must return {expected}, it returns {got}")
    _check_numbers(where, returned[0])
    for name, pair in returned[1].items():
        if ROUTERS in name:  # arrays, of the model itself
            continue
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_number, pair)):
            got = f"({', '.join(map(_form, pair))})" if isinstance(pair, tuple) else _form(pair)
            raise UserError(f"{where}: the metric {name!r} must be (Σ value, Σ weight), two numbers; it is {got}")


def check_parts(kind: str, coefficients: Any, sums: Mapping[str, Any], weights: Any) -> None:
    """Raises UserError where a part of the loss is missing in what it returns, has no weight that it is divided by,
    or has no coefficient, which would then be 1.

    Args:
      kind: of the objective.
      coefficients: what `coefficients` returns.
      sums: Σ loss of each part.
      weights: what `weights` returns.
    """
    for method, numbers in (("coefficients", coefficients), ("weights", weights)):
        _check_numbers(f"objective.kind: {kind}: {method}", numbers)
    for part in coefficients:
        for name, numbers in (("loss", sums), ("weights", weights)):
            if part not in numbers:
                raise UserError(
                    f"objective.kind: {kind}: coefficients has the part {part!r}, but {name} returns "
                    f"{', '.join(map(repr, numbers)) or 'none'}"
                )
    if others := [part for part in weights if part in sums and part not in coefficients]:
        raise UserError(f"objective.kind: {kind}: weights has the part {others[0]!r}, but coefficients does not")


def check_heads(kind: str, heads: Any) -> None:
    """Raises UserError where `heads` of an objective returns something else than heads by name."""
    where = f"objective.kind: {kind}: heads"
    if not isinstance(heads, Mapping):
        raise UserError(f"{where} must return {{name: Head}}, it returns {_form(heads)}")
    for name, head in heads.items():
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
