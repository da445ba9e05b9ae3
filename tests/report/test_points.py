"""Points of a plane: the projection keeps what varies most; labels cover neither each other nor the points."""

import doctest
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxpt.report import points
from jaxpt.report.points import Point
from tests import grids


def test_the_plane_is_that_of_the_largest_variance():
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(50, 2)) * [5, 2]
    axes, _ = np.linalg.qr(rng.normal(size=(8, 2)))
    places, share = points.project(plane @ axes.T + 3 + 1e-3 * rng.normal(size=(50, 8)))
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.testing.assert_allclose(apart, np.linalg.norm(plane[:, None] - plane[None], axis=-1), atol=0.02)
    assert share > 0.999
    same, share = points.project(np.ones((3, 4)))
    assert same.shape == (3, 2) and not same.any() and share == 1
    assert points.project(np.array([[1.0, 2.0]]))[0].tolist() == [[0, 0]]


def covers(box, places_nx2):
    """Whether a box has one of some places inside."""
    return ((places_nx2 > box.min) & (places_nx2 < box.max)).all(1).any()


@pytest.mark.parametrize("seed", grids.cases([0, 1, 2], 0))
def test_labels_do_not_overlap(seed, monkeypatch):
    """Twenty labels in the middle of a crowd, three points on top of each other; no line crosses a label."""
    rng = np.random.default_rng(seed)
    at = rng.normal(size=(120, 2))
    at[1:3] = at[0]
    marks = [
        Point(*place, f"{n}  a label of some length" if n < 20 else "", is_query=n == 0) for n, place in enumerate(at)
    ]
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **_: figures.append(figure))
    points.picture("title", "note", marks, "png")
    (axes,) = figures[0].axes
    boxes = [text.get_window_extent(figures[0].canvas.get_renderer()) for text in axes.texts]
    assert len(boxes) == 20
    assert not [1 for n, box in enumerate(boxes) for other in boxes[:n] if box.overlaps(other)]
    named = axes.transData.transform(at[:20])
    assert not any(covers(box, named) for box in boxes)
    assert axes.lines, "a label stands away from its point"
    for line in axes.lines:
        start, end = axes.transData.transform(line.get_xydata())
        path = start + np.linspace(0, 1, 200)[:-1, None] * (end - start)
        assert sum(covers(box, path) for box in boxes) <= 1  # its own


def test_a_page_holds_everything_and_escapes_it():
    marks = [Point(0, 0, "<b> $x$", is_query=True), Point(1, 1, "two & three", "sense <1>"), Point(2, 0)]
    svg = points.picture("title <i>", "note", marks, "svg").decode()
    page = points.page("title <i>", svg, ("a ", "<b>", ""), [(0.5, "s<1", "x ", "two & three", " y")])
    assert "<mark>&lt;b&gt;</mark>" in page and "<mark>two &amp; three</mark>" in page and "s&lt;1" in page
    assert "title <i>" not in page and "<b>" not in page and "$x$" in page
    assert not re.search(r"<script|<link|<img|url\(http", page)
    assert points.picture("t", "n", marks, "svg") == points.picture("t", "n", marks, "svg")
    assert points.picture("t", "n", marks, "png")[:4] == b"\x89PNG"


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(points)
    assert tried and not failed
