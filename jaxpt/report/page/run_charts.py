"""Which charts a page has of its runs: losses beside their baselines, metrics, learning rate, gradients, speed.

Losses of one objective share a chart, since others predict other tokens. What is measured once is no curve.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from jaxpt.report.page.run_data import RunData
from jaxpt.study.charts import Chart, Series

MOST_WITH_TRAINING = 4
"""Up to so many runs, training and held-out losses share a chart."""
MOST_METRICS = 12
"""Charts of metrics; the table of final figures has all."""
_NO_METRIC = ("train/", "speed/", "phase/", "memory/", "validation/loss", "validation/target_loss")
_SAME_AS_LOSS = ("validation/token_loss",)


def charts(runs: Sequence[RunData]) -> list[Chart]:
    """All charts of some runs.

    Args:
      runs: what is drawn together.
    """
    of_kind: dict[str, list[RunData]] = {}
    for run in runs:
        of_kind.setdefault(run.kind, []).append(run)
    all_charts = [
        chart for kind, group in of_kind.items() for chart in _losses(group, kind if len(of_kind) > 1 else "")
    ]
    metrics = [chart for kind, group in of_kind.items() for chart in _metrics(group, kind, len(runs))]
    all_charts += metrics[:MOST_METRICS]
    all_charts += [chart for run in runs for chart in _routers(run, run.name if len(runs) > 1 else "")]
    all_charts.append(_each(runs, "learning_rate", "learning rate", may_be_log=True))
    all_charts.append(_each(runs, "train/gradient_norm", "norm of the gradient", may_be_log=True))
    return [chart for chart in all_charts if any(curve.x for curve in chart.series)]


def speeds(runs: Sequence[RunData]) -> list[Chart]:
    """Charts of the speed of some runs."""
    speed_charts = [_each(runs, "speed/tokens_per_second", "tokens per second, padding included", may_be_log=True)]
    speed_charts.append(_each(runs, "speed/mfu", "MFU: share of the devices' peak that the model's own FLOPs take"))
    return [chart for chart in speed_charts if any(curve.x for curve in chart.series)]


def _losses(runs: Sequence[RunData], kind: str) -> Iterator[Chart]:
    """Losses of runs of one kind, which is named where a page has several."""
    prefix, alone, unit = f"{kind}: " if kind else "", len(runs) == 1 and not kind, _unit(runs[0])
    over_tokens, x = _over(runs)
    levels = [level for run in runs for level in _levels(run, over_tokens, alone)]
    is_same = all(_is_target_loss(run) for run in runs)
    shown_levels = levels if is_same else []
    held = _curves(runs, "validation/loss", over_tokens, "held-out" if alone else None)
    train = _curves(runs, "train/loss", over_tokens, "training" if alone else None)
    below = f"dashed: {_baseline_name(runs[0])} baseline" if levels and not alone else ""
    if alone:
        curves = [*held, dataclasses.replace(train[0], colour=1), *shown_levels]
        yield Chart(f"loss{unit}", x, curves, may_be_log=True)
    elif not all(len(curve.x) > 1 for curve in held):  # what was measured once is no curve
        yield Chart(f"{prefix}training loss{unit}", x, train, may_be_log=True)
    elif len(runs) <= MOST_WITH_TRAINING:
        curves = [*(dataclasses.replace(curve, is_faint=True) for curve in train), *held, *shown_levels]
        note = "thin: training" + (f", {below}" if is_same and below else "")
        yield Chart(f"{prefix}loss{unit}", x, curves, note, may_be_log=True)
    else:
        curves = [*held, *shown_levels]
        yield Chart(f"{prefix}held-out loss{unit}", x, curves, below * is_same, may_be_log=True)
        yield Chart(f"{prefix}training loss{unit}", x, train, may_be_log=True)
    if levels and not is_same and any(len(run.curve("validation/target_loss")[0]) > 1 for run in runs):
        curves = _curves(runs, "validation/target_loss", over_tokens, "model" if alone else None)
        where = "" if runs[0].objective is None else f" at {runs[0].objective.baseline.target_name}"
        yield Chart(f"{prefix}held-out loss{where}{unit}", x, [*curves, *levels], below)
    yield from _parts(runs, prefix, over_tokens, x)


def _over(runs: Sequence[RunData]) -> tuple[bool, str]:
    """Whether runs are drawn over tokens of text, and what the axis says."""
    pretrained = all(run.config.task is None and run.text_tokens for run in runs)
    return (True, "tokens of text") if pretrained and len(runs) > 1 else (False, "step")


def _is_target_loss(run: RunData) -> bool:
    """True if the baseline is of the same positions as the loss."""
    loss, target = run.last.get("validation/loss"), run.last.get("validation/target_loss")
    return loss is not None and target is not None and abs(loss - target) < 1e-6 * max(abs(loss), 1)


def _unit(run: RunData, of_parts: bool = False) -> str:
    """The unit of the losses, after a comma; "" where it is not known, as of parts beside one that is not in nats."""
    unit = None if run.objective is None else run.objective.baseline.unit
    return "" if unit is None or (of_parts and unit != "nats") else f", {unit}"


def _baseline_name(run: RunData) -> str:
    return "" if run.objective is None else run.objective.baseline.name


def baseline(run: RunData) -> float | None:
    """The loss of the trivial predictor, where the run has measured it."""
    level = run.receipt.get("baseline", run.last.get("baseline"))
    return level if isinstance(level, float | int) else None


def _levels(run: RunData, over_tokens: bool, alone: bool) -> list[Series]:
    level = baseline(run)
    xs = run.curve("train/loss", over_tokens)[0]
    if level is None or not xs:
        return []
    name = f"{_baseline_name(run)} {level:.2f}" if alone else ""
    return [Series(name, [xs[-1]], [level], 2 if alone else run.colour, is_reference=True)]


def _parts(runs: Sequence[RunData], prefix: str, over_tokens: bool, x: str) -> Iterator[Chart]:
    """The parts of a loss of several: of one run in one chart."""
    parts = list(dict.fromkeys(part for run in runs for part in run.loss_parts))
    if len(runs) == 1 and parts:
        curves = [Series(shown(part), *_first(runs[0], part, False), colour=n) for n, part in enumerate(parts)]
        unit = _unit(runs[0], of_parts=True)
        yield Chart(f"{prefix}parts of the loss{unit}", x, curves, _where(runs[0], parts), may_be_log=True)
    for part in parts if len(runs) > 1 else ():
        curves = [Series(run.name, *_first(run, part, over_tokens), run.colour) for run in runs]
        yield Chart(
            f"{prefix}{part} loss{_unit(runs[0], of_parts=True)}", x, curves, _where(runs[0], parts), may_be_log=True
        )


def _first(run: RunData, part: str, over_tokens: bool) -> tuple[list[float], list[float]]:
    """A part on held-out text, else in training."""
    held = run.curve(f"validation/{part}", over_tokens)
    return held if len(held[0]) > 1 else run.curve(f"train/{part}", over_tokens)


def _where(run: RunData, parts: Sequence[str]) -> str:
    held = all(len(run.curve(f"validation/{part}")[0]) > 1 for part in parts)
    return "each before its coefficient, " + ("held-out" if held else "training")


def metric_names(runs: Sequence[RunData]) -> list[str]:
    """What evaluators have measured besides the loss and its parts: of a task first."""
    parts = {f"validation/{part}" for run in runs for part in run.losses}
    known = {name for run in runs for line, _, _ in run.lines for name in line}
    known = {name for name in known if "/" in name and not name.startswith(_NO_METRIC) and not is_threshold(name)}
    names = known - parts - set(_SAME_AS_LOSS)
    names -= {name for name in names if _is_of_task(name, names, runs)}
    return sorted(names, key=lambda name: (name.startswith("validation/"), name.count("/"), name))


def _is_of_task(name: str, names: set[str], runs: Sequence[RunData]) -> bool:
    """True if the loss's metric is that of the task."""
    other = name.replace("validation/", "task/", 1)
    if not name.startswith("validation/") or other not in names:
        return False
    return all(run.curve(name) == run.curve(other) for run in runs)


