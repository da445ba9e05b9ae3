"""`jaxpt inspect`: examples as the model will see them, on the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxpt.config import Config, at_phase, phase_starts, to_yaml, without_unfreezing
from jaxpt.errors import UserError
from jaxpt.report import text
from jaxpt.report.batches import Shown, segments
from jaxpt.report.facts import facts, of_vocabulary, statistics
from jaxpt.report.html import page
from jaxpt.runtime.disk import write_text
from jaxpt.train import amounts, preflight

if TYPE_CHECKING:
    from jaxpt.data.calls import Vocabulary
    from jaxpt.data.stream.loader import Stream

_LOOKED_AT = 256  # rows in the statistics of a page
_NAMES = {"lm": "LM", "bart": "BART", "mbart": "mBART", "mass": "MASS", "ul2": "UL2", "unilm": "UniLM"}
_HYPHENATED = ("fill_in_the_middle", "text_to_text")


def inspect(
    config: Config, *, count: int = 8, at: int = 0, split: str = "train", phase: int = 1, html: str | None = None
) -> None:
    """Prints examples of a recipe's stream, or writes them to a page.

    Args:
      config: the run's configuration.
      count: how many examples.
      at: index of the first one: row at % batch_size of the phase's step at // batch_size, or of the validation split.
      split: "train" or "validation".
      phase: which of `train.phases`, from 1.
      html: a file to write instead of printing.

    Raises:
      UserError: the recipe has no such phase, the validation split ends before `at`, or the data cannot be read.
    """
    preflight.check_recipe(config)
    from jaxpt.data.datasets import prepare

    config = without_unfreezing(config)
    phases = len(phase_starts(config))
    if phase > phases:
        raise UserError(f"--phase {phase}: the recipe has {phases} phase{'s' if phases > 1 else ''}")
    data = prepare(config, phase - 1, save=False)
    stream = data.train if split == "train" else data.validation
    stop = at + count if split == "train" else min(at + count, len(stream))
    if at >= stop:
        raise UserError(f"--at {at}: the validation split ends with example {len(stream) - 1}")
    source = data.fingerprint["source"]
    files = {
        task.name: [file["name"] for file in source.get(task.name, source).get("files", {}).get(split, ())]
        for task in stream.tasks
    }
    labels = getattr(config.task, "labels", None)
    examples = [
        Shown(index, facts(example, files[example["task"]], stream.features, labels), segments(example, data.tokenizer))
        for index, example in ((i, stream.example(i, shuffled=split == "train")) for i in range(at, stop))
    ]
    title = f"{display_name(config.objective.kind)}, {_range(at, stop)} of {split}"
    title += f", phase {phase} of {phases}" if phases > 1 else ""
    starts = (*phase_starts(config), config.train.steps)
    line = amounts.line(at_phase(config, phase - 1), data, starts[phase] - starts[phase - 1])
    if html is None:
        text.show(title, line, examples)
    else:
        about = {"vocabulary": of_vocabulary(data.tokenizer), **_statistics(stream, data.vocabulary)}
        write_text(Path(html), page(title, line, examples, about, to_yaml(config)))
        print(f"wrote {html}")


def _statistics(stream: Stream, vocabulary: Vocabulary) -> dict[str, dict[str, str]]:
    """Figures of rows from all over a split, under a heading that says of how many."""
    rows = np.unique(np.linspace(0, len(stream) - 1, _LOOKED_AT).astype(np.int64))
    heading = f"statistics of {'all' if len(rows) == len(stream) else f'{len(rows)} of'} {len(stream):,} rows"
    return {heading: statistics(stream.rows(rows), vocabulary)}


def display_name(kind: str) -> str:
    """An objective's name as papers write it.

    Example:
      >>> display_name("masked_lm"), display_name("my_lab.reverse_lm"), display_name("text_to_text")
      ('masked LM', 'reverse LM', 'text-to-text')
    """
    name = kind.rpartition(".")[2]
    if name in _HYPHENATED:
        return name.replace("_", "-")
    return " ".join(_NAMES.get(word, word) for word in name.split("_"))


def _range(at: int, stop: int) -> str:
    return f"example {at}" if stop - at == 1 else f"examples {at}–{stop - 1}"
