"""Curves of several runs in one picture."""

from __future__ import annotations

import dataclasses
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpt.runtime.disk import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart under all common kinds of colour blindness; with more runs the line changes too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_LINES = (("-", "o"), ("-.", "s"), (":", "^"))
DASHES = ("", "8 3 2 3", "2 3")
"""The same lines in SVG."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A run: its loss over what it had seen and spent."""

    name: str
    text_tokens: Sequence[float]
    flops: Sequence[float]
    losses: Sequence[float]
    baseline: float | None = None
    """Loss of the trivial predictor at the same positions."""


def draw(title: str, lines: Sequence[Line], path: Path) -> None:
    """Draws loss against tokens and against FLOPs; the file is the old or the new one, never half of it.

    Args:
      title: stands above both panels.
      lines: one for each run.
      path: ends in .png or .svg.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    with matplotlib.rc_context(
        {"svg.hashsalt": "jaxpt", "font.size": 10, "axes.titlesize": 11, "text.parse_math": False}
    ):
        figure = Figure(figsize=(13, max(4.8, 0.28 * len(lines) + 2.2)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, label, where in zip(panels, ("tokens of text seen", "training FLOPs"), ("text_tokens", "flops")):
            for number, line in enumerate(lines):
                _curve(axes, number, line, getattr(line, where))
            axes.set_xlabel(label)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.set_xlim(left=0)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("validation loss at the objective's targets, nats")
        names = panels[0].get_legend_handles_labels()
        figure.legend(*names, loc="outside right center", frameon=False, title="dashed: trivial baseline")
        figure.suptitle(textwrap.fill(title, 110), x=0.01, ha="left")
        metadata = {"Date": None} if path.suffix == ".svg" else None
        file = io.BytesIO()
        figure.savefig(file, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_bytes(path, file.getvalue())


def _curve(axes: Axes, number: int, line: Line, x: Sequence[float]) -> None:
    colour = COLOURS[number % len(COLOURS)]
    style, marker = _LINES[number // len(COLOURS) % len(_LINES)]
    axes.plot(x, line.losses, style, marker=marker, markersize=3.5, linewidth=1.8, color=colour, label=line.name)
    if line.baseline is not None:
        axes.plot([0, x[-1]], [line.baseline] * 2, "--", linewidth=0.8, color=colour, alpha=0.8)
