"""Charts as SVG that takes its colours from the page: a curve comes forward, and a point says its value, under the
pointer. There is no script."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from html import escape
from itertools import accumulate

from jaxpt.study.charts import (
    FEW_POINTS,
    Axis,
    Chart,
    Dots,
    Series,
    axis,
    downsample,
    drawn,
    is_drawable,
    spread_labels,
)

# Okabe and Ito's colours, told apart under all common kinds of colour blindness; with more runs the line changes too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("", "8 3 2 3", "2 3")
WIDTH, HEIGHT = 460, 250
_LEFT, _TOP, _BOTTOM = 46, 10, 36
_LETTER, _LINE = 6.7, 13  # width of a letter, height of a line, at 11 px
_ROW = 22
_MOST_LETTERS = 22
_MOST_OF_A_LINE = 44  # letters of the name of a row; the rest is on lines below
_ENDING = 13  # letters that stay at the end of a longer name
_MOST_MARKS = 400  # of a chart, that answer to the pointer
_ON_DARK = ("#5fb0e8", "#ff9a57", "#2fcf9f", "#e59ac4", "#f0b73a", "#8fd0f5", "#e6e6e6")
_VARIABLES = (f"--c{n}: light-dark({light}, {dark});" for n, (light, dark) in enumerate(zip(COLOURS, _ON_DARK)))
STYLE = (
    f":root {{ {' '.join(_VARIABLES)} }}"
    + """
