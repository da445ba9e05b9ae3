"""Hugging Face's directories as models that runs start from: the functions of `jaxpt.train.foreign.Reader`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxpt.config import Config
from jaxpt.data.calls import Vocabulary
from jaxpt.hf import generation, origin
from jaxpt.hf.directory import open_directory, read_config, renamed_heads
from jaxpt.models.stored import parameters, stored_params
from jaxpt.objectives.formats import text_format
from jaxpt.objectives.labelled import LabelledLoss
from jaxpt.train.foreign import Opened

renamed = renamed_heads


def reads(path: Path) -> bool:
    """True if a directory is in Hugging Face's form, and no run_dir."""
    return (path / "config.json").is_file() and not (path / "checkpoints").is_dir()


def kind(path: Path) -> str:
    """`model.kind` of the model in a directory."""
    return read_config(path)[1].kind


def labels(path: Path) -> tuple[str, ...] | None:
    """Names of the classes of a fine-tuned model in their order; None if it has none."""
    named = json.loads((path / "config.json").read_text(encoding="utf-8")).get("id2label") or {}
    return tuple(named[key] for key in sorted(named, key=int)) or None


def open(path: Path, partial: bool) -> Opened:
    """Opens a directory; with `partial` tensors may be missing, or left over."""
    opened = open_directory(path, partial=partial)

    def read() -> Iterator[tuple[str, np.ndarray]]:  # traces the network, which not everyone needs
        yield from parameters(opened.pieces(), stored_params(opened.network))

    return Opened(read(), opened.network)


def eos(run_dir: Path, vocab_size: int) -> tuple[int, ...]:
    """Ids that end a text, by the files that `carry` has left in a run_dir; () if it has left none."""
    return generation.read(origin.folder_of(run_dir), vocab_size).eos


def carry(config: Config, vocabulary: Vocabulary) -> None:
    """Takes over the configuration files of the directory that the weights come from (`jaxpt.hf.origin`).

    Args:
      config: of a run that begins.
      vocabulary: the run's.
    """
    if config.init_from is None or not (origin.folder_of(config.init_from.path) / origin.CONFIG).is_file():
        return
    source, path = Path(config.init_from.path).resolve(), config.data.tokenizer.path
    run_dir = source.parents[1] if source.parent.name == "checkpoints" else source
    is_theirs = path is not None and Path(path).resolve().is_relative_to(run_dir)
    family, languages, objective = config.model.family, vocabulary.languages, config.objective
    writes = family == "encoder_decoder" and not isinstance(objective.loss, LabelledLoss)
    if writes and languages and len(languages) > 1:  # which one begins a text is a matter of the example
        writes = False
    language = languages[0] if languages else None
    begins = text_format(objective, config.model, vocabulary, language=language).decoder_start if writes else ()
    eos = None if family == "encoder" else vocabulary.eos
    origin.carry(source, Path(config.run_dir), eos=eos, start=begins, same_tokenizer=is_theirs)
