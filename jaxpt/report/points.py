"""Vectors as points of a plane with their labels beside them, as PNG, SVG and a self-contained page.

Shapes: N points · D width
"""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxpt.report.document import document
from jaxpt.runtime.disk import write_bytes, write_text
from jaxpt.study.svg import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

    from jaxpt.inference.neighbours import NearestUses

_SHOWN = 400
"""Uses in the picture beside the nearest ones."""
_RADII = (9, 16, 26, 38, 52, 68, 86, 106, 128, 152, 178, 206, 236, 268, 302, 338, 376, 416)
"""Pixels from a point to its label: the nearest place that is free is taken."""
_ANGLES = (0, 180, 90, 270, 30, 150, 330, 210, 60, 120, 300, 240, 15, 165, 345, 195, 75, 105, 255, 285)
_MARGIN, _MARK = 2, 14  # pixels around a label; width of a named point
_STYLE = """
body { max-width: 62rem } h1 { font-size: 1.2rem } figure { margin: 1rem 0; background: #fff; border-radius: .4rem }
svg { width: 100%; height: auto } mark { border-radius: .25rem; padding: 0 .2rem; background: #f5d547; color: #111 }
"""


class Point(NamedTuple):
    """A vector in the plane."""

    x: float
    y: float
    name: str = ""
    """What stands beside it; points without one are small."""
    group: str = ""
    """Points of a group have its colour."""
    is_query: bool = False


def draw(nearest: NearestUses, html: str | None, png: str | None) -> None:
    """Writes the picture, and the page, of the nearest uses of a word.

    Args:
      nearest: what `jaxpt neighbours` found.
      html: the page.
      png: the picture.
    """
    rest = np.setdiff1d(np.arange(len(nearest.others)), nearest.order)
    rest = rest[np.linspace(0, len(rest) - 1, min(len(rest), _SHOWN)).astype(int)]
    indices = [*nearest.order, *rest]
    vectors_NxD = np.stack([nearest.query_D, *nearest.vectors_UxD[indices]])
    unit_NxD = vectors_NxD / np.maximum(np.linalg.norm(vectors_NxD, axis=-1, keepdims=True), 1e-12)
    places, share = project(unit_NxD)
    marks = [Point(*places[0], nearest.query.snippet(), "", is_query=True)]
    for rank, (n, place) in enumerate(zip(indices, places[1:]), 1):
        name = f"{rank}  {nearest.others[n].snippet()}" if rank <= len(nearest.order) else ""
        marks.append(Point(*place, name, nearest.others[n].label))
    note = f"the plane of the two main axes (PCA): {share:.0%} of the variance of the shown vectors"
    if png:
        write_bytes(Path(png), picture(nearest.title, note, marks, "png"))
        print(f"wrote {png}")
    if html:
        svg = picture(nearest.title, note, marks, "svg").decode()
        rows = [
            (cosine, use.label, use.text[: use.start], use.word, use.text[use.end :])
            for use, cosine in ((nearest.others[n], cosine) for n, cosine in zip(nearest.order, nearest.cosines))
        ]
        query = (nearest.query.text[: nearest.query.start], nearest.query.word, nearest.query.text[nearest.query.end :])
        write_text(Path(html), page(nearest.title, svg, query, rows))
        print(f"wrote {html}")


def project(vectors_NxD: np.ndarray) -> tuple[np.ndarray, float]:
    """The plane in which the vectors vary most (principal components).

    Args:
      vectors_NxD: any vectors.

    Returns:
      ([N, 2], share of the variance that the plane has). The sign of an axis makes its largest weight positive.

    Example:
      >>> places, share = project(np.array([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [2.0, 1.0, 1.0]]))
      >>> places.shape, round(share, 3)
      ((3, 2), 1.0)
    """
    centred_NxD = (vectors_NxD - vectors_NxD.mean(0)).astype(np.float64)
    _, sizes, axes = np.linalg.svd(centred_NxD, full_matrices=False)
    axes_2xD = np.zeros((2, vectors_NxD.shape[1]))
    axes_2xD[: min(2, len(axes))] = axes[:2]
    axes_2xD *= np.sign(axes_2xD[[0, 1], np.abs(axes_2xD).argmax(1)])[:, None]
    total = float((sizes**2).sum())
    return centred_NxD @ axes_2xD.T, float((sizes[:2] ** 2).sum()) / total if total else 1.0


