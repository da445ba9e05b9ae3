"""Charts and tables as plain data. The names of curves stand at their ends, so that a chart needs no box for them.

`svg` draws them for a page, `pictures` puts these drawings into a file.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxpt.train.display import number

MOST_POINTS = 240
"""Of a drawn curve."""
FEW_POINTS = 12
"""Up to so many, each is a dot."""


@dataclasses.dataclass(frozen=True)
class Series:
    """A curve."""

    name: str
    """Stands at its end."""
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    """Number of the colour; curves of one run have the same in all charts."""
    is_faint: bool = False
    """Drawn thin, without a name: it belongs to another one of the same colour."""
    is_reference: bool = False
    """A level to compare with, dashed."""


@dataclasses.dataclass(frozen=True)
class Chart:
    """Some curves over the same axes."""

    title: str
    x: str
    """What is to the right, with its unit."""
    series: Sequence[Series]
    note: str = ""
    """Stands below the title."""
    may_be_log: bool = False
    """Draw y as logarithm where the curves lie orders of magnitude apart."""
    x_kind: Literal["count", "number"] = "count"
    """`count`: whole numbers from 0, as steps are; `number`: any, logarithmic where they differ by a factor of 10."""

    @property
    def is_log(self) -> bool:
        """True if y is drawn as logarithm: what is large of one curve would hide another one."""
        tops = [top for curve in self.series if (top := max(curve.y, default=0.0)) > 0]
        return self.may_be_log and bool(tops) and max(tops) > 20 * min(tops)


@dataclasses.dataclass(frozen=True)
class Row:
    """Values of one thing: of a model on a task, one for each seed."""

    name: str
    values: Sequence[float]
    colour: int = 0
    error: float | None = None
    """Standard error of their mean."""


@dataclasses.dataclass(frozen=True)
class Dots:
    """Values side by side, a line for each row, with its mean and what that is uncertain by."""

    title: str
    x: str
    rows: Sequence[Row]

    @property
    def finite_rows(self) -> list[Row]:
        """The rows with their finite values alone, and in their names how many others they have."""
        rows = []
        for row in self.rows:
            values = [value for value in row.values if math.isfinite(value)]
            others = len(row.values) - len(values)
            name = row.name + (f", {others} not finite" if others else "")
            error = row.error if row.error is not None and math.isfinite(row.error) else None
            if values:
                rows.append(Row(name, values, row.colour, error))
        return rows


class Table(NamedTuple):
    """A table of cells as text: printed as Markdown, saved as JSON, drawn on a page."""

    title: str
    heads: tuple[str, ...]
    numeric: tuple[int, ...]
    """Columns of numbers."""
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown, without its title.

        Example:
          >>> print(Table("losses", ("run", "loss"), (1,), (("a|b", "2.1"),)).markdown())
          | run | loss |
          | --- | ---: |
          | a/b | 2.1 |
        """
        marks = ["---:" if column in self.numeric else "---" for column in range(len(self.heads))]
        return "\n".join(map(_line, (self.heads, marks, *self.rows)))


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(part.replace('|', '/') for part in parts)} |"


