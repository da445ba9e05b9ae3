"""What a model predicts of each row of a split, which labels it takes for which, and the rows with the largest loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxpt.data.tasks.base import LocatedRow, Task
from jaxpt.train.evaluators import Details

WORST = 5
"""Rows that are shown."""
KEPT = 20
"""Rows that are kept with their texts, for `jaxpt report`."""
_MOST_LETTERS = 1000
"""Of a text that is kept."""
MOST_LABELS = 500
"""More are no classes."""
_WIDTH = 160  # characters of a line


def details(
    task: Task,
    rows: Sequence[LocatedRow],
    targets: Sequence[Any],
    predictions: Sequence[Any],
    losses: Sequence[float],
    confidences: Sequence[float | None] | None = None,
) -> Details:
    """The predictions of a split, and what is shown of them.

    Args:
      task: says how targets and predictions are shown.
      rows: the rows.
      targets: of each row.
      predictions: likewise.
      losses: likewise.
      confidences: the probability of each prediction, where it has one.

    Returns:
      Confusion matrix and worst rows; of each row {"id", "target", "prediction", "loss"}, and "probability" where it
      is known.
    """
    records = tuple(
        {
            "id": task.row_id(row.row),
            "target": task.named(target, row.row, row.where),
            "prediction": task.named(prediction, row.row, row.where),
            "loss": round(loss, 6),
            **({} if confidence is None else {"probability": round(confidence, 6)}),
        }
        for row, target, prediction, loss, confidence in zip(
            rows, targets, predictions, losses, confidences or [None] * len(rows), strict=True
        )
    )
    lines = task.confusions(predictions, targets)
    lines.append(f"largest losses of {len(rows):,} rows:")
    worst = sorted(range(len(rows)), key=lambda number: -losses[number])
    for number in worst[:WORST]:
        row, where = rows[number].row, rows[number].where
        difference = task.difference(targets[number], predictions[number], row, where)
        text = cut(f"{losses[number]:8.4f}  {records[number]['id']}: {difference}", _WIDTH // 2)
        lines.append(f"{text}  {cut(task.text_of(row, where), _WIDTH - len(text))}")
    texts = (task.text_of(rows[number].row, rows[number].where)[:_MOST_LETTERS] for number in worst[:KEPT])
    return Details(tuple(lines), records, ({"worst": [records[n] | {"text": text} for n, text in zip(worst, texts)]},))


def label_counts(task: Task, rows: Sequence[LocatedRow]) -> dict[str, int]:
    """How often each label occurs, the most frequent first; {} of a task without labels, or with very many.

    Args:
      task: says which labels a row has.
      rows: all of them have labels.
    """
    counts = Counter(label for row in rows for label in task.labels_in(row.row, row.where))
    return dict(counts.most_common()) if len(counts) <= MOST_LABELS else {}


def cut(text: str, width: int) -> str:
    """A text in one line of at most `width` characters.

    Example:
      >>> cut("a film\\nthat is good", 10)
      'a film th…'
    """
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
