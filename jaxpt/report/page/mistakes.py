"""Where a fine-tuned model is wrong: confusion matrix, rows with the largest loss, and how often each label occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxpt.report.document import table
from jaxpt.report.page.readings import Reading

MOST_LABELS = 24
"""Rows of a matrix; of more labels those that are confused most."""
MOST_WORST = 10
_MOST_LETTERS = 320
STYLE = """
table.matrix { width: auto } .matrix td { text-align: right; font-variant-numeric: tabular-nums; min-width: 2.2rem }
.matrix td.right { outline: 1px solid var(--line); outline-offset: -1px }
.matrix thead th { vertical-align: bottom; text-align: right; font-weight: 400 } .matrix tbody th { font-weight: 400 }
.bar { display: inline-block; height: .7em; background: var(--c0); vertical-align: baseline; border-radius: 1px }
"""


def splits(one: Reading) -> list[str]:
    """The splits whose predictions a run has left, the test set first."""
    return [split for split in ("test", "validation") if (one.path / f"evaluations/predictions_{split}.jsonl").exists()]


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
        of = row.get("target"), row.get("prediction")
        pairs = zip(*of) if all(isinstance(value, list) for value in of) and len(of[0]) == len(of[1]) else [of]
        for target, said in pairs:
            if target not in labels or isinstance(said, list):
                return ""
            counts[target, said if said in labels else "(none)"] += 1
    used = {label for pair in counts for label in pair}
    shown = [label for label in (*labels, "(none)") if label in used]
    if len(shown) < 2:
        return ""
    left_out = ""
    if len(shown) > MOST_LABELS:
        wrong = Counter[str]()
        for (target, said), count in counts.items():
            wrong.update({target: count, said: count} if target != said else {})
        most = {label for label, _ in wrong.most_common(MOST_LABELS)} or set(shown[:MOST_LABELS])
        left_out = f"<p>{len(most)} of {len(shown)} labels: those that are confused most.</p>"
        shown = [label for label in shown if label in most]
    return _matrix(counts, shown) + left_out


def _matrix(counts: Mapping[tuple[str, str], int], shown: Sequence[str]) -> str:
    """Rows are what is so, columns what was predicted; the shade is the share of the row."""
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in shown)
    lines = []
    for target in shown:
        total = sum(count for (of, _), count in counts.items() if of == target)
        if not total:
            continue
        cells = ""
        for said in shown:
            count = counts.get((target, said), 0)
            tone = "--c2" if said == target else "--c1"
            share = round(55 * count / total)
            shade = f"background: color-mix(in srgb, var({tone}) {share}%, transparent)" if count else "opacity: .35"
            right = ' class="right"' if said == target else ""
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
        words = " · ".join(map(str, value))
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
    for of in labels.values():
        every.update(of)
    if not every:
        return ""
    totals = {split: sum(of.values()) for split, of in labels.items()}
    most = max(count / totals[split] for split, of in labels.items() for count in of.values())
    rows = []
    for label, _ in every.most_common(MOST_LABELS):
        cells = [escape(label)]
        for split, of in labels.items():
            share = of.get(label, 0) / max(totals[split], 1)
            bar = f'<span class="bar" style="width: {5 * share / most:.2f}rem"></span>'
            cells += [f"{of.get(label, 0):,}", f"{share:.1%}", bar]
        rows.append(cells)
    heads = ["label"] + [part for split in labels for part in (escape(split), "", "")]
    more = f"<p>and {len(every) - MOST_LABELS} more labels</p>" if len(every) > MOST_LABELS else ""
    return table(heads, rows, [n for n in range(1, len(heads)) if n % 3]) + more


def label_counts(one: Reading) -> dict[str, dict[str, int]]:
    """{split: {label: count}} as the run has kept it; of earlier runs those of the predicted split alone."""
    for split in splits(one):
        kept = one.rows(f"mistakes_{split}.jsonl")
        if kept:
            found: dict[str, dict[str, int]] = {}
            task = one.config.task
            shown = dict(zip(getattr(task, "labels", None) or (), getattr(task, "shown", None) or ()))
            for part in kept:
                for name, counts in part["labels"].items():
                    named = {shown.get(label, label): count for label, count in counts.items()}
                    found[f"{part['task']}, {name}" if part["task"] else name] = named
            return {name: counts for name, counts in found.items() if counts}
        targets = [row.get("target") for row in one.rows(f"predictions_{split}.jsonl")]
        names = getattr(one.config.task, "shown", None) or getattr(one.config.task, "labels", None) or ()
        flat = [label for target in targets for label in (target if isinstance(target, list) else [target])]
        if flat and all(label in names for label in flat):
            return {split: dict(Counter(flat))}
    return {}
