"""Charts of a page as one picture for slides and READMEs."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpt.report.page.charts import FEW_POINTS, Chart, Dots, apart, axis, drawn, is_drawable
from jaxpt.runtime.disk import write_bytes
from jaxpt.study.pictures import COLOURS, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 5.6, 3.3  # inches of a chart
_LINE = 13.0  # height of a name, in pixels at 100 dpi
_MOST_LETTERS = 22
_TITLE = 64  # letters of a line: it begins where the axes do


def draw(title: str, charts: Sequence[Chart | Dots], path: Path) -> None:
    """Draws charts beside and below each other; the file is the old or the new one, never half of it.

    Args:
      title: stands above them.
      charts: those without a finite point are left out.
      path: ends in .png or .svg.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = [chart for chart in charts if is_drawable(chart)]
    columns = min(len(charts), 3 if len(charts) > 4 else 2)
    lines = -(-len(charts) // columns)
    with matplotlib.rc_context({"svg.hashsalt": "jaxpt", "font.size": 8.5, "text.parse_math": False}):
        figure = Figure(figsize=(columns * _WIDTH, lines * _HEIGHT + 0.6), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
        figure.suptitle(textwrap.fill(title, 60 * columns), x=0.01, ha="left", fontsize=12)
        # Figures of their own: names of rows in one chart take no room from those above and below it.
        grid = [cell.subplots() for cell in list(figure.subfigures(lines, columns, squeeze=False).flat)[: len(charts)]]
        named = [_chart(axes, chart) for axes, chart in zip(grid, charts)]
        figure.draw_without_rendering()  # sizes are known from here on
        for axes, ends in zip(grid, named):
            _name(axes, ends)
        file = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(file, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_bytes(path, file.getvalue())


def _chart(axes: Axes, chart: Chart | Dots) -> list[tuple[str, str, float, float]]:
    """Draws the curves; returns (name, colour, x, y) of the end of each."""
    if isinstance(chart, Dots):
        _dots(axes, chart)
        return []
    series, x, y = drawn(chart)
    ends = []
    for curve in series:
        colour = COLOURS[curve.colour % len(COLOURS)]
        if curve.is_reference:
            axes.axhline(curve.y[0], color=colour, linewidth=0.9, linestyle="--")
        else:
            dash = DASHES[curve.colour // len(COLOURS) % len(DASHES)]
            style = (0, tuple(map(float, dash.split()))) if dash else "-"
            marker = "o" if len(curve.x) <= FEW_POINTS and not curve.is_faint else None
            axes.plot(curve.x, curve.y, color=colour, markersize=3, linewidth=0.8 if curve.is_faint else 1.7,
                      linestyle=style, marker=marker, alpha=0.45 if curve.is_faint else 1.0)  # fmt: skip
        if not curve.is_faint and curve.name:
            name = curve.name if len(curve.name) <= _MOST_LETTERS else f"{curve.name[: _MOST_LETTERS - 1]}…"
            ends.append((name, colour, x.high if curve.is_reference else curve.x[-1], curve.y[-1]))
    if y.is_log:
        axes.set_yscale("log")
    axes.set(xlim=(x.low, x.high), ylim=(y.low, y.high), xlabel=chart.x)
    axes.set_xticks(x.ticks, [x.named(tick) for tick in x.ticks])
    axes.set_yticks(y.ticks, [y.named(tick) for tick in y.ticks])
    axes.minorticks_off()
    note = f"\n{chart.note}" if chart.note else ""
    axes.set_title(textwrap.fill(chart.title, _TITLE) + note, loc="left", fontsize=9.5)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    letters = max((len(name) for name, *_ in ends), default=0)
    axes.annotate("m" * round(letters * 0.62), (1.02, 0.5), xycoords="axes fraction", alpha=0)  # room for the names
    return ends


def _dots(axes: Axes, chart: Dots) -> None:
    """A line for each row: its values as dots, and a tick at their mean."""
    across = axis([value for row in chart.rows for value in row.values], 4)
    for y, row in enumerate(chart.rows):
        colour = COLOURS[row.colour % len(COLOURS)]
        axes.plot(row.values, [y] * len(row.values), "o", color=colour, alpha=0.55, markersize=5)
        axes.plot([sum(row.values) / len(row.values)], [y], "|", color=colour, markersize=14, markeredgewidth=2)
    axes.set(xlim=(across.low, across.high), ylim=(len(chart.rows) - 0.5, -0.5), xlabel=chart.x)
    axes.set_xticks(across.ticks, [across.named(tick) for tick in across.ticks])
    axes.set_yticks(range(len(chart.rows)), [row.name for row in chart.rows])
    axes.set_title(textwrap.fill(chart.title, _TITLE), loc="left", fontsize=9.5)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _name(axes: Axes, ends: Sequence[tuple[str, str, float, float]]) -> None:
    """Writes the names at the ends of the curves, apart from each other."""
    if not ends:
        return
    to_pixels, box = axes.transData.transform, axes.get_window_extent()
    places = [to_pixels((x, y)) for *_, x, y in ends]
    rows = apart([float(at[1]) for at in places], _LINE, box.y0, box.y1)
    for (name, colour, x, y), at, row in zip(ends, places, rows):
        height = (row - box.y0) / box.height
        axes.annotate(name, (1.02, height), xycoords="axes fraction", color=colour, va="center", weight="bold")
        if abs(at[1] - row) > 3 or box.x1 - at[0] > 8:
            line = {"arrowstyle": "-", "color": colour, "linestyle": ":", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
            where = {"xycoords": "axes fraction", "textcoords": "data", "annotation_clip": False}
            axes.annotate("", (1.015, height), (x, y), arrowprops=line, **where)
