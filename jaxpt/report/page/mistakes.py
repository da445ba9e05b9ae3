"""Where a fine-tuned model is wrong: confusion matrix, rows with the largest loss, and how often each label occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxpt.report.document import table
from jaxpt.report.page import trust
from jaxpt.report.page.run_data import RunData

MOST_LABELS = 24
"""Rows of a table of labels."""
MOST_IN_MATRIX = 12
"""Labels of a matrix with numbers; more are a heat map."""
MOST_WORST = 20
_MOST_LETTERS = 320
STYLE = """
table.matrix { width: auto } .matrix td { text-align: right; font-variant-numeric: tabular-nums; min-width: 2.2rem }
.matrix td.right { outline: 1px solid var(--line); outline-offset: -1px }
.matrix thead th { vertical-align: bottom; text-align: right; font-weight: 400 } .matrix tbody th { font-weight: 400 }
.bar { display: inline-block; height: .7em; background: var(--c0); vertical-align: baseline; border-radius: 1px }
"""


def splits(run: RunData) -> list[str]:
    """The splits whose predictions a run has left, the test set first."""
    return [split for split in ("test", "validation") if (run.path / f"evaluations/predictions_{split}.jsonl").exists()]


def reliability(run: RunData, split: str) -> Mapping[str, Any]:
    """What a run of one task has kept of `Task.reliability`; {} of others."""
    parts = run.rows(f"mistakes_{split}.jsonl")
    return parts[0].get("reliability", {}) if len(parts) == 1 else {}


def confusion(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """The confusion matrix of predictions; "" where targets are no labels.

    Args:
      rows: {"target", "prediction"}: a label or None, or lists of them, one for each word.
      labels: in the order of the task.

    Returns:
      HTML.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        row_pair = row.get("target"), row.get("prediction")
        pairs = (
            zip(*row_pair)
            if all(isinstance(value, list) for value in row_pair) and len(row_pair[0]) == len(row_pair[1])
            else [row_pair]
        )
        for target, prediction in pairs:
            if target not in labels or isinstance(prediction, list):
                return ""
            counts[target, prediction if prediction in labels else "(none)"] += 1
    used = {label for pair in counts for label in pair}
    matrix_labels = [label for label in (*labels, "(none)") if label in used]
    if len(matrix_labels) < 2:
        return ""
    details = trust.confusions(counts) + trust.scores(counts, matrix_labels) + trust.download(counts, matrix_labels)
    if len(matrix_labels) > MOST_IN_MATRIX:
        return trust.heat_map(counts, matrix_labels) + details
    return _matrix(counts, matrix_labels) + details


def _matrix(counts: Mapping[tuple[str, str], int], labels: Sequence[str]) -> str:
    """A confusion matrix: targets are rows, predictions columns; the shade is the share of the row."""
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    lines = []
    for target in labels:
        total = sum(count for (label, _), count in counts.items() if label == target)
        if not total:
            continue
        cells = ""
        for prediction in labels:
            count = counts.get((target, prediction), 0)
            tone = "--c2" if prediction == target else "--c1"
            share = round(55 * count / total)
            shade = f"background: color-mix(in srgb, var({tone}) {share}%, transparent)" if count else "opacity: .35"
            right = ' class="right"' if prediction == target else ""
            cells += f'<td{right} style="{shade}" title="{count / total:.1%}">{count:,}</td>'
        lines.append(f'<tr><th scope="row">{escape(target)}</th>{cells}</tr>')
    head = f'<thead><tr><th scope="col">is ↓ &nbsp; said →</th>{head}</tr></thead>'
    return f'<div class="scroll"><table class="matrix">{head}<tbody>{"".join(lines)}</tbody></table></div>'


def worst(rows: Sequence[Mapping[str, Any]], texts: Sequence[Mapping[str, Any]]) -> str:
    """The rows with the largest loss.

    Args:
      rows: all predictions of a split.
      texts: the worst of them with their texts, where the run has kept them.

    Returns:
      HTML; "" where no loss is known.
    """
    known = list(texts) or [row for row in rows if isinstance(row.get("loss"), float)]
    known = sorted(known, key=lambda row: -row["loss"])[:MOST_WORST]
    if not known:
        return ""
    has_text = any(row.get("text") for row in known)
    heads = ["id", "loss", "target", "prediction", *["text"] * has_text]
    lines = [
        [_said(row["id"]), f"{row['loss']:.3f}", *(f'<span dir="auto">{_said(row[x])}</span>' for x in heads[2:4])]
        + ([f'<span dir="auto">{_said(row.get("text"))}</span>'] if has_text else [])
        for row in known
    ]
    return table(heads, lines, [1])


def _said(value: Any) -> str:
    """A target or prediction as HTML."""
    if isinstance(value, list):
        words = " · ".join(map(str, value)) or "(none)"
    else:
        words = "—" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return escape(words if len(words) <= _MOST_LETTERS else f"{words[: _MOST_LETTERS - 1]}…")


def balance(labels: Mapping[str, Mapping[str, int]]) -> str:
    """How often each label occurs in each split.

    Args:
      labels: {split: {label: count}}.

    Returns:
      HTML; "" where there are no labels.
    """
    every = Counter[str]()
    for counts in labels.values():
        every.update(counts)
    if not every:
        return ""
    totals = {split: sum(counts.values()) for split, counts in labels.items()}
    max_share = max(count / totals[split] for split, counts in labels.items() for count in counts.values())
    rows = []
    for label, _ in every.most_common(MOST_LABELS):
        cells = [escape(label)]
        for split, counts in labels.items():
            share = counts.get(label, 0) / max(totals[split], 1)
            bar = f'<span class="bar" style="width: {5 * share / max_share:.2f}rem"></span>'
            cells += [f"{counts.get(label, 0):,}", f"{share:.1%}", bar]
        rows.append(cells)
    heads = ["label"] + [part for split in labels for part in (escape(split), "", "")]
    more = f"<p>and {len(every) - MOST_LABELS} more labels</p>" if len(every) > MOST_LABELS else ""
    return table(heads, rows, [n for n in range(1, len(heads)) if n % 3]) + more


def has_label_sets(run: RunData) -> bool:
    """True if rows have any number of labels."""
    return run.config.task is not None and run.config.task.kind == "multi_label"


def label_names(run: RunData) -> Sequence[str]:
    """The labels of a run's task, as predictions have them."""
    task = run.config.task
    return getattr(task, "shown", None) or getattr(task, "labels", None) or ()


def label_counts(run: RunData) -> dict[str, dict[str, int]]:
    """{split: {label: count}} as the run has kept it; of earlier runs those of the predicted split alone."""
    for split in splits(run):
        parts = run.rows(f"mistakes_{split}.jsonl")
        if parts:
            split_counts: dict[str, dict[str, int]] = {}
            task = run.config.task
            display_names = dict(zip(getattr(task, "labels", None) or (), getattr(task, "shown", None) or ()))
            for part in parts:
                for name, counts in part["labels"].items():
                    named = {display_names.get(label, label): count for label, count in counts.items()}
                    split_counts[f"{part['task']}, {name}" if part["task"] else name] = named
            return {name: counts for name, counts in split_counts.items() if counts}
        targets = [row.get("target") for row in run.rows(f"predictions_{split}.jsonl")]
        names = label_names(run)
        flat = [label for target in targets for label in (target if isinstance(target, list) else [target])]
        if flat and all(label in names for label in flat):
            return {split: dict(Counter(flat))}
    return {}