@dataclasses.dataclass(frozen=True)
class Axis:
    """A range of values and its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        """Where a value is: 0 at the low end, 1 at the high one."""
        low, high, value = (math.log(x) if self.is_log else x for x in (self.low, self.high, value))
        return (value - low) / (high - low)

    def named(self, tick: float) -> str:
        """A tick as people read it.

        Example:
          >>> Axis(0, 2e6, (0.0, 1e6, 2e6)).named(1e6), Axis(0, 1, (0, 0.5, 1)).named(0.5)
          ('1M', '0.5')
          >>> Axis(0, 5000, (0, 2500, 5000)).named(2500), Axis(0, 1e-4, (0, 5e-5, 1e-4)).named(5e-5)
          ('2,500', '5e-5')
        """
        if abs(tick) >= 1e4 or (abs(tick) >= 1e3 and self.high >= 1e4):
            return number(tick)
        if tick and abs(tick) < 1e-3:
            return f"{tick:.3g}".replace("e-0", "e-")
        return f"{tick:,.6g}"


def is_drawable(chart: Chart | Dots) -> bool:
    """True if there is a finite point."""
    if isinstance(chart, Dots):
        return bool(chart.finite_rows)
    return any(math.isfinite(y) for curve in chart.series for y in curve.y)


def axis(values: Sequence[float], count: int = 5, is_log: bool = False, is_whole: bool = False) -> Axis:
    """An axis that holds some values.

    Args:
      values: at least one; all above 0 where the axis is logarithmic.
      count: about how many ticks.
      is_log: logarithmic.
      is_whole: ticks are whole numbers, as steps are.

    Example:
      >>> axis([0.13, 4.2]).ticks, axis([1e-5, 3e-3], is_log=True).ticks
      ((0.0, 1.0, 2.0, 3.0, 4.0), (1e-05, 0.0001, 0.001))
    """
    low, high = min(values), max(values)
    if is_log:
        return _log_axis(low, high)
    if low == high:
        low, high = (0.0, 2 * high or 1.0) if low >= 0 else (1.5 * low, 0.5 * high)
    if 0 < low < 0.25 * high:
        low = 0.0
    step = _nice((high - low) / count)
    step = max(math.ceil(step), 1) if is_whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    margin = 0.03 * (high - low)
    ticks = tuple(round(n * step, 12) for n in range(first, last + 1))
    return Axis(low if low == 0 else low - margin, high + margin, ticks)


def _nice(step: float) -> float:
    """The next of 1, 2, 2.5, 5 × 10ⁿ."""
    size = 10 ** math.floor(math.log10(step))
    return next(size * n for n in (1, 2, 2.5, 5, 10) if size * n >= step * (1 - 1e-9))


def _log_axis(low: float, high: float) -> Axis:
    low, high = low / 1.1, high * 1.1
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leading = (1,) if math.log10(high / low) > 2.5 else (1, 2, 5)
    ticks = [float(f"{n}e{decade}") for decade in decades for n in leading]
    return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), is_log=True)


def drawn(chart: Chart) -> tuple[list[Series], Axis, Axis]:
    """What is to be drawn: finite points alone, and not more than a screen can show.

    Args:
      chart: at least one of its series has a finite point.

    Returns:
      (series, x axis, y axis)
    """
    curves = []
    for curve in chart.series:
        points = [(x, y) for x, y in zip(curve.x, curve.y) if math.isfinite(y) and (y > 0 or not chart.is_log)]
        if points:
            x, y = zip(*downsample(points))
            curves.append(dataclasses.replace(curve, x=x, y=y))
    measured = [curve for curve in curves if not curve.is_reference] or curves
    xs = [x for curve in measured for x in curve.x]
    if chart.x_kind == "number":
        x_axis = axis(xs, is_log=min(xs) > 0 and max(xs) >= 10 * min(xs))
        x_axis = _with_ticks_at(xs, x_axis) if x_axis.is_log else x_axis
    else:
        x_axis = axis([0.0, *xs] if max(xs) > 0 else xs, is_whole=True)
    return curves, x_axis, axis([y for curve in curves for y in curve.y], is_log=chart.is_log)


def _with_ticks_at(values: Sequence[float], whole: Axis, gap: float = 0.12) -> Axis:
    """The axis with its ticks at the values, where they are few and lie apart, as those of a grid do; else as it is."""
    ticks = sorted(set(values))
    places = [whole.at(tick) for tick in ticks]
    is_apart = all(after - before >= gap for before, after in itertools.pairwise(places))
    return dataclasses.replace(whole, ticks=tuple(ticks)) if is_apart else whole


def downsample(points: Sequence[tuple[float, float]], limit: int = MOST_POINTS) -> list[tuple[float, float]]:
    """The lowest and the highest point of each stretch of a curve, and its ends.

    Example:
      >>> len(downsample([(x, x % 7) for x in range(10_000)])) <= MOST_POINTS
      True
    """
    if len(points) <= limit:
        return list(points)
    indices, stretches = {0, len(points) - 1}, limit // 2 - 1
    for n in range(stretches):
        stretch = range(n * len(points) // stretches, (n + 1) * len(points) // stretches)
        indices |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(indices)]


def spread_labels(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves places on a line so that they are a gap apart, each as little as can be.

    Args:
      places: where names belong.
      gap: their height.
      low: no name is below it.
      high: no name is above it, if there is room for all.

    Returns:
      The places, in the order of `places`.

    Example:
      >>> spread_labels([10, 11, 50], 12, 0, 100)
      [4.5, 16.5, 50.0]
    """
    order = sorted(range(len(places)), key=lambda n: places[n])
    groups: list[list[int]] = []
    tops: list[float] = []

    def top(group: Sequence[int]) -> float:
        """The first place of names that stand close together."""
        middle = sum(places[n] for n in group) / len(group) - gap * (len(group) - 1) / 2
        return max(low, min(middle, high - gap * (len(group) - 1)))

    for n in order:
        groups.append([n])
        tops.append(top([n]))
        while len(groups) > 1 and tops[-2] + gap * len(groups[-2]) > tops[-1]:
            last = groups.pop()
            tops.pop()
            groups[-1] += last
            tops[-1] = top(groups[-1])
    moved = {n: start + gap * i for group, start in zip(groups, tops) for i, n in enumerate(group)}
    return [moved[n] for n in range(len(places))]