def _metrics(runs: Sequence[RunData], kind: str, count: int) -> Iterator[Chart]:
    """A chart for each metric; of a page's only run those of an evaluator in one, if they are of one size."""
    over_tokens, x = _over(runs)
    names = [name for name in metric_names(runs) if any(len(run.curve(name)[0]) > 1 for run in runs)]
    if count > 1:
        prefix = f"{kind}: " if len(runs) < count else ""
        for name in names:
            yield Chart(prefix + shown(name), x, _curves(runs, name, over_tokens))
        return
    for evaluator, group in itertools.groupby(names, lambda name: name.rpartition("/")[0]):
        curves = [Series(shown(name.rpartition("/")[2]), *runs[0].curve(name)) for name in group]
        curves.sort(key=lambda curve: -max(map(abs, curve.y)))
        while curves:
            top = max(map(abs, curves[0].y))
            together = [curve for curve in curves if not any(curve.y) or max(map(abs, curve.y)) >= top / 20]
            curves = [curve for curve in curves if curve not in together]
            title = shown(f"{evaluator}/{together[0].name}") if len(together) == 1 else shown(f"{evaluator}/metrics")
            named = len(together) > 1
            yield Chart(title, x, [Series(curve.name * named, curve.x, curve.y, n) for n, curve in enumerate(together)])


