"""The sections of a page about some runs; what there is nothing to say about is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jaxpt.config import at_phase, phase_starts, to_yaml
from jaxpt.config.kinds import is_unread
from jaxpt.report import runs as reports
from jaxpt.report.document import facts, folded, table
from jaxpt.report.page import costs, mistakes, run_charts, trust
from jaxpt.report.page.run_data import RunData
from jaxpt.study import svg
from jaxpt.study.charts import Chart, Dots
from jaxpt.train.amounts import few, of_source
from jaxpt.train.display import duration, number

Section = tuple[str, str]
"""Heading and HTML."""


class Group(NamedTuple):
    """What a part of a page is about."""

    title: str
    lead: str
    sections: list[Section]


def sections(runs: Sequence[RunData], assumed: costs.Assumptions) -> Iterator[Section]:
    """All sections that have content.

    Args:
      runs: in the order of their colours.
      assumed: for the receipt.

    Yields:
      (heading, HTML)
    """
    makers: dict[str, Callable[[Sequence[RunData]], str]] = {
        "Overview" if len(runs) == 1 else "Runs": overview,
        "What differs": differences,
        "Curves": lambda runs: figures(run_charts.charts(runs)),
        "Final figures": final_figures,
        "Baselines": baselines,
        "Samples": samples,
        "Confusion matrix": confusions,
        "Scores of each label": label_scores,
        "Calibration": calibration,
        "Worst examples": worst,
        "Data": data,
        "Labels": labels,
        "Throughput and time": time,
        "Cost estimate": lambda runs: receipt(
            [costs.estimate(run.receipt, run.lines, assumed) for run in runs], named(runs), assumed
        ),
        "Configuration": configuration,
    }
    for heading, make in makers.items():
        if html := make(runs):
            yield heading, html


def figures(charts: Sequence[Chart | Dots]) -> str:
    """Charts beside and below each other: HTML."""
    drawn = "".join(map(svg.figure, charts))
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def named(runs: Sequence[RunData]) -> list[str]:
    """The names of runs with their colours: HTML."""
    return [f'<span class="k{run.colour % 7} dot">●</span> {escape(run.name)}' for run in runs]


def overview(runs: Sequence[RunData]) -> str:
    """A line for each run."""
    rows = []
    for run, name in zip(runs, named(runs)):
        level, reached = run_charts.baseline(run), run.last.get("validation/target_loss")
        seconds = run.receipt.get("wall_seconds")
        margin = "" if level is None or reached is None else f"{level - reached:+.3f}"
        best = "" if run.run.value is None else f"{run_charts.shown(run.run.metric or '')} {run.run.value:.4f}"
        parameters = run.receipt.get("parameters")
        rows.append([
            name, escape(f"{run.config.model.kind} · {run.kind}"), escape(_state(run)), run.run.progress,
            "" if parameters is None else number(parameters), number(run.text_tokens) if run.text_tokens else "",
            "" if run.run.loss is None else f"{run.run.loss:.4f}", margin, escape(best),
            "" if seconds is None else duration(seconds),
        ])  # fmt: skip
    heads = ["run", "model · trained on", "state", "step", "parameters", "tokens of text", "loss", "below baseline"]
    heads += ["best", "time"]
    if len(rows) == 1:
        cards = ((head, cell) for head, cell in zip(heads[1:], rows[0][1:]) if cell)
        return f'<div class="cards">{"".join(f"<div><small>{head}</small>{cell}</div>" for head, cell in cards)}</div>'
    return without_empty(heads, rows, (3, 4, 5, 6, 7, 9))


def _state(run: RunData) -> str:
    state = run.run.status
    if state == "stopped" and not run.receipt:
        state = "not finished: it runs elsewhere, was killed or has failed"
    if skipped := run.receipt.get("skipped_steps"):
        state += f", {skipped:,} updates skipped"
    if run.run.damaged_lines:
        state += f", {run.run.damaged_lines:,} lines of its metrics are damaged"
    return state


def without_empty(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int]) -> str:
    """A table without the columns that say nothing."""
    columns = [n for n in range(len(heads)) if n == 0 or any(row[n] for row in rows)]
    lines = [[row[n] for n in columns] for row in rows]
    return table([heads[n] for n in columns], lines, [columns.index(n) for n in numeric if n in columns])


def differences(runs: Sequence[RunData]) -> str:
    """The keys of the configuration whose values differ; apart those that only some of them have."""
    if len(runs) < 2:
        return ""
    settings = reports.compare([str(run.path) for run in runs])[0]
    if not settings:
        return "<p>The configurations are equal, but for run_dir.</p>"
    rows = [
        [_breakable(key), *(_breakable(value if len(value) <= 200 else f"{value[:199]}…") for value in values)]
        for key, values in settings.items()
    ]
    absent = escape(reports.ABSENT)
    of_all = [row for row in rows if absent not in row]
    of_some = [row for row in rows if absent in row]
    heads = ["key", *named(runs)]
    apart = folded(f"{len(of_some)} keys that only some have", table(heads, of_some)) if of_some else ""
    return (table(heads, of_all) if of_all else "") + apart


def _breakable(text: str) -> str:
    """A key or path as HTML that may break after its signs."""
    return re.sub(r"([/._])(?=\w)", r"\1<wbr>", escape(text))


def final_figures(runs: Sequence[RunData]) -> str:
    """All figures at the end."""
    metrics = reports.compare([str(run.path) for run in runs])[1]
    names = [name for name in metrics if not run_charts.is_threshold(name)]
    rows = [[escape(run_charts.shown(name)), *map(_figure, metrics[name])] for name in names]
    return table(["", *named(runs)], rows, range(1, len(runs) + 1))


def _figure(value: Any) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}" if abs(value) < 1e5 else f"{value:,.0f}"


def baselines(runs: Sequence[RunData]) -> str:
    """What the runs are compared with: the trivial predictor's loss and prediction, simple models, a linear probe."""
    rows = [
        [name, *cells]
        for run, name in zip(runs, named(runs))
        for cells in chain(_trivial_loss(run), _constants(run), _simple_models(run), _probe(run))
    ]
    return table(["run", "what", "model", "baseline", "difference"], rows, (2, 3, 4)) if rows else ""


