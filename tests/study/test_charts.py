"""Axes and the places of names: what is drawn can be read."""

import doctest
import itertools
import math
import random
import re

import pytest

from jaxpt.report import document
from jaxpt.report.page import run_charts, run_data
from jaxpt.study import charts, pictures, svg
from jaxpt.study.charts import Chart, Dots, Row, Series, axis, drawn, spread_labels


def test_names_stand_apart_and_as_near_as_can_be():
    rng = random.Random(0)
    for _ in range(300):
        places = [rng.uniform(0, 200) for _ in range(rng.randint(1, 12))]
        found = spread_labels(places, 13, 0, 200)
        ordered = sorted(found)
        assert all(b - a >= 13 - 1e-9 for a, b in itertools.pairwise(ordered))
        assert min(found) >= -1e-9 and max(found) <= 200 + 1e-9
        assert [n for _, n in sorted(zip(found, range(99)))] == [n for _, n in sorted(zip(places, range(99)))]
    assert spread_labels([10, 40, 80], 13, 0, 200) == [10, 40, 80], "what does not overlap stays"


@pytest.mark.parametrize("values", [[0.1, 0.2], [5.0], [0.0], [-3, 4], [1e-9, 2e-9], [1e15, 3e15], [2.0, 2.0001]])
def test_axes_hold_their_values(values):
    found = axis(values)
    assert all(0 <= found.at(value) <= 1 for value in values)
    assert 2 <= len(found.ticks) <= 12 and all(-1e-9 <= found.at(tick) <= 1 + 1e-9 for tick in found.ticks)
    assert len({found.named(tick) for tick in found.ticks}) == len(found.ticks) or max(values) < 1.001 * min(values)


@pytest.mark.parametrize("last", [1, 2, 3, 11, 22, 1200, 8e6])
def test_ticks_of_steps_are_whole_numbers(last):
    ticks = drawn(Chart("loss", "step", [Series("a", [1, last], [1.0, 2.0])]))[1].ticks
    assert all(tick == int(tick) for tick in ticks) and len(ticks) >= 2


@pytest.mark.parametrize("values", [[1e-6, 1e-2], [0.5, 30], [3, 70]])
def test_logarithmic_axes(values):
    found = axis(values, is_log=True)
    assert all(0 <= found.at(value) <= 1 for value in values) and len(found.ticks) >= 2
    assert all(found.low <= tick <= found.high for tick in found.ticks)


def test_a_few_rates_of_a_grid_have_the_ticks():
    def ticks(*values):
        return drawn(Chart("loss", "rate", [Series("a", values, [1.0] * len(values))], x_kind="number"))[1].ticks

    assert ticks(3e-4, 1e-3, 3e-3, 1e-2) == (3e-4, 1e-3, 3e-3, 1e-2)
    assert ticks(1e-3, 1.1e-3, 1e-2) == (1e-3, 2e-3, 5e-3, 1e-2), "two of them would overlap"


def test_only_curves_of_other_sizes_are_logarithmic():
    def of(*tops, may_be_log=True):
        return Chart("", "step", [Series("", [0, 1], [0.0, top]) for top in tops], may_be_log=may_be_log).is_log

    assert of(1e-4, 1e-2) and not of(1e-3, 1e-2) and not of(1e-4, 1e-2, may_be_log=False) and not of(1.0)


def test_what_is_not_finite_is_not_drawn():
    chart = Chart("loss", "step", [Series("a", [0, 1, 2], [1.0, float("nan"), 3.0]), Series("b", [0], [float("inf")])])
    series, _, y = drawn(chart)
    assert [one.name for one in series] == ["a"] and list(series[0].y) == [1.0, 3.0] and y.high < 4
    assert svg.figure(Chart("loss", "step", [Series("b", [0], [float("nan")])])) == ""