ROUTERS = {
    "imbalance": "largest share of an expert, as a multiple of the mean", "dropped": "share of choices dropped",
    "entropy": "entropy of the router, nats",
}  # fmt: skip
"""Charts of a mixture of experts: a curve for each sparse layer."""


def _routers(run: RunData, prefix: str) -> Iterator[Chart]:
    """What the routers of a mixture of experts did."""
    names = list(dict.fromkeys(name for line, _, _ in run.lines for name in line if "router/" in name))
    for figure, title in ROUTERS.items():
        of_figure = [name for name in names if f"router/{figure}/" in name]
        curves = [Series(_layer_name(name), *run.curve(name), colour=n) for n, name in enumerate(of_figure)]
        if any(any(curve.y) for curve in curves):
            yield Chart(f"{prefix}: {title}" if prefix else title, "step", curves)


def _layer_name(name: str) -> str:
    """Example: "train/encoder_router/entropy/3" → "encoder layer 3"."""
    side = name.removeprefix("train/").partition("router/")[0].removesuffix("_")
    return f"{side} layer {name.rpartition('/')[2]}".strip()


def is_threshold(name: str) -> bool:
    """True of the threshold of a label, which stands beside its scores."""
    return name.rpartition("/")[2].startswith("threshold_")


def shown(name: str) -> str:
    """The name of a figure as people read it.

    Example:
      >>> shown("validation/next_sentence_accuracy"), shown("task/boolq/accuracy"), shown("learning_rate")
      ('held-out next sentence accuracy', 'task boolq accuracy', 'learning rate')
    """
    name = "held-out/" + name.removeprefix("validation/") if name.startswith("validation/") else name
    return name.replace("/", " ").replace("_", " ")


def _each(runs: Sequence[RunData], name: str, title: str, may_be_log: bool = False) -> Chart:
    """A curve for each run."""
    over_tokens, x = _over(runs)
    return Chart(title, x, _curves(runs, name, over_tokens, None if len(runs) > 1 else ""), may_be_log=may_be_log)


def _curves(runs: Sequence[RunData], name: str, over_tokens: bool, label: str | None = None) -> list[Series]:
    """A figure of each run, under the run's name or another label."""
    return [Series(run.name if label is None else label, *run.curve(name, over_tokens), run.colour) for run in runs]
