"""Tables on a terminal: columns without lines; cells are neither markup nor codes that a terminal obeys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jaxpt.errors import escaped

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH = 200
"""Columns where the output is a file, which has no width."""
NARROW = 100
"""A terminal with fewer columns has no room for a wide table."""


def console() -> Console:
    """Standard output as it is now."""
    from rich.console import Console

    output = Console(highlight=False, markup=False, emoji=False)
    if not output.is_terminal:
        output.width = FILE_WIDTH
    return output


def print_records(records: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Prints what a narrow terminal has no table for: a line with a name, and what is known of it below.

    Args:
      records: (name, what is known); empty texts are left out.
    """
    from rich.padding import Padding
    from rich.text import Text

    output = console()
    for name, values in records:
        output.print(Text(escaped(name), overflow="fold"))
        output.print(Padding(Text(escaped(", ".join(value for value in values if value))), (0, 0, 0, 2)))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> None:
    """Prints a table.

    Args:
      heads: of its columns; without any there is no line of them.
      rows: of cells.
      numeric: columns that stand to the right.
    """
    from rich.table import Table

    table = Table(*map(escaped, heads), box=None, pad_edge=False, show_header=any(heads))
    for column in numeric:
        table.columns[column].justify = "right"
    table.columns[0].overflow = "fold"  # a path stays whole
    for row in rows:
        table.add_row(*map(escaped, row))
    console().print(table)
