"""`jaxpt inspect`: examples as the model will see them, on the terminal or as a page."""

from __future__ import annotations

from pathlib import Path

from jaxpt.config import Config, phase_starts, without_unfreezing
from jaxpt.disk import write_text
from jaxpt.errors import UserError
from jaxpt.report import text
from jaxpt.report.batches import Shown, segments
from jaxpt.report.facts import facts
from jaxpt.report.html import page


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
    shown = [
        Shown(index, facts(example, files[example["task"]]), segments(example, data.tokenizer))
        for index, example in ((i, stream.example(i, shuffled=split == "train")) for i in range(at, stop))
    ]
    title = f"{config.objective.kind}, {split}" + (f", phase {phase} of {phases}" if phases > 1 else "")
    if html is None:
        text.show(title, shown)
    else:
        write_text(Path(html), page(title, shown))
        print(f"wrote {html}")
