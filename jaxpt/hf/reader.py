"""Hugging Face's directories as models that runs start from: the functions of `jaxpt.train.foreign.Reader`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.config import Config
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.hf import formats, generation, origin
from jaxpt.hf.directory import family_of, open_directory, read_config
from jaxpt.models.network import Network
from jaxpt.models.stored import Growing, parameters, stored_params
from jaxpt.objectives.formats import Languages
from jaxpt.runtime import hub
from jaxpt.train.foreign import Opened


def reads(path: Path) -> bool:
    """True if a directory, or a model of the hub, is in Hugging Face's form or one of `jaxpt.hf.formats`, and no
    run_dir."""
    path = hub.local(path)
    if (path / "checkpoints").is_dir():
        return False
    return (path / "config.json").is_file() or formats.is_foreign(path)


def kind(path: Path) -> str:
    """`model.kind` of the model in a directory."""
    return read_config(hub.local(path))[1].kind


def labels(path: Path) -> tuple[str, ...] | None:
    """Names of the classes of a fine-tuned model in their order; None if it has none, or none with numbers."""
    file = hub.local(path) / "config.json"
    if not file.is_file():
        return None
    named = json.loads(file.read_text(encoding="utf-8")).get("id2label") or {}
    if not named or not all(map(str.isdecimal, named)):
        return None
    return tuple(named[key] for key in sorted(named, key=int))


def renamed(source: Network, target: Network) -> dict[str, str]:
    """Parameters of heads that two networks have at different paths, and Hugging Face's classes under one name.

    ModernBERT's masked-LM head begins with the layer that is the pooler of its fine-tuned classes.

    Args:
      source: the network that parameters are taken from.
      target: the network that they go to.

    Returns:
      {path in the source: path in the target}; {} for an architecture or heads that Hugging Face does not have.

    Example:
      >>> renamed(masked_lm_network, classification_network)
      {'heads/masked_lm/dense/kernel': 'heads/pooler/dense/kernel', 'heads/masked_lm/norm/scale': …}
    """
    if source.config.kind != target.config.kind:
        return {}
    try:
        family = family_of(target.config)
        tables = [family.table_of(network) for network in (source, target)]
    except UserError:
        return {}
    mine, yours = ({row.theirs: row.paths[0] for row in t.rows if row.paths[0].startswith("heads/")} for t in tables)
    return {mine[name]: yours[name] for name in mine.keys() & yours.keys() if mine[name] != yours[name]}


def open(path: Path, partial: bool) -> Opened:
    """Opens a directory; with `partial` tensors may be missing, or left over, and missing layers are masked."""
    opened = open_directory(hub.local(path), partial=partial)

    def read() -> Iterator[tuple[str, np.ndarray]]:  # traces the network, which not everyone needs
        incomplete: Growing = {}
        yield from parameters(opened.pieces(), stored_params(opened.network), incomplete)
        for name, (whole, layers) in incomplete.items():
            is_missing = np.ones(whole.shape, bool)
            is_missing[[*layers]] = False
            yield name, np.ma.array(whole, mask=is_missing)

    return Opened(read(), opened.network)


def ids(run_dir: Path, vocab_size: int) -> dict[str, Any]:
    """Fields of `jaxpt.decode.options.Options`, by the files that `carry` has left in a run_dir: ids that end a text
    ("eos"), that are forced or suppressed; {} if it has left none."""
    found = generation.read(origin.folder_of(run_dir), vocab_size)
    return {**found.options, **({"eos": found.eos} if found.eos else {})}


def carry(config: Config, vocabulary: Vocabulary) -> None:
    """Takes over the configuration files of the directory that the weights come from (`jaxpt.hf.origin`).

    Args:
      config: of a run that begins.
      vocabulary: the run's.
    """
    if config.init_from is None:
        return
    source, path = hub.local(config.init_from.path).absolute(), config.data.tokenizer.path
    if not (origin.folder_of(source) / origin.CONFIG).is_file():
        return
    place = origin.run_dir_of(source) or source
    is_theirs = path is not None and hub.local(path).absolute().is_relative_to(place)
    is_theirs = is_theirs or config.init_from.vocabulary == "mean"  # which extends theirs: their ids stay
    eos = None if config.model.family == "encoder" else vocabulary.eos
    begins = decoder_start(config, vocabulary)
    origin.carry(source, Path(config.run_dir), eos=eos, start=begins, same_tokenizer=is_theirs)


def decoder_start(config: Config, vocabulary: Vocabulary) -> tuple[int, ...]:
    """What the decoder of an encoder-decoder reads first in training.

    Args:
      config: of the run.
      vocabulary: the run's.

    Returns:
      The start token, and BOS (BART) or others after it; () of other models, of those that answer by a head, and
      where it depends on the text's language.

    Raises:
      UserError: the vocabulary lacks a special token.
    """
    languages, objective = vocabulary.languages, config.objective
    if config.model.family != "encoder_decoder" or not objective.predicts_tokens:
        return ()
    if languages and len(languages) > 1:  # which one begins a text is a matter of the example
        return ()
    single = Languages(languages[0], languages[0]) if languages else None
    return objective.text_format(config.model, vocabulary, languages=single).decoder_start
