"""Tables of cells as text: printed as Markdown, saved as JSON, drawn on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A table."""

    title: str
    heads: tuple[str, ...]
    numeric: tuple[int, ...]
    """Columns of numbers."""
    rows: tuple[tuple[str, ...], ...]


def markdown(table: Table) -> str:
    """A table as Markdown, without its title.

    Example:
      >>> print(markdown(Table("losses", ("run", "loss"), (1,), (("a|b", "2.1"),))))
      | run | loss |
      | --- | ---: |
      | a/b | 2.1 |
    """
    marks = ["---:" if column in table.numeric else "---" for column in range(len(table.heads))]
    return "\n".join(map(_line, (table.heads, marks, *table.rows)))


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(part.replace('|', '/') for part in parts)} |"
