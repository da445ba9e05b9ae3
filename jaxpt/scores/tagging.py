"""Metrics of tags of words: accuracy, and F1 of entities (seqeval)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any, Literal

from jaxpt.errors import UserError

Tags = Sequence[Sequence[str]]


def tag_accuracy(predictions: Tags, targets: Tags) -> dict[str, float]:
    """Fraction of words whose tag is the target.

    Args:
      predictions: tags of the words of each text.
      targets: as predictions, of the same lengths.

    Example:
      >>> tag_accuracy([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]])
      {'tag_accuracy': 0.6666666666666666}
    """
    _check_lengths(predictions, targets)
    equal = [p == t for row, gold in zip(predictions, targets) for p, t in zip(row, gold)]
    return {"tag_accuracy": sum(equal) / max(len(equal), 1)}


def span_f1(
    predictions: Tags,
    targets: Tags,
    scheme: Literal["IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU"] | None = None,
    by_type: bool = False,
) -> dict[str, float]:
    """Precision, recall and F1 of entities: one is right if type, first and last word are.

    Args:
      predictions: tags of the words of each text: B-PER, I-PER, O, …
      targets: as predictions, of the same lengths.
      scheme: None follows CoNLL's `conlleval`, with which scores are published: an I- that no B- opens begins an
        entity. A scheme is strict: such words are in no entity.
      by_type: adds {"PER/f1": …} and so on for each type of entity.

    Returns:
      {"precision": …, "recall": …, "f1": …} over all entities; 0 where there are none.

    Example:
      >>> span_f1([["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "B-LOC"]])
      {'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666}
    """
    _check_lengths(predictions, targets)
    _check_tags([*targets, *predictions])
    from seqeval import scheme as schemes
    from seqeval.metrics import classification_report

    options: dict[str, Any] = {} if scheme is None else {"mode": "strict", "scheme": getattr(schemes, scheme)}
    rows = [list(row) for row in targets], [list(row) for row in predictions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no entities: 0
        report = classification_report(*rows, output_dict=True, zero_division=0, **options)
    wanted = {"": "micro avg"}
    if by_type:
        wanted |= {f"{kind}/": kind for kind in report if not kind.endswith(" avg")}
    names = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
    return {prefix + name: float(report[kind][key]) for prefix, kind in wanted.items() for name, key in names.items()}


def _check_lengths(predictions: Tags, targets: Tags) -> None:
    for row, (p, t) in enumerate(zip(predictions, targets)):
        if len(p) != len(t):
            raise UserError(f"row {row}: {len(p)} predicted tags for {len(t)} words; each word has one tag")


def _check_tags(rows: Tags) -> None:
    for tag in dict.fromkeys(tag for row in rows for tag in row):
        if not re.fullmatch(r"O|[BIESLU]-.+", tag):
            raise UserError(f"span_f1: the tag {tag!r} is neither O nor B-TYPE, I-TYPE, …; tag_accuracy takes any tags")
