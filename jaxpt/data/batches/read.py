"""A run's data from prepared batches, bit for bit those of the stream. No TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import parts, tokenizers
from jaxpt.data.base import Data
from jaxpt.data.batches import manifest as manifests
from jaxpt.data.batches.files import Reader, unpacked
from jaxpt.data.batches.manifest import Manifest, Phase, Rows
from jaxpt.data.fingerprint import as_json, changes, fingerprint, transforms_of
from jaxpt.data.stream.feed import Batch, Which, ahead, places, steps_of
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError


def open_batches(
    config: Config, phase: int = 0, save: bool = True, check_source: Callable[[Any], None] = lambda source: None
) -> Data:
    """The data of one phase, from the directory that `data.path` names.

    Args:
      config: the run's configuration.
      phase: which of `train.phases`, from 0.
      save: put the vocabulary into `run_dir/tokenizer`.
      check_source: as of `jaxpt.data.datasets.prepare`.

    Returns:
      What `jaxpt.data.datasets.prepare` returned when the batches were written, without records.

    Raises:
      UserError: the batches are of another recipe, or a file is missing or damaged.
    """
    config, directory = configs.at_phase(config, phase), manifests.path_of(config)
    manifest = manifests.read(directory)
    if phase >= len(manifest.phases):
        raise UserError(f"{directory}: its {manifest.steps:,} steps end before phase {phase + 1}")
    saved_phase, saved = manifest.phases[phase], configs.without_unfreezing(configs.build(manifest.config))
    manifests.check_phase(directory, configs.at_phase(saved, phase), config)
    check_source(saved_phase.fingerprint["source"])
    tokenizer = _tokenizer(config, directory, manifest, save)
    config.objective.check(config.model, config.data.length, tokenizer.vocabulary)
    _check_same(config, phase, directory, saved_phase, tokenizer)
    of_phase = directory / manifests.folder(phase)
    validation = saved_phase.validation.items()
    held_out = [_Task(name, rows, Reader(of_phase, f"validation-{name}", rows.files)) for name, rows in validation]
    train = Reader(of_phase, "train", saved_phase.train.files)
    return Data(
        tokenizer=tokenizer,
        vocabulary=tokenizer.vocabulary,
        train=TrainingBatches(train, saved_phase, config.data.batch_size, config.data.readers),
        validation=ValidationRows(held_out, saved_phase, config.data.readers),
        stores={},
        fingerprint=saved_phase.fingerprint,
        summary=saved_phase.summary,
        text_per_row=saved_phase.text_per_row,
        code=saved_phase.code,
        baseline_loss=saved_phase.bigram_loss,
    )


def _tokenizer(config: Config, directory: Path, manifest: Manifest, save: bool) -> Tokenizer:
    """The vocabulary of the batches, which the run keeps."""
    settings = config.data.tokenizer
    load = functools.partial(
        tokenizers.load, kind=settings.kind, lowercase=settings.lowercase, extra_ids=settings.extra_ids,
        max_size=config.model.vocab_size, languages=manifest.languages,
    )  # fmt: skip
    tokenizer, tokenizer_dir = load(directory / manifests.TOKENIZER), Path(config.run_dir) / "tokenizer"
    if tokenizer_dir.is_dir():
        if load(tokenizer_dir).digest() != tokenizer.digest():
            raise UserError(
                f"{directory}: its batches have another vocabulary than the run, whose own is {tokenizer_dir}"
            )
    elif settings.path is not None and Path(settings.path).exists():
        tokenizers.check_same(config, tokenizer, f"of the batches in {directory}: leave it out, or prepare them again")
    if save and not tokenizer_dir.is_dir():
        tokenizers.publish(tokenizer, tokenizer_dir)
    return tokenizer


def _check_same(config: Config, phase: int, directory: Path, saved_phase: Phase, tokenizer: Tokenizer) -> None:
    """Raises UserError where the recipe would make other batches now."""
    was, data = saved_phase.fingerprint, config.data
    part_configs = {part.name: part.config for part in parts.parts(config)}
    names = list(was["mixture"])
    configs = [part_configs.get(name, config) for name in names]  # tasks of a SeqIO Mixture have the recipe's
    now = as_json(
        fingerprint(
            config,
            phase,
            was["source"] if len(names) > 1 else {names[0]: was["source"]},
            tokenizer.digest(),
            was["records"],
            [transforms_of(part_config, tokenizer.vocabulary) for part_config in configs],
            [was["mixture"][name] for name in names],
            was.get("order", 1),
            was.get("stores"),
        )
    )
    features = as_json({name: list(spec) for name, spec in config.objective.data_spec(data.length).features.items()})
    before = {"features": as_json({name: list(spec) for name, spec in saved_phase.features.items()}), **was}
    if different := changes(before, {"features": features, **now}):
        key, (old, new) = min(different.items(), key=lambda item: item[0].startswith("features"))  # arguments say why
        raise manifests.different(directory, key, old, new)


@dataclasses.dataclass(frozen=True)
class TrainingBatches:
    """Training batches, from files."""

    reader: Reader
    phase: Phase
    batch_size: int
    readers: int = 0

    def batches(self, start: int = 0, rows: Which = None) -> Iterator[Batch]:
        """Batches from a step on, to the last that there is.

        Args:
          start: first step, counted from the start of the phase.
          rows: this process's rows of the global batch; all by default.

        Returns:
          An iterator of {feature: array [rows, ...]}.
        """
        together = self.phase.train.per_member // self.batch_size
        members = range(start // together, steps_of(self.phase.steps, together))
        stored = ahead(self.reader.member, members, self.readers)
        return self._steps(stored, start % together, slice(None) if rows is None else rows)

    def _steps(self, members: Iterator[np.ndarray], skipped: int, rows: np.ndarray | slice) -> Iterator[Batch]:
        for member in members:
            for first in range(skipped * self.batch_size, len(member), self.batch_size):
                yield unpacked(member[first : first + self.batch_size][rows], self.phase.features)
            skipped = 0


@dataclasses.dataclass(frozen=True)
class _Task:
    """The validation rows of a task, read once and kept packed in memory."""

    name: str
    stored: Rows
    reader: Reader

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """Those that are there, of one type."""
        return _joined([self.reader.member(n) for n in range(steps_of(self.stored.rows, self.stored.per_member))])


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Packed rows one after the other; each feature in the smallest type that holds those of all."""
    if len(parts) == 1:  # without a copy
        return parts[0]
    first = parts[0].dtype
    wide = [
        (name, np.result_type(*(part.dtype[name].base for part in parts)), first[name].shape) for name in first.names
    ]
    return np.concatenate([part.astype(wide) for part in parts])