def test_a_long_curve_keeps_its_peaks():
    points = [(float(x), 1000.0 if x == 7777 else -5.0 if x == 123 else x / 1e4) for x in range(20_000)]
    kept = charts.downsample(points)
    assert len(kept) <= charts.MOST_POINTS and {points[0], points[-1], points[7777], points[123]} <= set(kept)


def test_every_curve_is_named_inside_the_picture():
    series = [Series(f"run <{n}> with a long name", [0, 10 + n], [1.0, 2.0 + n / 1e3], n) for n in range(30)]
    drawing = svg.figure(Chart("loss & more", "step", series))
    height = float(re.search(r'viewBox="0 0 460 (\d+)"', drawing)[1])
    names = re.findall(r'class="name" x="([\d.]+)" y="([\d.]+)">([^<]+)', drawing)
    assert len(names) == 30 and all(name.startswith("run &lt;") for *_, name in names)
    rows = sorted(float(y) for _, y, _ in names)
    assert all(b - a > 12 for a, b in itertools.pairwise(rows)) and rows[0] > 10 and rows[-1] < height
    assert all(float(x) + 22 * 6.1 < 470 for x, *_ in names)
    assert "<title>run &lt;3&gt; with a long name</title>" in drawing and "loss &amp; more" in drawing


def test_names_of_a_grid_differ_where_they_are_cut():
    names = [f"a.1-learning_rate={rate}-seed={seed}" for rate in ("0.0003", "0.001") for seed in (0, 1)]
    drawing = svg.figure(Chart("loss", "step", [Series(name, [0, 1], [1.0, n], n) for n, name in enumerate(names)]))
    shown = re.findall(r'class="name"[^>]*>([^<]+)', drawing)
    assert shown == [
        "a.1-lear…0.0003-seed=0",
        "a.1-lear…0.0003-seed=1",
        "a.1-lear…=0.001-seed=0",
        "a.1-lear…=0.001-seed=1",
    ]


def test_dots_show_every_seed_and_the_mean():
    drawing = svg.figure(Dots("sst2", "accuracy, %", [Row("bert · <random>", [60.0, 62.0, 70.0], 1)]))
    assert drawing.count("<circle") == 3 and "64: 60, 62, 70" in drawing and "bert · &lt;random&gt;" in drawing


def test_a_long_name_of_a_row_is_on_several_lines_inside_the_picture():
    """Whole: rows of a grid may differ in any part of their names."""
    name = "bert_tiny learning_rate 0.0003, dropout 0.1, mask_rate 0.15, objective.unit word"
    drawing = svg.drawing(Dots("loss", "nats", [Row(name, [2.0, 3.0], 0), Row("x" * 60, [4.0], 1), Row("a", [1.0], 2)]))
    texts = re.findall(r'<text class="tick" x="([\d.]+)" y="([\d.]+)" text-anchor="end">([^<]+)', drawing)
    assert " ".join(line for *_, line in texts) == f"{name} {'x' * 44} {'x' * 16} a"
    assert all(float(x) - svg._LETTER * len(line) >= -1e-9 for x, _, line in texts)
    ys, height = [float(y) for _, y, _ in texts], float(re.search(r'viewBox="0 0 460 ([\d.]+)"', drawing)[1])
    assert all(b - a >= 13 for a, b in itertools.pairwise(ys)) and ys[0] > 10 and ys[-1] < height - 30


def test_dots_of_a_seed_that_diverged_are_left_out():
    rows = [Row("a", [2.0, math.nan, 3.0], error=math.nan), Row("b", [math.inf])]
    drawing = svg.figure(Dots("loss", "nats", rows))
    assert drawing.count("<circle") == 2 and "2.5: 2, 3" in drawing and "a, 1 not finite" in drawing
    assert "nan" not in drawing and ">b<" not in drawing
    assert svg.figure(Dots("loss", "nats", rows[1:])) == "" and not charts.is_drawable(Dots("loss", "nats", rows[1:]))


@pytest.mark.parametrize("module", [charts, document, pictures, run_charts, run_data])
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed
