"""Grids and seeds of a study: each row becomes a run for every combination of values and every seed."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from jaxpt.config.plain import leaves

_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
Point = tuple[tuple[str, str], ...]
"""A combination of a grid: (key, value as JSON) for each of its keys."""


def _grid(grid: Any) -> Any:
    """A mapping of keys to lists as pairs of a key and its values as JSON."""
    if isinstance(grid, tuple):
        return grid
    if not isinstance(grid, dict):
        raise ValueError("wants keys with lists of values, such as {optimizer.learning_rate: [1.0e-3, 3.0e-4]}")
    pairs = list(leaves(grid))
    for key, values in pairs:
        if not isinstance(values, list) or not values:
            raise ValueError(f"{key} wants a list of values, got {json.dumps(values)}")
        if len({json.dumps(choice) for choice in values}) < len(values):
            raise ValueError(f"{key}: a value stands there twice: {json.dumps(values)}")
    return tuple((key, tuple(json.dumps(choice, ensure_ascii=False) for choice in values)) for key, values in pairs)


_LISTS = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
Grid = Annotated[tuple[tuple[str, tuple[str, ...]], ...], BeforeValidator(_grid), WithJsonSchema(_LISTS)]


def points(grid: Grid) -> list[Point]:
    """The combinations of a grid; a single empty one without keys.

    Example:
      >>> points((("seed", ("1", "2")), ("train.steps", ("5",))))
      [(('seed', '1'), ('train.steps', '5')), (('seed', '2'), ('train.steps', '5'))]
    """
    return list(itertools.product(*([(key, choice) for choice in values] for key, values in grid)))


def overrides(point: Point) -> tuple[str, ...]:
    """A combination as the words of a command line.

    Example:
      >>> overrides((("train.steps", "5"),))
      ('train.steps=5',)
    """
    return tuple(f"{key}={choice}" for key, choice in point)


def labels(grid: Grid) -> dict[str, str]:
    """A short name of each key: its last word, or the whole key where two end alike.

    Example:
      >>> labels((("optimizer.learning_rate", ("1",)), ("model.dropout", ("0",))))
      {'optimizer.learning_rate': 'learning_rate', 'model.dropout': 'dropout'}
    """
    ends = [key.rpartition(".")[2] for key, _ in grid]
    return {key: end if ends.count(end) == 1 else key for (key, _), end in zip(grid, ends)}


def run_name(row: str, point: Point, seed: int | None, names: Mapping[str, str]) -> str:
    """The name of a row's run, which is also its directory.

    Args:
      row: name of the row.
      point: its values of the grid.
      seed: its seed; None if the study has no seeds.
      names: of the keys, from `labels`.

    Example:
      >>> run_name("gpt2", (("optimizer.learning_rate", "0.001"),), 1, {"optimizer.learning_rate": "learning_rate"})
      'gpt2-learning_rate=0.001-seed=1'
    """
    parts = [f"{names[key]}={_UNSAFE.sub('_', choice)}".replace("=_", "=").rstrip("_") for key, choice in point]
    return "-".join([row, *parts, *([] if seed is None else [f"seed={seed}"])])


def combinations(grid: Grid, seeds: Sequence[int]) -> Iterator[tuple[Point, int | None]]:
    """Every combination of a grid with every seed; the seed is None where there are none.

    Example:
      >>> list(combinations((("train.steps", ("5",)),), [0, 1]))
      [((('train.steps', '5'),), 0), ((('train.steps', '5'),), 1)]
    """
    return itertools.product(points(grid), seeds or (None,))
