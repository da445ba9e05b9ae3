"""What is wrong with a recipe's data, found before a text is read. No TensorFlow."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from jaxpt.config import Config
from jaxpt.data import chat_template, parts, spec, tables, tokenizers
from jaxpt.data.labelled import checks as labelled
from jaxpt.data.sources import readers
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.errors import UserError
from jaxpt.runtime import disk


def check(config: Config) -> None:
    """Finds what is wrong before a text is read, a vocabulary trained or a model made.

    Args:
      config: the run's configuration in one phase.

    Raises:
      UserError: a model of another family, a missing file, a source or rows that the objective cannot take, or settings
        that cannot be right; where a vocabulary is still to be trained, by what is known of it.
    """
    data, objective, settings = config.data, config.objective, config.data.tokenizer
    objective.check_family(config.model)
    objective.check_settings(config.model, data.length)
    if data.source == "batches":  # `batches.manifest.check` looks at them
        return
    _check_cache(cache_root(config))
    data_spec = spec.checked(objective.kind, objective.data_spec(data.length))
    if data.packing:
        data_spec.check_packing(objective.kind)
    if config.task is not None:
        labelled.check(config)
    tasks = parts.parts(config)
    parts.check(objective, tasks)
    if data.batch_examples and objective.carries:
        raise UserError("data.batch_examples: rows that continue from batch to batch hold no separate examples")
    if data.batch_examples and len(tasks) > 1:
        raise UserError("data.batch_examples is for one task; remove it, or data.mixture")
    if config.task is None:
        _check_texts(tasks)
    has_tokenizer = config.run_dir is not None and (Path(config.run_dir) / "tokenizer").is_dir()
    if has_tokenizer:  # with the template
        return
    if data_spec.chat_template is not None:
        _check_chat_template(data_spec.chat_template)
    if settings.path is not None:
        vocabulary_files.find(Path(settings.path), settings.kind)
    elif not any(task.config.data.source == "task" for task in tasks) and not objective.vocabulary_path():
        objective.check(config.model, data.length, tokenizers.planned(settings, trained_size(config)))


def check_held_out(config: Config) -> None:
    """Raises UserError where a run would be validated on a file that it is trained on.

    Args:
      config: the run's configuration in one phase.
    """
    for data in (task.config.data for task in parts.parts(config)):
        if config.task is not None or not readers.is_files(data):
            continue
        files = readers.text_files(data)
        trained = set(map(_real, files["train"]))
        if shared := next((path for path in files["validation"] if _real(path) in trained), None):
            raise UserError(f"data.validation_path: {shared}: is a file of data.path, too; name another one")


def repeated_file(config: Config) -> str | None:
    """Says which file two paths of a list name, so that it is read twice. One path that is repeated counts as often.

    Args:
      config: the run's configuration in one phase.

    Returns:
      A line for the user; None: there is no such file.
    """
    for data in (part.config.data for part in parts.parts(config) if readers.is_files(part.config.data)):
        by_suffix = tables.SUFFIXES if config.task is not None else list(readers.SUFFIXES)
        suffixes = by_suffix if config.task is not None or data.source == "auto" else [""]
        for key in ("path", "validation_path", "test_path"):
            paths, names = getattr(data, key), dict[str, str]()
            for path in dict.fromkeys([] if isinstance(paths, str | None) else paths):
                for file in tables.expand(path, f"data.{key}", suffixes):
                    if (other := names.setdefault(_real(file), path)) != path:
                        return f"data.{key}: {file}: is read twice, {other} and {path} both name it; leave one out"
    return None


def idle_fields(config: Config) -> list[str]:
    """A line for each source of texts whose `field` changes nothing.

    Args:
      config: the run's configuration in one phase.
    """
    sources = [] if config.task is not None else [part.config.data for part in parts.parts(config)]
    return [line for data in sources if readers.is_files(data) and (line := readers.idle_field(data))]


def _real(path: str) -> str:
    """The file that a path names, without links and dots; an address as it is."""
    return path if "://" in path else os.path.realpath(path)


def _check_texts(tasks: tuple[parts.Part, ...]) -> None:
    """Raises UserError where a path or a file of texts is missing, or does not begin as it should."""
    for data in (task.config.data for task in tasks):
        if data.source in ("tfds", "hf"):
            readers.check_path(data)
        elif readers.is_files(data):
            readers.check_beginnings(data)
        elif readers.is_builtin(data) and data.validation_path is not None:
            raise UserError(
                f"data.validation_path: {data.validation_path}: the built-in corpus has a validation set; name files "
                "for training as well, with data.path"
            )


def _check_chat_template(template: str) -> None:
    """Raises UserError for a template that is not there, or is none."""
    chat_template.ChatTemplate(chat_template.source(template), f"objective.template: {template}")


def _check_cache(root: Path) -> None:
    """Raises UserError where nothing is prepared and nothing can be written; what is prepared may be read-only."""
    try:
        if not (root.is_dir() and any(root.iterdir())):
            disk.check_writable(root)
    except OSError as error:
        raise UserError(
            f"{root}: prepared data cannot be written there ({error.strerror}); give another data.cache_dir, or set "
            "XDG_CACHE_HOME"
        ) from None


def cache_root(config: Config) -> Path:
    """Where prepared data is kept: `data.cache_dir`, else `$XDG_CACHE_HOME/jaxpt`, else `~/.cache/jaxpt`."""
    if config.data.cache_dir:
        disk.check_mounted(config.data.cache_dir, "data.cache_dir: ")
        return disk.expanded(Path(config.data.cache_dir), "data.cache_dir")
    return disk.cache_home() / "jaxpt"


def digest(identity: Any) -> str:
    """What names an entry of the cache: a hash of what it was made of.

    Example:
      >>> digest({"length": 128}) == digest({"length": 128}) != digest({"length": 64})
      True
    """
    return hashlib.blake2b(json.dumps(identity, sort_keys=True, default=str).encode(), digest_size=10).hexdigest()


def trained_size(config: Config) -> int:
    """Ids of a vocabulary that is trained for a run, `data.tokenizer.add_tokens` aside.

    Raises:
      UserError: the model has no room for them.
    """
    settings, max_size = config.data.tokenizer, config.model.vocab_size
    size = settings.vocab_size or max_size - len(settings.add_tokens)
    if size + len(settings.add_tokens) > max_size:
        more = f" and {len(settings.add_tokens)} add_tokens" if settings.add_tokens else ""
        raise UserError(f"data.tokenizer.vocab_size: {size}{more} is more than model.vocab_size, {max_size}")
    return size