def picture(title: str, note: str, marks: Sequence[Point], kind: str) -> bytes:
    """Draws points.

    Args:
      title: stands above them.
      note: stands below them.
      marks: the points; the first ones get the nearest places for their names.
      kind: "png" or "svg".

    Returns:
      The file.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "jaxpt", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(10, 7), dpi=100)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.02, 0.07, 0.96, 0.85))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color("#d0d0d0")
        axes.margins(0.1)
        axes.set_aspect("equal", adjustable="datalim")  # distances are the same in both directions
        _scatter(axes, marks)
        figure.text(0.02, 0.98, textwrap.fill(title, 120), fontsize=11, va="top")
        figure.text(0.02, 0.025, note, color="#555555")
        figure.canvas.draw()
        axes.autoscale(False)
        _name(axes, marks)
        if any(mark.group for mark in marks):
            axes.legend(loc="upper right", bbox_to_anchor=(1, 0), ncols=8, frameon=False, handletextpad=0.1)
        file = io.BytesIO()
        figure.savefig(
            file, format=kind, dpi=200 if kind == "png" else 100, metadata={"Date": None} if kind == "svg" else None
        )
    return file.getvalue()


def page(title: str, svg: str, query: tuple[str, str, str], rows: Sequence[tuple[float, str, str, str, str]]) -> str:
    """A page with the picture and the sentences, without scripts and fonts.

    Args:
      title: what it shows.
      svg: the picture.
      query: the query before its word, the word, and what follows.
      rows: (cosine, label, before the word, the word, after it) of each neighbour.

    Returns:
      The page, to be written as UTF-8.
    """
    has_labels = any(label for _, label, *_ in rows)
    lines = [
        f'<tr><td class="number">{rank}</td><td class="number">{cosine:.3f}</td>'
        + (f"<td>{escape(label)}</td>" if has_labels else "")
        + f"<td>{_marked(*parts)}</td></tr>"
        for rank, (cosine, label, *parts) in enumerate(rows, 1)
    ]
    heads = "<tr><th></th><th>cosine</th>" + "<th>label</th>" * has_labels + "<th>use</th></tr>"
    head = f"<h1>{escape(title)}</h1>\n<p>{_marked(*query)}</p>\n<figure>{svg[svg.index('<svg') :]}</figure>"
    return document(title, f"{head}\n<table>\n{heads}\n{chr(10).join(lines)}\n</table>", _STYLE)


def _marked(before: str, word: str, after: str) -> str:
    return f"{escape(before)}<mark>{escape(word)}</mark>{escape(after)}"


def _scatter(axes: Axes, marks: Sequence[Point]) -> None:
    """The points, those with a name above the others, and which colour is which group."""
    groups = sorted({mark.group for mark in marks if mark.group and not mark.is_query})
    colours = dict(zip(groups, itertools.cycle(COLOURS[:1] + COLOURS[2:])))
    for group in (*groups, ""):
        for has_name, size, alpha in ((False, 14, 0.45), (True, 38, 1.0)):
            points = [m for m in marks if m.group == group and bool(m.name) == has_name and not m.is_query]
            colour = colours.get(group) or (COLOURS[0] if has_name else "#888888")
            edge = "white" if has_name else "none"
            axes.scatter(
                [m.x for m in points], [m.y for m in points], s=size, c=colour, alpha=alpha, edgecolors=edge,
                linewidths=0.8, zorder=3 + has_name,
            )  # fmt: skip
        if group:
            axes.scatter([], [], s=38, c=colour, label=group)
    for mark in marks:
        if mark.is_query:
            axes.scatter([mark.x], [mark.y], s=190, c=COLOURS[1], marker="*", edgecolors="white", zorder=5)


# ---- names without overlaps -----------------------------------------------------------------------------------------


def _name(axes: Axes, marks: Sequence[Point]) -> None:
    """Writes each name beside its point, so that it covers no other name, no named point and no line."""
    renderer = axes.figure.canvas.get_renderer()
    at_Nx2 = axes.transData.transform([(mark.x, mark.y) for mark in marks])
    texts = {
        n: axes.text(0, 0, mark.name, weight="bold" if mark.is_query else "normal", zorder=6, va="bottom")
        for n, mark in enumerate(marks)
        if mark.name
    }
    sizes = {n: text.get_window_extent(renderer).size + 2 * _MARGIN for n, text in texts.items()}
    order, inside = [*sizes], axes.get_window_extent(renderer)
    for _ in range(len(order)):  # a name for which no place was left comes first the next time
        boxes = _places(at_Nx2, {n: sizes[n] for n in order}, inside)
        if not (failed := [n for n in order if n not in boxes]):
            break
        order = [*failed, *(n for n in order if n in boxes)]
    to_data = axes.transData.inverted().transform
    for n, text in texts.items():
        if n not in boxes:  # a name that is too long for the picture, or one of too many: the page's table has it
            text.remove()
            continue
        text.set_position(to_data(boxes[n].min + _MARGIN))
        text.set_bbox({"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1})
        end = np.clip(at_Nx2[n], boxes[n].min, boxes[n].max)
        if np.hypot(*(end - at_Nx2[n])) > _RADII[0] + 1:
            axes.plot(*to_data([at_Nx2[n], end]).T, color="#777777", linewidth=0.8, zorder=3)


def _places(at_Nx2: np.ndarray, sizes: Mapping[int, np.ndarray], inside: Bbox) -> dict[int, Bbox]:
    """The nearest free box of each name in turn, if there is one; one that covers no point at all is preferred."""
    from matplotlib.transforms import Bbox

    marks = {n: Bbox.from_bounds(*(at_Nx2[n] - _MARK / 2), _MARK, _MARK) for n in sizes}
    dots_Nx2 = np.delete(at_Nx2, [*sizes], 0)
    boxes: dict[int, Bbox] = {}
    lines: list[np.ndarray] = []
    for n, size in sizes.items():
        taken = [*boxes.values(), *(mark for other, mark in marks.items() if other != n)]
        for dots in (dots_Nx2, dots_Nx2[:0]):
            if n not in boxes and (box := _free(at_Nx2[n], size, inside, taken, dots, lines)) is not None:
                boxes[n] = box
                lines.append(_along(at_Nx2[n], np.clip(at_Nx2[n], box.min, box.max)))
    return boxes


def _free(
    place: np.ndarray, size: np.ndarray, inside: Bbox, taken: Sequence[Bbox], dots_Nx2: np.ndarray,
    lines: Sequence[np.ndarray],
) -> Bbox | None:  # fmt: skip
    """The first box around a point that lies inside, and where neither it nor its line meets another or a dot."""
    for box in _boxes(place, *size):
        is_inside = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
        if not is_inside or _meets(dots_Nx2, box) or any(box.overlaps(other) for other in taken):
            continue
        leader = _along(place, np.clip(place, box.min, box.max))
        ahead = (other for other in taken if not _meets(place[None], other))
        if not any(_meets(leader, other) for other in ahead) and not any(_meets(line, box) for line in lines):
            return box
    return None


def _boxes(place: np.ndarray, width: float, height: float) -> Iterator[Bbox]:
    """Boxes of a size that touch circles around a point, the nearest first: beside it, then above and below."""
    from matplotlib.transforms import Bbox

    for radius in _RADII:
        for angle in _ANGLES:
            dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            x, y = place[0] + radius * dx, place[1] + radius * dy - height * (1 - dy) / 2
            for share in sorted(
                {(1 - dx) / 2, 0.0, 1.0} if abs(dy) > 0.6 else {(1 - dx) / 2}, key=lambda s: abs(s - 0.5)
            ):
                yield Bbox.from_bounds(x - share * width, y, width, height)


def _along(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Places every few pixels of a line: [n, 2]."""
    steps = max(2, int(np.hypot(*(end - start)) / 2))
    return start + np.linspace(0, 1, steps)[:, None] * (end - start)


def _meets(line_nx2: np.ndarray, box: Bbox) -> bool:
    return bool(((line_nx2 > box.min) & (line_nx2 < box.max)).all(1).any())
