"""`jaxpt data`: what a recipe's texts or labelled rows are, before anything is trained on them."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxpt import errors
from jaxpt.config import Config, at_phase, phase_starts, without_unfreezing
from jaxpt.errors import UserError
from jaxpt.runtime.progress import progress
from jaxpt.study.recipes import load_data
from jaxpt.train import amounts
from jaxpt.train.amounts import few
from jaxpt.train.display import number

if TYPE_CHECKING:
    from jaxpt.data.parts import Part

Result = dict[str, Any]
_BAR = 32  # characters
_MOST_LANGUAGES, _MOST_LABELS = 8, 20


def data(path: str, overrides: Sequence[str] = (), limit: int | None = None, as_json: bool = False) -> None:
    """Prints statistics of a recipe's data: documents, lengths, languages, equal texts, labels, epochs.

    Args:
      path: the recipe; one of fine-tuning need not say from which model it starts.
      overrides: `key=value`.
      limit: only the first so many documents of a split are read.
      as_json: print one JSON object.

    Raises:
      UserError: the data cannot be read.
    """
    measured = measure(*load_data(path, overrides, errors.note), limit)
    if as_json:
        print(json.dumps(measured, indent=2))
        return
    for line in lines(measured):  # which has texts and labels in it: no control character reaches the terminal
        print("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))


def measure(config: Config, has_tokenizer: bool = True, limit: int | None = None) -> Result:
    """The statistics, ready for JSON.

    Args:
      config: the recipe.
      has_tokenizer: False: it says nothing of a vocabulary; lengths are in words.
      limit: as `data`.
    """
    from jaxpt.data import run_tokenizer, statistics
    from jaxpt.data.parts import parts as parts_of
    from jaxpt.data.sources.opening import open_source

    config = without_unfreezing(config)
    first = at_phase(config, 0)
    if first.objective.data_spec(first.data.length).max_target_tokens is not None:
        raise UserError(
            f"objective.kind: {first.objective.kind}: jaxpt data reads documents and rows, not the inputs and targets "
            "of a SeqIO Task; jaxpt inspect shows its examples"
        )
    parts = parts_of(first)
    with progress(None) as say:
        sources = [open_source(part.config.data, None, part.config.task) for part in parts]
        tokenizer = run_tokenizer.existing(first, parts, sources) if has_tokenizer else None
        lengths = list(dict.fromkeys(at_phase(config, phase).data.length for phase in range(len(phase_starts(config)))))
        measured = {
            part.name: {
                "source": amounts.of_source(part.config.data),
                "task": part.config.task and part.config.task.kind,
            }
            | statistics.measure(part.config, source, tokenizer, lengths, limit, say.update)
            for part, source in zip(parts, sources)
        }
    unit = "tokens" if tokenizer is not None or any(source.tokenized for source in sources) else "words"
    trains = [part["splits"]["train"] for part in measured.values()]
    is_whole = limit is None or all(train["documents"] < limit for train in trains)
    is_known = is_whole and (config.task is not None or unit == "tokens")
    sizes = {name: _size(part) for name, part in measured.items()}
    return {
        "vocabulary": None if tokenizer is None else {"kind": tokenizer.kind, "size": tokenizer.vocabulary.size},
        "unit": unit,
        "first": None if is_whole else limit,
        "parts": measured,
        "phases": [phase | ({} if is_known else {"epochs": None}) for phase in _phases(config, parts, sizes)],
    }


def _size(part: Result) -> int:
    """Of the training set: examples, or tokens. A row may be several examples, which a vocabulary tells."""
    train = part["splits"]["train"]
    if part["unit"] != "rows":
        return train["total"]
    return train["cut"]["examples"] if train["cut"] else train["documents"]


def _phases(config: Config, parts: Sequence[Part], sizes: dict[str, int]) -> Iterator[Result]:
    """Steps of each phase, and epochs of each task: of examples exactly, of text as if each row were full of it; None
    of examples of which a run packs as many as fit into a row."""
    from jaxpt.data.stream.order import proportional

    starts = (*phase_starts(config), config.train.steps)
    for phase, (start, end) in enumerate(itertools.pairwise(starts)):
        data = at_phase(config, phase).data
        rates = [part.rate for part in parts]
        if None in rates:
            rates = proportional(list(sizes.values()), data.mixture_temperature, data.mixture_cap)
        examples = (end - start) * (data.batch_examples or data.batch_size)
        read = examples * (data.length if config.task is None else 1) / sum(rates)
        yield {
            "steps": end - start, "batch_size": data.batch_size, "length": data.length,
            "epochs": None if config.task is not None and data.packing and data.batch_examples is None
            else {name: read * rate / max(sizes[name], 1) for name, rate in zip(sizes, rates)},
        }  # fmt: skip


# ---- as lines of text -----------------------------------------------------------------------------------------------


def lines(statistics: Result) -> Iterator[str]:
    """All of `measure`, for people.

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
            yield f"{split}: {example['copies']:,} times: {example['text'] or '(no text)'}"
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
            why = "there is a vocabulary" if is_text else "a run packs its rows"
            why = "all is read" if statistics["first"] is not None else why
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
