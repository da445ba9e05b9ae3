"""Whether a classifier's labels and probabilities can be trusted: scores of each label, the largest confusions, a heat
map of many labels, and accuracy against confidence."""

from __future__ import annotations

import base64
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxpt.data.tables.delimited import csv_line
from jaxpt.metrics import calibration
from jaxpt.report.document import table
from jaxpt.study import svg
from jaxpt.study.charts import Chart, Series

MOST_CONFUSIONS = 20
_MOST_SCORES = 200
_NEUTRAL = len(svg.COLOURS) - 1
"""The colour of what belongs to no run: black, on a dark page white."""
_CELL = 7  # pixels of a label in a heat map
STYLE = """
.heat { max-width: 100%; height: auto; border: 1px solid var(--line) }
.heat .hit { fill: var(--c2) } .heat .miss { fill: var(--c1) }
"""

Counts = Mapping[tuple[str, str], int]
"""(target, prediction) → rows."""


def confusions(counts: Counts) -> str:
    """The pairs of labels that are confused most, the most frequent first."""
    totals = Counter[str]()
    for (target, _), count in counts.items():
        totals[target] += count
    wrong = [(count, *pair) for pair, count in counts.items() if pair[0] != pair[1]]
    wrong.sort(key=lambda entry: (-entry[0], entry[1:]))
    rows = [
        [escape(target), escape(prediction), f"{count:,}", f"{count / totals[target]:.1%}"]
        for count, target, prediction in wrong[:MOST_CONFUSIONS]
    ]
    heads = ["target", "predicted", "rows", "of the target's"]
    return f"<h5>Largest confusions</h5>{table(heads, rows, [2, 3])}" if rows else ""


def scores(counts: Counts, labels: Sequence[str]) -> str:
    """Precision, recall and F1 of each label, the lowest F1 first."""
    entries = []
    for label in labels:
        right = counts.get((label, label), 0)
        targets = sum(count for (target, _), count in counts.items() if target == label)
        predicted = sum(count for (_, prediction), count in counts.items() if prediction == label)
        if targets or predicted:
            shares = right / predicted if predicted else 0.0, right / targets if targets else 0.0
            entries.append((2 * right / (targets + predicted), label, *shares, targets))
    rows = [
        [escape(label), f"{f1:.3f}", f"{precision:.3f}", f"{recall:.3f}", f"{targets:,}"]
        for f1, label, precision, recall, targets in sorted(entries)[:_MOST_SCORES]
    ]
    heads = ["label", "F1", "precision", "recall", "rows"]
    return (
        f"<details><summary>Scores of each label</summary>{table(heads, rows, [1, 2, 3, 4])}</details>" if rows else ""
    )


def label_sets(rows: Sequence[Mapping[str, Any]], labels: Sequence[str], reliability: Mapping[str, Any]) -> str:
    """Precision, recall and F1 of each label of rows that have any number of labels, the lowest F1 first; its threshold
    and calibration error, where they are known.

    Args:
      rows: {"target", "prediction"}: lists of labels.
      labels: in the order of the task.
      reliability: as `Task.reliability` gives it; {} of earlier runs.

    Returns:
      HTML; "" where no label occurs.
    """
    thresholds, errors = reliability.get("thresholds", {}), reliability.get("errors", {})
    entries = []
    for label in labels:
        is_target = [label in row["target"] for row in rows]
        is_predicted = [label in row["prediction"] for row in rows]
        targets, predicted = sum(is_target), sum(is_predicted)
        right = sum(map(operator.and_, is_target, is_predicted))
        if targets or predicted:
            shares = right / predicted if predicted else 0.0, right / targets if targets else 0.0
            entries.append((2 * right / (targets + predicted), label, *shares, targets, predicted))
    lines = [
        [escape(label), *(f"{share:.3f}" for share in (f1, *shares)), f"{targets:,}", f"{predicted:,}"]
        + [f"{values[label]:.3f}" for values in (thresholds, errors) if label in values]
        for f1, label, *shares, targets, predicted in sorted(entries)[:_MOST_SCORES]
    ]
    heads = ["label", "F1", "precision", "recall", "rows", "predicted"]
    heads += ["threshold"] * bool(thresholds) + ["calibration error"] * bool(errors)
    return table(heads, lines, [*range(1, len(heads))]) if lines else ""


def heat_map(counts: Counts, labels: Sequence[str]) -> str:
    """All labels as a picture: a row for each target, a column for each prediction, shaded by the share of the row."""
    place = {label: number for number, label in enumerate(labels)}
    totals = Counter[str]()
    for (target, _), count in counts.items():
        totals[target] += count
    cells = []
    for (target, prediction), count in counts.items():
        x, y, share = place[prediction] * _CELL, place[target] * _CELL, count / totals[target]
        kind = "hit" if target == prediction else "miss"
        title = escape(f"{target} → {prediction}: {count:,} ({share:.1%})")
        box = f'x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" opacity="{0.15 + 0.85 * share:.2f}"'
        cells.append(f'<rect class="{kind}" {box}><title>{title}</title></rect>')
    size = len(labels) * _CELL
    note = f"<p>{len(labels)} labels: targets from top to bottom, predictions from left to right; point at a cell.</p>"
    return f'{note}<svg class="heat" role="img" width="{size}" viewBox="0 0 {size} {size}">{"".join(cells)}</svg>'


def download(counts: Counts, labels: Sequence[str]) -> str:
    """A link to the whole matrix as CSV, which is in the page itself."""
    rows = ([target, *(counts.get((target, label), 0) for label in labels)] for target in labels)
    lines = [csv_line(row) for row in (["target", *labels], *rows)]
    data = base64.b64encode("".join(lines).encode()).decode()
    return f'<p><a download="confusion.csv" href="data:text/csv;base64,{data}">confusion.csv</a>: the whole matrix</p>'


def label_reliability(reliability: Mapping[str, Any]) -> str:
    """The share of rows with a label against its probability, as `Task.reliability` gives it for sets of labels."""
    bins = [calibration.ReliabilityBin(*bin) for bin in reliability["bins"]]
    note = f"{sum(bin.count for bin in bins):,} probabilities of {len(reliability['errors'])} labels"
    title, x = "Rows with a label by its probability", "probability of the label"
    return _reliability_chart(bins, title, x, "share of rows", note)


def reliability(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy against confidence, and the expected calibration error; "" where no probability is known."""
    known = [row for row in rows if isinstance(row.get("probability"), float)]
    if not known:
        return ""
    confidences = [row["probability"] for row in known]
    is_correct = [row["target"] == row["prediction"] for row in known]
    bins = calibration.reliability(confidences, is_correct, 10)
    error = calibration.expected_calibration_error(confidences, is_correct)
    note = f"expected calibration error {error:.3f}, of {len(known):,} rows"
    return _reliability_chart(bins, "Accuracy by confidence", "probability of the predicted label", "accuracy", note)


def _reliability_chart(bins: Sequence[calibration.ReliabilityBin], title: str, x: str, y: str, note: str) -> str:
    series = [
        Series(y, [bin.confidence for bin in bins], [bin.accuracy for bin in bins]),
        Series("calibrated", [0.0, 1.0], [0.0, 1.0], colour=_NEUTRAL, is_faint=True),
    ]
    return svg.figure(Chart(title, x, series, f"{note}; the thin line is perfect calibration", x_kind="number"))
