"""The table and the charts of a study with a grid or seeds: means over seeds of each row and combination of values."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from jaxpt.config import sweeps
from jaxpt.study.charts import Chart, Dots, Row, Series, Table

if TYPE_CHECKING:
    from jaxpt.study.tables import Result

TITLE = "Grid and seeds"
NOTE = """\
- Each cell of a figure: the mean over the finished seeds ± their standard deviation (of a sample), at the end of the
  runs. **runs**: finished of all. The figures of single runs are in the table below.
- Seeds change initial weights, order, masks and dropout; they never make two runs incomparable."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The runs of a row with the same values of the grid: one for each seed."""

    row: str
    point: sweeps.Point
    results: Sequence[Result]

    def values(self, figure: Callable[[Result], float | None]) -> list[float]:
        """A figure of the finished runs, by seed."""
        finished = [result for result in self.results if result.status == "finished"]
        return [number for result in finished if (number := figure(result)) is not None]


def groups(results: Sequence[Result]) -> list[Group]:
    """The runs of a sweep by row and combination of values, in their order; rows that are not swept are left out."""
    by_point: dict[tuple[str, sweeps.Point], list[Result]] = {}
    for result in results:
        if result.row is not None:
            by_point.setdefault((result.row, tuple((key, choice) for key, choice in result.point)), []).append(result)
    return [Group(row, point, members) for (row, point), members in by_point.items()]


def target_loss(result: Result) -> float | None:
    """The validation loss at the objective's targets, or the whole loss where there is no such figure."""
    reached = result.validation.get("target_loss")
    return result.validation.get("loss") if reached is None else reached


def reached(result: Result) -> float | None:
    """The score of a fine-tuning, the validation loss of any other run."""
    return target_loss(result) if result.score is None else result.score


def metric_name(metrics: Collection[str | None]) -> str:
    """The head of a column of scores: the metric that all rows have, or what several are called."""
    return next(iter(metrics)) or "" if len(metrics) == 1 else "best metric"


def table(results: Sequence[Result], has_probe: bool = False) -> Table:
    """A line for each row and combination of values.

    Args:
      results: the runs of a study.
      has_probe: there is a linear probe.
    """
    swept = groups(results)
    names = _labels(swept)
    metrics = {result.metric for result in results if result.score is not None}
    figures: list[tuple[str, Callable[[Result], float | None], str]] = [
        ("target loss", target_loss, ".3f"), ("margin", lambda r: r.margin, ".3f"),
        (metric_name(metrics), lambda r: r.score, ".3f"),
    ]  # fmt: skip
    figures = [figure for figure in figures if any(group.values(figure[1]) for group in swept)]
    figures += [("probe", lambda r: r.probe["accuracy"] if r.probe else None, ".1%")] if has_probe else []
    rows = []
    for group in swept:
        done = sum(result.status == "finished" for result in group.results)
        tasks = sorted({result.task for result in group.results if result.task})
        cells = [group.row, *(_plain(choice) for _, choice in group.point), f"{done} of {len(group.results)}"]
        rows.append((*cells, *(spread(group.values(figure), form) for _, figure, form in figures), ", ".join(tasks)))
    heads = ("row", *names.values(), "runs", *(name for name, _, _ in figures), "task")
    return Table(TITLE, heads, tuple(range(1, len(heads) - 1)), tuple(rows))


def spread(values: Sequence[float], form: str) -> str:
    """Mean ± standard deviation of a sample, and how many values besides are not finite; "" without values.

    Example:
      >>> spread([2.0, 3.0], ".2f"), spread([2.0], ".2f"), spread([2.0, math.nan], ".2f")
      ('2.50 ± 0.71', '2.00', '2.00, 1 not finite')
    """
    finite = [value for value in values if math.isfinite(value)]
    parts = [f"{statistics.fmean(finite):{form}}"] if finite else []
    if len(finite) > 1:
        parts = [f"{parts[0]} ± {statistics.stdev(finite):{form}}"]
    if others := len(values) - len(finite):
        parts.append(f"{others} not finite")
    return ", ".join(parts)


def charts(results: Sequence[Result]) -> list[Chart | Dots]:
    """Loss or score against each swept value; of values that are no numbers, and of seeds alone, side by side.

    Losses in different units, and different metrics, do not share a chart.
    """
    figures: dict[tuple[str, str], list[Group]] = {}
    for group in groups(results):
        if group.values(reached):
            finished = (result for result in group.results if result.status == "finished")  # whose figures are drawn
            result = next(result for result in finished if reached(result) is not None)
            figure = ("validation loss at the end", result.unit)
            if result.score is not None:
                figure = ("score of the best checkpoint", result.metric or "")
            figures.setdefault(figure, []).append(group)
    return [chart for (title, unit), swept in figures.items() for chart in _of_figure(swept, title, unit)]


def _of_figure(swept: Sequence[Group], title: str, unit: str) -> list[Chart | Dots]:
    names = _labels(swept)
    if not names:
        rows = [Row(group.row, group.values(reached), n) for n, group in enumerate(swept)]
        return [Dots(f"{title}: a dot for each seed", unit, rows)] if rows else []
    drawn: list[Chart | Dots] = []
    for key, name in names.items():
        choices = [json.loads(dict(group.point)[key]) for group in swept]
        if len({json.dumps(choice) for choice in choices}) < 2:
            continue
        if all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices):
            drawn.append(Chart(f"{title} against {name}, {unit}", name, _curves(swept, key, names), x_kind="number",
                               note="thin: single seeds"))  # fmt: skip
        else:
            rows = [Row(_name(group, names), group.values(reached), n) for n, group in enumerate(swept)]
            drawn.append(Dots(f"{title} by {name}", unit, rows))
    return drawn


def _curves(swept: Sequence[Group], key: str, names: dict[str, str]) -> list[Series]:
    """A curve of means over the values of a key for each row and combination of the other values, and of each seed."""
    lines: dict[str, list[tuple[float, Group]]] = {}
    for group in swept:
        name = _name(group, names, without=key)
        lines.setdefault(name, []).append((json.loads(dict(group.point)[key]), group))
    series = []
    for colour, (name, points) in enumerate(lines.items()):
        points.sort(key=lambda point: point[0])
        xs = [x for x, _ in points]
        series.append(Series(name, xs, [statistics.fmean(group.values(reached)) for _, group in points], colour))
        seeds = {result.seed for _, group in points for result in group.results}
        for seed in sorted(seeds - {None}) if len(seeds) > 1 else ():
            of_seed = [(x, y) for x, group in points for y in _of_seed(group, seed)]
            if of_seed:
                series.append(Series("", *map(list, zip(*of_seed)), colour, is_faint=True))
    return series


def _of_seed(group: Group, seed: int) -> list[float]:
    return Group(group.row, group.point, [x for x in group.results if x.seed == seed]).values(reached)


def _labels(swept: Sequence[Group]) -> dict[str, str]:
    return sweeps.labels(tuple((key, ()) for key, _ in swept[0].point)) if swept else {}


def _name(group: Group, names: dict[str, str], without: str | None = None) -> str:
    """The row and its values, in short."""
    others = [f"{names[key]} {_plain(choice)}" for key, choice in group.point if key != without]
    return ", ".join([group.row, *others])


def _plain(choice: Any) -> str:
    """A value of the grid as a table shows it: words without quotes."""
    parsed = json.loads(choice)
    return parsed if isinstance(parsed, str) else choice
