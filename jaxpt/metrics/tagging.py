"""Metrics of tags of words: accuracy, and F1 of entities (seqeval)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from jaxpt.errors import UserError
from jaxpt.metrics.base import metric

Tags = Sequence[Sequence[str]]


@metric(targets=("tags",), constant="tags")
def tag_accuracy(predictions: Tags, targets: Tags) -> dict[str, float]:
    """Fraction of words whose tag is the target.

    Args:
      predictions: tags of the words of each text.
      targets: as predictions, of the same lengths.

    Example:
      >>> tag_accuracy([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]])
      {'tag_accuracy': 0.6666666666666666}
    """
    check_lengths(predictions, targets)
    equal = [p == t for row, gold in zip(predictions, targets) for p, t in zip(row, gold)]
    return {"tag_accuracy": sum(equal) / max(len(equal), 1)}


SCHEMES: dict[str, frozenset[str]] = {
    "IOB1": frozenset("IOB"), "IOB2": frozenset("IOB"), "IOE1": frozenset("IOE"), "IOE2": frozenset("IOE"),
    "IOBES": frozenset("IOBES"), "BILOU": frozenset("BILOU"),
}  # fmt: skip
"""The prefixes of each scheme's tags."""
_FOUND = ("IOB2", "IOE2", "IOBES", "BILOU")
_AS_IOBES = {"L": "E", "U": "S"}
"""BILOU's letters for what IOBES calls end and single word."""


def scheme_of(tags: Iterable[str]) -> str:
    """The scheme of tags of entities: the first of IOB2, IOE2, IOBES and BILOU that has all of their prefixes.

    Args:
      tags: all that can occur.

    Raises:
      UserError: they are no tags of entities, or of no single scheme.

    Example:
      >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["O", "U-PER", "B-PER", "L-PER"])
      ('IOB2', 'BILOU')
    """
    tags = dict.fromkeys(tags)
    for tag in tags:
        if not re.fullmatch(r"O|[BIESLU]-.+", tag):
            raise UserError(
                f"span_f1: the tag {tag!r} is neither O nor B-TYPE, I-TYPE, … of the schemes {', '.join(SCHEMES)}; "
                "tag_accuracy takes any tags"
            )
    prefixes = {tag[0] for tag in tags}
    if scheme := next((scheme for scheme in _FOUND if prefixes <= SCHEMES[scheme]), None):
        return scheme
    raise UserError(f"span_f1: the prefixes {', '.join(sorted(prefixes))} are of no single scheme: {_schemes()}")


@metric(targets=("tags",), values=("precision", "recall", "f1"), selection_value="f1", constant="tags")
def span_f1(
    predictions: Tags,
    targets: Tags,
    scheme: Literal["IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU"] | None = None,
    strict: bool = False,
    by_type: bool = False,
) -> dict[str, float]:
    """Precision, recall and F1 of entities: one is right if type, first and last word are.

    Args:
      predictions: tags of the words of each text: B-PER, I-PER, O, …
      targets: as predictions, of the same lengths.
      scheme: of the tags; None finds it (`scheme_of`). Tags of another scheme are refused.
      strict: words that the scheme does not allow where they stand are in no entity. Without, the rules are those of
        CoNLL's `conlleval`, with which scores are published: an I- that no B- opens begins an entity.
      by_type: adds {"PER/f1": …} and so on for each type of entity.

    Returns:
      {"precision": …, "recall": …, "f1": …} over all entities; 0 where there are none.

    Example:
      >>> span_f1([["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "B-LOC"]])
      {'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666}
      >>> span_f1([["U-PER", "O"]], [["U-PER", "U-PER"]])["f1"]
      0.6666666666666666
    """
    check_lengths(predictions, targets)
    tags = dict.fromkeys(tag for rows in (targets, predictions) for row in rows for tag in row)
    detected_scheme = scheme_of(tags)
    if scheme is not None and (wrong := next((tag for tag in tags if tag[0] not in SCHEMES[scheme]), None)):
        raise UserError(f"span_f1: the tag {wrong!r} is none of the scheme {scheme}: {_schemes()}")
    from seqeval import scheme as schemes
    from seqeval.metrics import classification_report

    scheme = scheme or detected_scheme
    rows = [[list(row) for row in tag_rows] for tag_rows in (targets, predictions)]
    options: dict[str, Any] = {}
    if strict:
        options = {"mode": "strict", "scheme": getattr(schemes, scheme)}
    elif scheme == "BILOU":  # conlleval's rules as seqeval has them know IOBES, but not L and U
        rows = [[[_AS_IOBES.get(tag[0], tag[0]) + tag[1:] for tag in row] for row in tag_rows] for tag_rows in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no entities: 0
        report = classification_report(*rows, output_dict=True, zero_division=0, **options)
    kinds = {"": "micro avg"}
    if by_type:
        kinds |= {f"{kind}/": kind for kind in report if not kind.endswith(" avg")}
    names = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
    return {prefix + name: float(report[kind][key]) for prefix, kind in kinds.items() for name, key in names.items()}


def _schemes() -> str:
    return "; ".join(f"{scheme} has {', '.join(sorted(prefixes))}" for scheme, prefixes in SCHEMES.items())


def check_lengths(predictions: Tags, targets: Tags) -> None:
    """Raises UserError if a text has not a tag for each word."""
    for row, (p, t) in enumerate(zip(predictions, targets)):
        if len(p) != len(t):
            raise UserError(f"row {row}: {len(p)} predicted tags for {len(t)} words; each word has one tag")
