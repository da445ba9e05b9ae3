"""`jaxpt cache RECIPE --batches STEPS --out DIR`: writes the very batches that a run would see."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import datasets
from jaxpt.data.base import Data
from jaxpt.data.batches import manifest as manifests
from jaxpt.data.batches.files import packed, rows_per_member, write_members
from jaxpt.data.batches.manifest import Manifest, Phase, Rows
from jaxpt.data.labelled.examples import split_rows
from jaxpt.data.labelled.files import prepared_rows
from jaxpt.data.parts import each_task
from jaxpt.data.stream.feed import Batch
from jaxpt.data.stream.loader import Stream
from jaxpt.errors import UserError
from jaxpt.runtime.disk import check_writable, whole_directory, writing
from jaxpt.runtime.progress import Report, progress
from jaxpt.runtime.version import __version__

LEAST = 16
"""Validation rows that are kept at least, to look at."""
Baseline = Callable[[Config, Data], float]


def write_batches(
    config: Config, steps: int, out: str | Path, baseline: Baseline, report: Report | None = None, **preparing: Any
) -> Manifest:
    """Writes the batches of a run's first steps, with all that training from them needs.

    Args:
      config: the recipe.
      steps: how many, over all phases.
      out: a directory that is not there yet, or is empty.
      baseline: computes a baseline that counts training batches, if the recipe has that evaluator.
      report: called with a line of progress now and then.
      **preparing: how the records are made: workers, verify and beam of `datasets.prepare`.

    Returns:
      What was written.

    Raises:
      UserError: the directory holds something, or the data is not as it should be.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out: {out}: is there already; name another directory, or delete it")
    check_writable(out)
    config = configs.without_unfreezing(config)
    with whole_directory(out) as partial:
        starts = [start for start in configs.phase_starts(config) if start < steps]
        ends = [*starts[1:], steps]
        phases: list[Phase] = []
        languages: tuple[str, ...] = ()
        for index, (start, end) in enumerate(zip(starts, ends)):
            data = datasets.prepare(config, index, report, save=False, **preparing)
            of_phase = configs.at_phase(config, index)
            folder = partial / manifests.folder(index)
            phases.append(_phase(of_phase, folder, start, end - start, data, baseline, report))
            if index == 0:
                languages = tuple(data.tokenizer.tokens(list(data.vocabulary.languages)))
                data.tokenizer.save(partial / manifests.TOKENIZER)
        if config.task is not None:
            _write_rows(config, partial)
        manifest = Manifest(configs.dump(config), steps, languages, tuple(phases), __version__)
        manifests.write(partial, manifest)
    return manifest


def _phase(
    config: Config, folder: Path, start: int, steps: int, data: Data, baseline: Baseline, report: Report | None
) -> Phase:
    """Writes the batches of one phase."""
    folder.mkdir()
    train, held_out, size = data.train, data.validation, config.data.batch_size
    assert isinstance(train, Stream) and isinstance(held_out, Stream)
    with progress(report) as say:

        def batches() -> Iterator[Batch]:
            for number, batch in enumerate(itertools.islice(train.batches(), steps), 1):
                say.update(f"writing batches: {number:,} of {steps:,} steps")
                yield batch

        training = _write(folder, "train", batches(), size, steps * size)
    limit, validation = config.train.eval_examples, {}
    for name, stream in held_out.each().items():
        count = len(stream) if limit is None else min(max(limit, LEAST), len(stream))
        rows = (stream.rows(np.arange(first, min(first + size, count))) for first in range(0, count, size))
        validation[name] = _write(folder, f"validation-{name}", rows, size, len(stream))
    counts = config.objective.baseline.loss is None and any(e.kind == "baseline" for e in config.evals)
    return Phase(
        start=start,
        steps=steps,
        features={name: (tuple(shape), dtype) for name, (shape, dtype) in train.features.items()},
        train=training,
        validation=validation,
        continues=train.continues,
        fingerprint=data.fingerprint,
        summary=data.summary,
        text_per_row=data.text_per_row,
        code=data.code,
        bigram_loss=baseline(config, data) if counts else None,
    )


def _write(folder: Path, name: str, batches: Iterable[Batch], unit: int, num_available: int) -> Rows:
    """Writes batches of `unit` rows, the last one of fewer."""
    batches, rows = iter(batches), 0
    first = next(batches)
    per_member = rows_per_member(packed(first), unit)

    def members() -> Iterator[np.ndarray]:
        nonlocal rows
        remaining = itertools.chain([first], batches)
        while group := list(itertools.islice(remaining, per_member // unit)):
            member = packed({feature: np.concatenate([batch[feature] for batch in group]) for feature in first})
            rows += len(member)
            yield member

    files = write_members(folder, name, members())
    return Rows(rows, per_member, files, num_available)


def _write_rows(config: Config, directory: Path) -> None:
    """Writes the rows of a task's splits, of a mixture of each task's, which its metrics read."""
    for name, task_config in each_task(config).items():
        for split in ("train", "validation", "test") if task_config.data.has_test else ("train", "validation"):
            file = prepared_rows(directory / name, split)
            file.parent.mkdir(parents=True, exist_ok=True)
            values = (row.row.values for row in split_rows(task_config, split))
            with writing(file), gzip.GzipFile(file, "wb", mtime=0) as out:
                out.writelines(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n" for row in values)
