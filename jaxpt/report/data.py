"""`jaxpt data`: what a recipe's texts or labelled rows are, before anything is trained on them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxpt import errors
from jaxpt.config import Config, at_phase, phase_starts, without_unfreezing
from jaxpt.errors import UserError
from jaxpt.report.data_text import lines
from jaxpt.runtime.progress import progress
from jaxpt.study.recipes import load_data
from jaxpt.train import amounts

if TYPE_CHECKING:
    from jaxpt.data.parts import Part

Result = dict[str, Any]


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
    """Of the training set: rows, or tokens."""
    train = part["splits"]["train"]
    return train["documents"] if part["unit"] == "rows" else train["total"]


def _phases(config: Config, parts: Sequence[Part], sizes: dict[str, int]) -> Iterator[Result]:
    """Steps of each phase, and epochs of each task: of rows exactly, of text as if each row were full of it."""
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
            "epochs": {name: read * rate / max(sizes[name], 1) for name, rate in zip(sizes, rates)},
        }  # fmt: skip
