"""The statistics of `jaxpt data` as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxpt.train.amounts import few
from jaxpt.train.display import number

Result = Mapping[str, Any]
_BAR = 32  # characters
_MOST_LANGUAGES, _MOST_LABELS = 8, 20


def lines(found: Result) -> Iterator[str]:
    """All of `jaxpt.report.data.measure`, for people.

    Args:
      found: what it gave.

    Yields:
      Lines.
    """
    vocabulary, unit = found["vocabulary"], found["unit"]
    if vocabulary is not None:
        yield f"vocabulary: {vocabulary['kind']}, {vocabulary['size']:,} ids"
    elif unit == "words":
        yield "vocabulary: none yet (a run trains it, or init_from.path has it); lengths are in words"
    if found["first"] is not None:
        yield f"only the first {found['first']:,} of each split were read"
    for name, part in found["parts"].items():
        yield ""
        yield (f"{name}: " if len(found["parts"]) > 1 else "") + f"{part['source']}"
        yield from part["found"]
        yield from _aligned(_rows(part, unit))
        yield from _notes(part)
        yield ""
        yield f"length of the training set's {part['unit']} in {unit}"
        yield from _histogram(part["splits"]["train"])
    yield ""
    yield from _epochs(found)


def _rows(part: Result, unit: str) -> Iterator[tuple[str, list[str]]]:
    """(what, its value in each split)."""
    splits: dict[str, Result] = part["splits"]
    each = list(splits.values())
    yield "", list(splits)
    yield part["unit"], [f"{stats['documents']:,}" for stats in each]
    if any(stats["empty"] for stats in each):
        yield "  empty, left out", ["" if stats["empty"] is None else f"{stats['empty']:,}" for stats in each]
    if any(stats["characters"] for stats in each):
        yield "bytes of text", [number(stats["bytes"]) for stats in each]
        yield "words", [number(stats["words"]) for stats in each]
    if unit == "tokens":
        yield "tokens", [number(stats["total"]) for stats in each]
    for name in each[0]["lengths"]:
        yield (
            f"{unit} in a {part['unit'][:-1]}: {name}" if name == "mean" else f"  {name}",
            [f"{stats['lengths'][name]:,.0f}" for stats in each],
        )
    for column in each[0]["columns"] if len(each[0]["columns"]) > 1 else ():
        picked = [stats["columns"].get(column, each[0]["columns"][column]) for stats in each]
        yield (
            f"{unit} in {column}: 5, 50, 95 %",
            [f"{quantiles['5%']:,}, {quantiles['50%']:,}, {quantiles['95%']:,}" for quantiles in picked],
        )
    for length in each[0].get("longer") or ():
        yield (
            f"longer than {int(length):,} tokens",
            [_part_of(stats["longer"][length], stats["documents"]) for stats in each],
        )
    if any(stats["cut"] for stats in each):
        yield (
            "cut to data.length",
            [_part_of(stats["cut"]["cut"], stats["cut"]["examples"]) if stats["cut"] else "" for stats in each],
        )
    if any(stats["cut"] and stats["cut"]["left_out"] for stats in each):
        yield "left out", [f"{stats['cut']['left_out']:,}" if stats["cut"] else "" for stats in each]
    yield "copies of another one", [_share(stats["duplicates"]) for stats in each]
    yield "also in train", ["", *(_share(stats["in_train"]) for stats in each[1:])]
    yield from _labels(each)
    yield from _languages(each)


def _labels(each: list[Result]) -> Iterator[tuple[str, list[str]]]:
    """The balance of labels, or the numbers to predict."""
    labels: dict[str, None] = dict.fromkeys(label for stats in each for label in stats.get("labels", {}))
    totals = [sum(stats.get("labels", {}).values()) for stats in each]
    for label in list(labels)[:_MOST_LABELS]:
        yield f"label {label}", [_part_of(stats.get("labels", {}).get(label, 0), n) for stats, n in zip(each, totals)]
    if len(labels) > _MOST_LABELS:
        yield f"and {len(labels) - _MOST_LABELS:,} more labels", ["" for _ in each]
    for name in ("mean", "5%", "50%", "95%") if "values" in each[0] else ():
        yield (
            f"number to predict: {name}",
            [f"{stats['values'][name]:.4g}" if "values" in stats else "" for stats in each],
        )


def _languages(each: list[Result]) -> Iterator[tuple[str, list[str]]]:
    shares = [stats["languages"]["shares"] for stats in each]
    names = list(dict.fromkeys(name for by_language in shares for name in by_language))
    for name in names[:_MOST_LANGUAGES]:
        yield f"language {name}", [f"{by_language[name]:.1%}" if name in by_language else "" for by_language in shares]


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


def _aligned(rows: Iterator[tuple[str, list[str]]]) -> Iterator[str]:
    """Names to the left, values to the right of their columns."""
    table = list(rows)
    wide = max(len(name) for name, _ in table)
    widths = [max(len(cells[n]) for _, cells in table) for n in range(len(table[0][1]))]
    for name, cells in table:
        yield f"  {name:{wide}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))