.charts { display: grid; gap: 1rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)) }
figure { margin: 0; break-inside: avoid } figcaption { font-size: .9rem; line-height: 1.35 }
figcaption small { opacity: .75 } figure svg { width: 100%; height: auto; display: block; overflow: visible }
svg text { font: 11px system-ui, sans-serif; fill: currentColor } svg .tick { opacity: .75 }
.grid { stroke: var(--line); stroke-width: 1 } .curve { fill: none; stroke-width: 2; stroke-linejoin: round }
.faint { stroke-width: 1; opacity: .45 } .reference { stroke-width: 1.2; stroke-dasharray: 5 4; opacity: .9 }
.run circle { fill: currentColor }
.leader { stroke-width: 1; stroke-dasharray: 1 3; opacity: .6 } svg .name { font-weight: 600 }
.curves:hover .run:not(:hover) { opacity: .25 } .mark circle { fill: transparent } .mark text { display: none }
.mark:hover circle { fill: currentColor; r: 3.5px } .mark:hover text { display: block }
.mark text, svg .name { paint-order: stroke; stroke: Canvas; stroke-width: 4px; stroke-linejoin: round }
"""
    + "".join(f".k{n} {{ color: var(--c{n}) }} " for n in range(len(COLOURS)))
    + ".curve, .leader { stroke: currentColor }"
)


def figure(chart: Chart | Dots) -> str:
    """A chart with its title.

    Args:
      chart: what to draw.

    Returns:
      HTML; "" where there is no finite point.
    """
    if not is_drawable(chart):
        return ""
    title, note = caption(chart)
    small = f"<br><small>{escape(note)}</small>" if note else ""
    return f"<figure><figcaption>{escape(title)}{small}</figcaption>{drawing(chart)}</figure>"


def caption(chart: Chart | Dots) -> tuple[str, str]:
    """(title, note) of a chart: plain text."""
    if isinstance(chart, Dots):
        return chart.title, ""
    return chart.title + (", logarithmic" if chart.is_log else ""), chart.note


def drawing(chart: Chart | Dots) -> str:
    """A chart that has a finite point, without its title: SVG."""
    return _dots(chart) if isinstance(chart, Dots) else _svg(chart)


@dataclasses.dataclass(frozen=True)
class _Frame:
    """Where values are on the picture."""

    x: Axis
    y: Axis
    right: float
    bottom: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        return _LEFT + self.x.at(x) * (self.right - _LEFT), self.bottom - self.y.at(y) * (self.bottom - _TOP)


def _svg(chart: Chart) -> str:
    series, x, y = drawn(chart)
    named = [curve for curve in series if curve.name and not curve.is_faint]
    letters = max((min(len(curve.name), _MOST_LETTERS) for curve in named), default=0)
    height = max(HEIGHT, _LINE * len(named) + _TOP + _BOTTOM)
    frame = _Frame(x, y, WIDTH - 12 - letters * _LETTER, height - _BOTTOM)
    lines = "".join(_line(curve, frame) for curve in series)
    answering = [curve for curve in series if not curve.is_reference and not curve.is_faint]
    x_form = ",.0f" if chart.x_kind == "count" else ".5g"
    marks = "".join(_marks(curve, frame, len(answering), x_form) for curve in answering)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(chart.title)}">{_grid(chart, frame)}'
        f'<g class="curves">{lines}{_names(named, frame)}</g>{marks}</svg>'
    )


def _grid(chart: Chart, frame: _Frame) -> str:
    """Horizontal lines, and the numbers of both axes."""
    parts = []
    for tick in frame.y.ticks:
        _, at = frame.place(frame.x.low, tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{frame.right:.1f}"/>')
        parts.append(_text(_LEFT - 6, at + 4, frame.y.named(tick), "tick", "end"))
    for tick in frame.x.ticks:
        at, _ = frame.place(tick, frame.y.low) if not frame.y.is_log else frame.place(tick, frame.y.high)
        parts.append(_text(at, frame.bottom + 15, frame.x.named(tick), "tick", "middle"))
    parts.append(_text((_LEFT + frame.right) / 2, frame.bottom + 31, chart.x, "tick", "middle"))
    return "".join(parts)


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    end = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{end}>{escape(words)}</text>'


def _line(curve: Series, frame: _Frame) -> str:
    kind = "curve" + " faint" * curve.is_faint + " reference" * curve.is_reference
    if curve.is_reference:
        x, at = frame.place(frame.x.low, curve.y[0])[0], frame.place(curve.x[-1], curve.y[-1])
        path = f"M{x:.1f} {at[1]:.1f}H{frame.right:.1f}"
    else:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in map(frame.place, curve.x, curve.y))
    dash = "" if curve.is_reference else DASHES[curve.colour // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    hidden = f'<path class="curve" d="{path}" style="stroke-width:12;opacity:0"/>' if not curve.is_faint else ""
    dots = ""
    # A line of one point would not be seen.
    if len(curve.x) <= FEW_POINTS and not curve.is_reference and not curve.is_faint:
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in map(frame.place, curve.x, curve.y))
    path = f'<path class="{kind}" d="{path}"{dashed}/>{hidden}{dots}'
    return f'<g class="run k{curve.colour % len(COLOURS)}">{path}</g>'


def _names(named: Sequence[Series], frame: _Frame) -> str:
    """The names at the ends of the curves, and a dotted line to those that had to move."""
    ends = [frame.place(curve.x[-1], curve.y[-1]) for curve in named]
    ends = [(frame.right if curve.is_reference else x, y) for curve, (x, y) in zip(named, ends)]
    parts = []
    for curve, (x, y), at in zip(named, ends, spread_labels([y for _, y in ends], _LINE, _TOP, frame.bottom)):
        short_name = _shortened(curve.name)
        path = ""
        if abs(at - y) > 3 or frame.right - x > 8:
            path = f'<path class="leader" d="M{x + 2:.1f} {y:.1f}L{frame.right + 4:.1f} {at:.1f}"/>'
        full = f"<title>{escape(curve.name)}</title>" if short_name != curve.name else ""
        label = _text(frame.right + 6, at + 4, short_name, "name")
        parts.append(f'<g class="run k{curve.colour % len(COLOURS)}">{path}{label}{full}</g>')
    return "".join(parts)


def _shortened(name: str) -> str:
    """A name of at most 22 letters. The middle is left out: the rows of a grid differ at the end of their names."""
    if len(name) <= _MOST_LETTERS:
        return name
    return f"{name[: _MOST_LETTERS - _ENDING - 1]}…{name[-_ENDING:]}"


def _marks(curve: Series, frame: _Frame, count: int, x_form: str) -> str:
    """Points that say their values under the pointer."""
    marks = []
    for x, y in downsample(list(zip(curve.x, curve.y)), max(8, min(40, _MOST_MARKS // count))):
        left, top = frame.place(x, y)
        anchor = "end" if left > (_LEFT + frame.right) / 2 else "start"
        words = f"{curve.name}: {y:.5g} at {x:{x_form}}".removeprefix(": ")
        tip = _text(left + (-8 if anchor == "end" else 8), max(top - 8, 12), words, "tip", anchor)
        marks.append(f'<g class="mark"><circle cx="{left:.1f}" cy="{top:.1f}" r="7"/>{tip}</g>')
    return f'<g class="k{curve.colour % len(COLOURS)}">{"".join(marks)}</g>'


def _dots(chart: Dots) -> str:
    """A line for each row: its name, its values as dots, a tick at their mean, and a bar of its standard error."""
    rows = chart.finite_rows
    names = [textwrap.wrap(row.name, _MOST_OF_A_LINE, break_on_hyphens=False) for row in rows]
    heights = [max(_ROW, _LINE * len(lines) + 6) for lines in names]
    right, bottom = WIDTH - 8, _TOP + sum(heights)
    left = 8 + _LETTER * max((len(line) for lines in names for line in lines), default=0)
    means = [sum(row.values) / len(row.values) for row in rows]
    spans = [(mean - (row.error or 0.0), mean + (row.error or 0.0)) for mean, row in zip(means, rows)]
    across = axis([value for row, span in zip(rows, spans) for value in (*row.values, *span)], 4)
    parts = []
    for tick in across.ticks:
        at = left + across.at(tick) * (right - left)
        parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
        parts.append(_text(at, bottom + 15, across.named(tick), "tick", "middle"))
    parts.append(_text((left + right) / 2, bottom + 31, chart.x, "tick", "middle"))
    middles = [top + height / 2 for top, height in zip(accumulate(heights, initial=_TOP), heights)]
    for row, lines, y, mean, span in zip(rows, names, middles, means, spans):
        places = [left + across.at(value) * (right - left) for value in row.values]
        middle, *ends = [left + across.at(value) * (right - left) for value in (mean, *span)]
        error = f" ± {row.error:.2g}" if row.error is not None else ""
        words = f"{mean:.4g}{error}: " + ", ".join(f"{value:.4g}" for value in row.values)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="opacity:.55"/>' for x in places)
        tick = f'<path class="curve" d="M{middle:.1f} {y - 8:.1f}v16"/>'
        if row.error:
            tick += f'<path class="curve" d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}"/>'
        first = y + 4 - _LINE * (len(lines) - 1) / 2
        name = "".join(_text(left - 8, first + _LINE * n, line, "tick", "end") for n, line in enumerate(lines))
        colour = f"run k{row.colour % len(COLOURS)}"
        parts.append(f'<g class="{colour}"><title>{escape(words)}</title>{tick}{dots}</g>{name}')
    svg = f'<svg viewBox="0 0 {WIDTH} {bottom + _BOTTOM}" role="img" aria-label="{escape(chart.title)}">'
    return f"{svg}{''.join(parts)}</svg>"
