"""The statistics of `jaxpt data` as lines of text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxpt.train.amounts import few
from jaxpt.train.display import number

Result = Mapping[str, Any]
_BAR = 32  # characters
_MOST_LANGUAGES, _MOST_LABELS = 8, 20


def lines(statistics: Result) -> Iterator[str]:
    """All of `jaxpt.report.data.measure`, for people.

    Args:
      statistics: what it gave.

    Yields:
      Lines.
    """
    vocabulary, unit = statistics["vocabulary"], statistics["unit"]
    if vocabulary is not None:
        yield f"vocabulary: {vocabulary['kind']}, {vocabulary['size']:,} ids"
    elif unit == "words":
        yield "vocabulary: none yet (a run trains it, or init_from.path has it); lengths are in words"
    if statistics["first"] is not None:
        yield f"only the first {statistics['first']:,} of each split were read"
    for name, part in statistics["parts"].items():
        yield ""
        yield (f"{name}: " if len(statistics["parts"]) > 1 else "") + f"{part['source']}"
        yield from part["found"]
        yield from _aligned(part["splits"], _rows(part, unit))
        yield from _notes(part)
        yield ""
        yield f"length of the training set's {part['unit']} in {unit}"
        yield from _histogram(part["splits"]["train"])
    yield ""
    yield from _epochs(statistics)


_Row = tuple[str, Callable[[Result], str]]
"""The name of a figure, and its text from the statistics of a split."""


def _rows(part: Result, unit: str) -> Iterator[_Row]:
    each, texts = list(part["splits"].values()), part["unit"]
    first = each[0]
    yield texts, lambda split: f"{split['documents']:,}"
    if any(split["empty"] for split in each):
        yield "  empty, left out", lambda split: "" if split["empty"] is None else f"{split['empty']:,}"
    if any(split["characters"] for split in each):
        yield "bytes of text", lambda split: number(split["bytes"])
        yield "words", lambda split: number(split["words"])
    if unit == "tokens":
        yield "tokens", lambda split: number(split["total"])
    for name in first["lengths"]:
        heading = f"{unit} in a {texts[:-1]}: {name}" if name == "mean" else f"  {name}"
        yield heading, lambda split, name=name: f"{split['lengths'][name]:,.0f}"
    for column in first["columns"] if len(first["columns"]) > 1 else ():
        yield f"{unit} in {column}: 5, 50, 95 %", functools.partial(_quantiles, column, first)
    for length in first.get("longer") or ():
        name = f"longer than {int(length):,} tokens"
        yield name, lambda split, length=length: _part_of(split["longer"][length], split["documents"])
    if any(split["cut"] for split in each):
        yield "cut to data.length", _cut
    if any(split["cut"] and split["cut"]["left_out"] for split in each):
        yield "left out", lambda split: f"{split['cut']['left_out']:,}" if split["cut"] else ""
    yield "copies of another one", lambda split: _share(split["duplicates"])
    yield "also in train", lambda split: "" if split is first else _share(split["in_train"])
    yield from _labels(each, per_row=part["task"] == "multi_label")
    for name in ("mean", "5%", "50%", "95%") if "values" in first else ():
        heading = f"number to predict: {name}"
        yield heading, lambda split, name=name: f"{split['values'][name]:.4g}" if "values" in split else ""
    languages = dict.fromkeys(name for split in each for name in split["languages"]["shares"])
    for name in list(languages)[:_MOST_LANGUAGES]:
        yield f"language {name}", functools.partial(_language, name)


def _quantiles(column: str, first: Result, split: Result) -> str:
    quantiles = split["columns"].get(column, first["columns"][column])
    return ", ".join(f"{quantiles[name]:,}" for name in ("5%", "50%", "95%"))


def _cut(split: Result) -> str:
    return _part_of(split["cut"]["cut"], split["cut"]["examples"]) if split["cut"] else ""


def _labels(each: Sequence[Result], per_row: bool) -> Iterator[_Row]:
    """Each label with its share of all labels, or `per_row` of the rows, which may have several; the 20 commonest."""
    labels = list(dict.fromkeys(label for split in each for label in split.get("labels", {})))
    if len(labels) > _MOST_LABELS:
        labels.sort(key=lambda label: -each[0].get("labels", {}).get(label, 0))
    for label in labels[:_MOST_LABELS]:
        yield f"label {label}", functools.partial(_label, label, per_row)
    if len(labels) > _MOST_LABELS:
        yield f"and {len(labels) - _MOST_LABELS:,} less frequent labels", lambda split: ""


def _label(label: str, per_row: bool, split: Result) -> str:
    counts = split.get("labels", {})
    return _part_of(counts.get(label, 0), split["documents"] if per_row and counts else sum(counts.values()))


def _language(name: str, split: Result) -> str:
    shares = split["languages"]["shares"]
    return f"{shares[name]:.1%}" if name in shares else ""


def _notes(part: Result) -> Iterator[str]:
    """Examples of equal texts, and how languages were told."""
    for split, stats in part["splits"].items():
        if example := stats["duplicates"]["example"]:
            yield f"{split}: {example['copies']:,} times: {example['text']}"
        if (stats.get("in_train") or {}).get("example"):
            yield f"{split}, also in train: {stats['in_train']['example']}"
    train = part["splits"]["train"]
    if (sampled := train["duplicates"]["sampled"]) > 1:
        yield f"copies are an estimate from one text in {sampled:,}"
    if looked := train["languages"]["documents"]:
        was = "all" if looked == train["documents"] else f"{looked:,} drawn at random"
        yield f"languages: by py3langid, of {was}; und: short or not clear, zxx: no language"
    if any(stats.get("longer") and any(stats["longer"].values()) for stats in part["splits"].values()):
        yield "longer documents are not lost: they make several windows"


def _histogram(stats: Result) -> Iterator[str]:
    max_count = max((count for _, _, count in stats["histogram"]), default=1)
    for first, last, count in stats["histogram"]:
        bounds = f"{first:,}" if first == last else f"{first:,}–{last:,}"
        yield f"{bounds:>19}  {'█' * round(_BAR * count / max_count):{_BAR}}  {_part_of(count, stats['documents'])}"


def _epochs(statistics: Result) -> Iterator[str]:
    is_text = any(part["unit"] == "documents" for part in statistics["parts"].values())
    for index, phase in enumerate(statistics["phases"], 1):
        prefix = f"phase {index}: " if len(statistics["phases"]) > 1 else ""
        size = f"{phase['steps']:,} steps of {phase['batch_size']:,} × {phase['length']:,} tokens"
        if phase["epochs"] is None:
            why = "all is read" if statistics["first"] is not None else "there is a vocabulary"
            yield f"{prefix}{size}: epochs are known once {why}"
            continue
        many = len(phase["epochs"]) > 1
        epochs = ", ".join(f"{few(n)}{f' of {name}' if many else ''}" for name, n in phase["epochs"].items())
        yield f"{prefix}{size}: {epochs} epochs" + (", if rows are full of text" if is_text else "")


def _part_of(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def _share(copies: Result) -> str:
    return f"{'about ' if copies['sampled'] > 1 and copies['count'] else ''}{copies['count']:,} ({copies['share']:.1%})"


def _aligned(splits: Mapping[str, Result], rows: Iterable[_Row]) -> Iterator[str]:
    """Names to the left, values to the right of their columns, one for each split."""
    table = [("", *splits), *((name, *map(to_text, splits.values())) for name, to_text in rows)]
    width, *widths = (max(map(len, column)) for column in zip(*table))
    for name, *cells in table:
        yield f"  {name:{width}}  " + "  ".join(map(str.rjust, cells, widths))
