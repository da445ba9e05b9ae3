"""What is said of labelled data once its records are there: rows that were left out or cut, labels that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from jaxpt.config import Config
from jaxpt.data.labelled import checks
from jaxpt.data.labelled.mixed import named
from jaxpt.data.parts import Part
from jaxpt.data.records.store import Store


def labelled_lines(parts: Sequence[Part], stores: dict[str, list[Store]]) -> Iterator[str]:
    """What is said of the records of labelled data.

    Args:
      parts: the tasks.
      stores: of each split the records of each task.

    Yields:
      Lines for the user.

    Raises:
      UserError: there is something that cannot be learnt from, such as a label without rows.
    """
    for number, part in enumerate(parts):
        name = part.name if len(parts) > 1 else ""
        with named(name):
            for line in _task_lines(part.config, {split: of_split[number] for split, of_split in stores.items()}):
                yield f"{name}: {line}" if name else line


def _task_lines(config: Config, stores: dict[str, Store]) -> Iterator[str]:
    """Of one task."""
    cut: dict[str, tuple[int, int]] = {}
    for split, store in stores.items():
        records = store.fetch(np.arange(len(store)))
        cut[split] = int(records["truncated"].sum()), len(store)
        yield from _left_out_lines(split, store)
        if split == "train" and (targets := checks.targets_of(records)) is not None:
            checks.check_targets(config, targets)
    yield from checks.lines(config, cut)


def _left_out_lines(split: str, store: Store) -> Iterator[str]:
    """How many rows gave no record."""
    counts = store.manifest["counts"]
    for name, why in (("too_long", "they are longer than data.length"), ("without_answer", "they have no answer")):
        if count := counts.get(name, 0):
            yield f"{split}: {count:,} of {counts['documents']:,} rows were left out: {why}"