def _compared(description: str, reached: float, level: float, gain: float) -> list[str]:
    """[what, model, baseline, difference]"""
    return [escape(description), f"{reached:.4f}", f"{level:.4f}", f"{gain:+.4f}"]


def _trivial_loss(run: RunData) -> Iterator[list[str]]:
    level, reached = run_charts.baseline(run), run.last.get("validation/target_loss")
    if level is None:
        return
    trivial = None if run.objective is None else run.objective.baseline
    what = f"loss at {trivial.target_name}, {trivial.unit}; {trivial.name} baseline" if trivial else "loss; baseline"
    yield (
        [escape(what), "", f"{level:.4f}", ""] if reached is None else _compared(what, reached, level, level - reached)
    )


def _constants(run: RunData) -> Iterator[list[str]]:
    """The constant prediction's metrics of the task."""
    split = "test" if run.receipt.get("test") else "task"
    measured: Mapping[str, float] = run.receipt.get("test") or run.receipt.get("best") or run.receipt.get("task") or {}
    task = run.config.task
    names = {} if task is None or is_unread(task) else task.baseline_names()
    for metric, level in (run.receipt.get(f"{split}_constant") or {}).items():
        if metric in measured:
            where = "test" if split == "test" else "held-out"
            what = f"{where} {metric}; {names.get(metric, 'constant baseline')}"
            yield _compared(what, measured[metric], level, measured[metric] - level)


def _probe(run: RunData) -> Iterator[list[str]]:
    if probe := run.json("probe.json"):
        reached, level = probe["accuracy"], probe["untrained"]
        yield _compared("accuracy of a linear probe; the same of the untrained model", reached, level, reached - level)


def _simple_models(run: RunData) -> Iterator[list[str]]:
    """The best simple model of each task."""
    for task, entry in (run.receipt.get("simple_models") or {}).items():
        split = "test" if entry["split"] == "test" else "held-out"
        setting = f" ({entry['setting']})" if entry["setting"] else ""
        note = "" if entry["verdict"] == "better" else f"; the model is {entry['verdict']}"
        prefix = f"{task}: " if task else ""
        description = f"{prefix}{split} {entry['metric']}; simple model {entry['model']}{setting}{note}"
        error = "" if entry["difference_error"] is None else f" ± {entry['difference_error']:.4f}"
        reached = f"{entry['value'] + entry['difference']:.4f}"
        yield [escape(description), reached, f"{entry['value']:.4f}", f"{entry['difference']:+.4f}{error}"]