@dataclasses.dataclass(frozen=True)
class ValidationRows:
    """Validation rows, from files."""

    tasks: Sequence[_Task]
    phase: Phase
    readers: int = 0

    def __len__(self) -> int:
        return sum(task.stored.of for task in self.tasks)

    def each(self) -> dict[str, ValidationRows]:
        """Those of each task."""
        return {task.name: ValidationRows([task], self.phase, self.readers) for task in self.tasks}

    def epoch(self, batch_size: int, limit: int | None = None, rows: Which = None) -> Iterator[Batch]:
        """Each of the first `limit` rows once: what the stream gave (`jaxpt.data.stream.loader.Stream.epoch`).

        Args:
          batch_size: rows of the global batch; the last one is filled up with rows of zeros.
          limit: only the first so many rows.
          rows: this process's rows of the global batch; all by default.

        Returns:
          An iterator of {feature: array [rows, ...]}.

        Raises:
          UserError: there are fewer rows in the files.
        """
        end = len(self) if limit is None else min(limit, len(self))
        stored = _joined([task.rows for task in self.tasks])
        if end > len(stored):
            raise UserError(f"the prepared batches hold {len(stored):,} validation rows, {end:,} are wanted")

        def batch(step: int) -> Batch:
            index, size = places(step, batch_size, end, rows, self.phase.continues)
            features = unpacked(stored[index], self.phase.features)
            return {name: np.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)) for name, x in features.items()}

        return ahead(batch, range(steps_of(end, batch_size)), self.readers)
