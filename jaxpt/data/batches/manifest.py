"""What a directory of prepared batches holds, and whether a run can train from it.

    DIR/batches.json            the recipe, the phases, what determines their batches, sizes of files; a checksum
    DIR/tokenizer/              as a run keeps it
    DIR/phase-1/train-*.npz     training batches (`files.py`); validation-TASK-*.npz: validation rows
    DIR/rows/SPLIT.jsonl.gz     of labelled data the rows, which its metrics read; of a mixture DIR/TASK/rows/…

No TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data.fingerprint import as_json
from jaxpt.errors import UserError, shown
from jaxpt.runtime.disk import checksum, read_json, write_text

NAME = "batches.json"
TOKENIZER = "tokenizer"
FORMAT = 1
_LIMIT = 1 << 30


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows in files."""

    rows: int
    """Number of rows."""
    per_member: int
    files: dict[str, int]
    """{file: bytes}."""
    of: int
    """Number of rows of the whole validation set, from which these were taken."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """The batches of one phase."""

    start: int
    """Its first step, from 0."""
    steps: int
    features: dict[str, tuple[tuple[int, ...], str]]
    train: Rows
    validation: dict[str, Rows]
    """By task."""
    continues: bool
    """Rows continue their text from batch to batch."""
    fingerprint: dict[str, Any]
    summary: dict[str, dict[str, int]]
    text_per_row: float
    code: dict[str, str]
    bigram_loss: float | None
    """The baseline that counts training batches, a unigram one too, where the recipe has one; of `eval_examples`."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """All of a directory."""

    config: dict[str, Any]
    """The recipe, as plain values."""
    steps: int
    languages: tuple[str, ...]
    """Names of tokens that the vocabulary holds (`data.language`)."""
    phases: tuple[Phase, ...]
    version: str
    """Of jaxpt."""


def folder(phase: int) -> str:
    """The directory of a phase, from 0."""
    return f"phase-{phase + 1}"


def write(directory: Path, manifest: Manifest) -> None:
    """Writes `batches.json`: last, so that a directory that has one is whole."""
    content = as_json({"format": FORMAT} | dataclasses.asdict(manifest))
    write_text(directory / NAME, json.dumps(content | {"crc32": checksum(content)}, indent=1) + "\n")


def read(directory: Path) -> Manifest:
    """Reads `batches.json`.

    Args:
      directory: what `data.path` names.

    Raises:
      UserError: there is none, it is damaged, or a later version wrote it.
    """
    file = directory / NAME
    if not file.is_file():
        raise UserError(
            f"data.path: {directory}: holds no {NAME}; `jaxpt cache RECIPE --batches STEPS --out DIR` writes one"
        )
    fields = read_json(file, _LIMIT)
    try:
        written, kind = fields.pop("crc32"), fields["format"]
        if kind != FORMAT:
            raise UserError(f"{file}: has format {shown(kind)}, this version of jaxpt reads {FORMAT}")
        if written != checksum(fields):
            raise ValueError
        return TypeAdapter(Manifest).validate_python(fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{file}: is damaged; copy it again, or prepare the batches again") from None


def path_of(config: Config) -> Path:
    """The directory that `data.path` names.

    Raises:
      UserError: it names none, or several.
    """
    if not isinstance(config.data.path, str):
        raise UserError(
            f"data.path: data.source: batches wants the directory that `jaxpt cache --batches` wrote, got "
            f"{shown(config.data.path)}"
        )
    return Path(config.data.path)


def check(config: Config) -> None:
    """Finds out whether a run can train from the batches that `data.path` names.

    Args:
      config: the run's configuration, with all its phases.

    Raises:
      UserError: they are not there, were prepared with other settings, or are too few.
    """
    directory = path_of(config)
    manifest = read(directory)
    saved = configs.build(manifest.config, lambda key: f"{directory / NAME}")
    steps = config.train.steps
    if steps > manifest.steps:
        raise UserError(
            f"{directory}: holds the batches of {manifest.steps:,} steps, the run has {steps:,} (train.steps); prepare "
            f"more with `jaxpt cache RECIPE --batches {steps} --out DIR`, or set train.steps={manifest.steps}"
        )
    plain, was = configs.without_unfreezing(config), configs.without_unfreezing(saved)
    starts, theirs = configs.phase_starts(plain), [phase.start for phase in manifest.phases if phase.start < steps]
    if list(starts) != theirs:
        raise different(directory, "the first step of each phase", theirs, list(starts))
    for index in range(len(starts)):
        check_phase(directory, configs.at_phase(was, index), configs.at_phase(plain, index))


def check_phase(directory: Path, saved: Config, config: Config) -> None:
    """Raises UserError where a key of the data differs from that of the batches.

    Args:
      directory: the batches'.
      saved: the recipe that they were prepared with, in one phase.
      config: the run's, in the same phase.
    """
    theirs, mine = ([task.name for task in recipe.data.mixture] for recipe in (saved, config))
    if theirs != mine:  # else a key of its first task would be named
        raise different(directory, "data.mixture", theirs, mine)
    for key, was, now in configs.differences(saved, config):
        if key == "seed" or key.startswith("data."):
            raise different(directory, key, was, now)
    limit, saved_limit = config.train.eval_examples, saved.train.eval_examples
    if saved_limit is not None and (limit is None or limit > saved_limit):
        raise different(directory, "train.eval_examples", saved_limit, limit)


def different(directory: Path, key: str, was: Any, now: Any) -> UserError:
    """What is said where a recipe would make other batches now."""
    return UserError(
        f"{directory}: its batches were prepared with other settings: {key} was {shown(was)}, is {shown(now)}; set it "
        "back, or prepare the batches again"
    )


def recipe(config: Config) -> dict[str, Any]:
    """The recipe that the batches of `data.path` were prepared with, as plain values."""
    return read(path_of(config)).config