def samples(runs: Sequence[RunData]) -> str:
    """What the models say of a few validation examples, as the runs have printed it at their ends."""
    parts = []
    for run in runs:
        by_evaluator = {row["evaluator"]: row["lines"] for row in run.rows("lines.jsonl")}
        for name in [e.called for e in run.config.evals if e.kind == "samples"]:
            if lines := by_evaluator.get(name):
                text = "\n".join(map(str, lines))
                heading = f"{run.name}: {name}"
                parts.append(folded(heading, f'<pre class="wrap">{escape(text)}</pre>', is_open=len(runs) <= 4))
    return "".join(parts)


def _of_predictions(
    runs: Sequence[RunData], make: Callable[[RunData, str, list[dict[str, Any]]], str], is_long: bool = False
) -> str:
    """What is made of the predictions that each run has left; what is long is folded where there are several."""
    parts = []
    for run, name in zip(runs, named(runs)):
        for split in mistakes.splits(run)[:1]:
            rows = run.rows(f"predictions_{split}.jsonl")
            if html := make(run, split, rows):
                subtitle = f"{len(rows):,} rows of the {split} set"
                best = run.receipt.get("best_step")
                at = "" if best is None else f", checkpoint of step {best:,}"
                if is_long and len(runs) > 1:
                    parts.append(folded(f"{run.name}: {subtitle}{at}", html, is_open=not parts))
                else:
                    parts.append(f"<h4>{name} <small>{subtitle}{at}</small></h4>{html}")
    return "".join(parts)


def confusions(runs: Sequence[RunData]) -> str:
    """The confusion matrix of each run whose rows have one label."""
    runs = [run for run in runs if not mistakes.has_label_sets(run)]
    return _of_predictions(runs, lambda run, split, rows: mistakes.confusion(rows, mistakes.label_names(run)))


def label_scores(runs: Sequence[RunData]) -> str:
    """Scores, threshold and calibration error of each label of each run whose rows have any number of labels."""

    def make(run: RunData, split: str, rows: list[dict[str, Any]]) -> str:
        return trust.label_sets(rows, mistakes.label_names(run), mistakes.reliability(run, split))

    return _of_predictions([run for run in runs if mistakes.has_label_sets(run)], make)


def calibration(runs: Sequence[RunData]) -> str:
    """Accuracy against confidence of each run with labels."""

    def make(run: RunData, split: str, rows: list[dict[str, Any]]) -> str:
        kept = mistakes.reliability(run, split)
        return trust.label_reliability(kept) if kept else trust.reliability(rows)

    return _of_predictions(runs, make)


def worst(runs: Sequence[RunData]) -> str:
    """The rows with the largest loss of each run."""

    def make(run: RunData, split: str, rows: list[dict[str, Any]]) -> str:
        return mistakes.worst(rows, [row for part in run.rows(f"mistakes_{split}.jsonl") for row in part["worst"]])

    return _of_predictions(runs, make, is_long=True)


