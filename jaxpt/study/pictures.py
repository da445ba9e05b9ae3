"""Charts as one picture for slides and READMEs: the page's SVG, drawn by matplotlib."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from jaxpt.errors import escaped
from jaxpt.runtime.disk import write_bytes
from jaxpt.study import svg
from jaxpt.study.charts import Chart, Dots, is_drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAP, _LINE, _MARGIN = 28, 15, 14  # pixels between charts, of a line of a title, and around all
_TITLE = 68  # letters of a line
_STYLES: dict[str, dict[str, Any]] = {
    "grid": {"color": "#888888", "alpha": 0.27, "linewidth": 0.8},
    "curve": {"linewidth": 1.5},
    "curve faint": {"linewidth": 0.8, "alpha": 0.45},
    "curve reference": {"linewidth": 0.9, "linestyle": (0, (5, 4)), "alpha": 0.9},
    "leader": {"linewidth": 0.8, "linestyle": (0, (1, 3)), "alpha": 0.6},
    "tick": {"alpha": 0.75, "color": "black"},
    "name": {"weight": "bold"},
}
"""Of the elements, by their classes."""


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

    pictures = [_read(chart) for chart in charts if is_drawable(chart)]
    columns = min(len(pictures), 3 if len(pictures) > 4 else 2)
    width = 2 * _MARGIN + columns * (svg.WIDTH + _GAP)
    title = textwrap.fill(title, 60 * columns)
    top = _MARGIN + 8 + 20 * (title.count("\n") + 1)
    rows = [pictures[n : n + columns] for n in range(0, len(pictures), columns)]
    height = top + _MARGIN + sum(max(map(_height, row)) for row in rows)
    with matplotlib.rc_context({"svg.hashsalt": "jaxpt", "font.size": 8, "text.parse_math": False}):
        figure = Figure(figsize=(width / 100, height / 100), dpi=100)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        axes.text(_MARGIN, _MARGIN, title, fontsize=12, va="top")
        for row in rows:
            for column, (caption, drawing) in enumerate(row):
                left = _MARGIN + column * (svg.WIDTH + _GAP)
                axes.text(left, top, "\n".join(caption), fontsize=9.5, va="top")
                _draw(axes, drawing, "black", left, top + _LINE * len(caption) + 4)
            top += max(map(_height, row))
        file = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(file, format=path.suffix[1:], dpi=200, metadata=metadata)
    write_bytes(path, file.getvalue())


_Picture = tuple[list[str], ElementTree.Element]


def _read(chart: Chart | Dots) -> _Picture:
    """(the lines of a chart's caption, its drawing)."""
    title, note = svg.caption(chart)
    return textwrap.wrap(title, _TITLE) + [note] * bool(note), ElementTree.fromstring(escaped(svg.drawing(chart)))


def _height(picture: _Picture) -> float:
    caption, drawing = picture
    return _LINE * len(caption) + float(drawing.get("viewBox").split()[-1]) + _GAP


def _draw(axes: Axes, parent: ElementTree.Element, colour: str, left: float, top: float) -> None:
    """Draws what can be seen without a pointer."""
    for element in parent:
        kind = element.get("class", "")
        style = {"color": colour, **_STYLES.get(kind, {})}
        if element.tag == "g" and kind != "mark":
            group = re.search(r"\bk(\d+)", kind)
            _draw(axes, element, svg.COLOURS[int(group[1])] if group else colour, left, top)
        elif element.tag == "text":
            x, y = left + float(element.get("x")), top + float(element.get("y"))
            anchor = {"middle": "center", "end": "right"}.get(element.get("text-anchor"), "left")
            axes.text(x, y, element.text, ha=anchor, **style)
        elif element.tag == "circle":
            opacity = 0.55 if "opacity" in element.get("style", "") else 1.0
            x, y, radius = (float(element.get(name)) for name in ("cx", "cy", "r"))
            axes.plot([left + x], [top + y], "o", color=colour, alpha=opacity, markersize=1.44 * radius)
        elif element.tag == "path" and "opacity" not in element.get("style", ""):
            if dash := element.get("stroke-dasharray"):
                style["linestyle"] = (0, tuple(float(length) / 2 for length in dash.split()))
            xs, ys = _points(element.get("d"))
            axes.plot([left + x for x in xs], [top + y for y in ys], solid_joinstyle="round", **style)


def _points(path: str) -> tuple[list[float], list[float]]:
    """The corners of a path.

    Example:
      >>> _points("M46 10.5H300V20v16")
      ([46.0, 300.0, 300.0, 300.0], [10.5, 10.5, 20.0, 36.0])
    """
    xs, ys = [], []
    for sign, text in re.findall(r"([MLHVv])([^MLHVv]+)", path):
        numbers = [float(number) for number in text.split()]
        xs.append(numbers[0] if sign in "MLH" else xs[-1])
        ys.append({"H": ys and ys[-1], "v": ys and ys[-1] + numbers[0]}.get(sign, numbers[-1]))
    return xs, ys