def data(runs: Sequence[RunData]) -> str:
    """Documents, tokens and epochs; runs with the same data in one line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for run, name in zip(runs, named(runs)):
        for cells in _splits(run):
            lines.setdefault(tuple(cells), []).append(name)
    rows = [["<br>".join(names), *cells] for cells, names in lines.items()]
    heads = ["run", "from", "split", "documents or rows", "records", "tokens", "epochs", "vocabulary"]
    heads.append("length × batch")
    return without_empty(heads, rows, (3, 4, 5, 6)) if rows else ""


def _splits(run: RunData) -> Iterator[list[str]]:
    phases = len(phase_starts(run.config))
    config, summary = at_phase(run.config, phases - 1), (run.receipt.get("data") or {}).get("summary") or {}
    sources = config.data.mixture or (config.data,)
    origin = ", ".join(dict.fromkeys(map(of_source, sources)))
    where = _breakable(origin)
    tokenizer = config.data.tokenizer
    vocabulary = f"{tokenizer.kind}, {config.model.vocab_size:,}" if config.model.vocab_size else tokenizer.kind
    size = f"{config.data.length:,} × {config.data.batch_size:,}" + (", packed" if config.data.packing else "")
    size += " (last phase)" if phases > 1 else ""
    trains = [stats for name, stats in summary.items() if name.rpartition("/")[2] == "train"]
    tokens = sum(train.get("tokens", 0) for train in trains) / (
        run.objective.data_spec(config.data.length).num_passes if run.objective else 1
    )
    for name, stats in summary.items():
        epochs = few(run.text_tokens / tokens) if name == "train" and tokens and run.text_tokens else ""
        if name.rpartition("/")[2] == "train" and len(trains) > 1 and stats is trains[0] and tokens:
            epochs = f"{few(run.text_tokens / tokens)} of all"
        counts = [f"{stats[key]:,}" if stats.get(key) else "" for key in ("documents", "records", "tokens")]
        yield [where, escape(name), *counts, epochs, escape(vocabulary), size]
    if not summary:
        yield [where, "", "", "", "", "", escape(vocabulary), size]


def labels(runs: Sequence[RunData]) -> str:
    """How often each label occurs; runs with the same labels together."""
    tables: dict[str, list[str]] = {}
    for run, name in zip(runs, named(runs)):
        if html := mistakes.balance(mistakes.label_counts(run)):
            tables.setdefault(html, []).append(name)
    return "".join(f"<h4>{', '.join(names)}</h4>{html}" for html, names in tables.items())


def time(runs: Sequence[RunData]) -> str:
    """Speed, and where the time went."""
    rows = []
    for run, name in zip(runs, named(runs)):
        if parts := costs.time_of_parts(run):
            cells = [duration(parts[part]) if part in parts else "" for part in costs.PARTS]
            speed = run.curve("speed/tokens_per_second")[1]
            peak = run.last.get("memory/peak_bytes_in_use")
            cells += [number(sorted(speed)[len(speed) // 2]), "" if peak is None else f"{peak / 1e9:.2f} GB"]
            rows.append([name, costs.time_bar(parts), *cells])
    heads = ["run", "", *(f"{costs.swatch(part)} {part}" for part in costs.PARTS)]
    heads += ["tokens/s, median", "device memory"]
    spent = without_empty(heads, rows, range(2, len(heads))) if rows else ""
    return spent + figures(run_charts.speeds(runs))


_QUANTITIES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "tokens": ("tokens", number), "flops": ("FLOPs", number), "seconds": ("time", duration),
    "kwh": ("energy, kWh", "{:.3g}".format), "dollars": ("money, US dollars", "{:,.3g}".format),
    "kg_co2": ("CO₂, kg", "{:.3g}".format),
}  # fmt: skip


def receipt(estimates: Sequence[costs.CostEstimate], heads: Sequence[str], assumed: costs.Assumptions) -> str:
    """What was taken, a column for each run, and the assumption beside it.

    Args:
      estimates: of the runs.
      heads: their names: HTML.
      assumed: for the last column.
    """
    grounds = costs.grounds(estimates, assumed)
    devices = [escape(estimate.device or "not known") for estimate in estimates]
    if len(estimates) > 1:
        estimates, heads, devices = [*estimates, costs.total(estimates)], [*heads, "total"], [*devices, ""]
    rows = [["device", *devices, ""]]
    for name, (title, to_text) in _QUANTITIES.items():
        figures = [getattr(estimate, name) for estimate in estimates]
        cells = ["not known" if figure is None else to_text(figure) for figure in figures]
        rows.append([escape(title), *cells, f"<small>{escape(grounds[name])}</small>"])
    return table(["", *heads, "assumption"], rows, range(1, len(heads) + 1))


def configuration(runs: Sequence[RunData]) -> str:
    """Versions, command and recipe of each run."""
    parts = []
    for run in runs:
        environment = run.receipt.get("environment") or {}
        packages = [f"{name} {version}" for name, version in (environment.get("packages") or {}).items() if version]
        details = {
            "directory": str(run.path), "command": " ".join(map(str, environment.get("command") or ())),
            "Python": environment.get("python", ""), "packages": ", ".join(packages),
            "system": environment.get("platform", ""), "devices": json.dumps(environment.get("devices") or ""),
        }  # fmt: skip
        known = facts({name: text for name, text in details.items() if text and text != '""'})
        recipe = f"<pre>{escape(to_yaml(run.config))}</pre>"
        name = Path(run.name).name if len(runs) == 1 else run.name
        parts.append(folded(name, known + recipe))
    return "".join(parts)
