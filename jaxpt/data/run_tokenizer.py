"""The vocabulary of a run: its own, one that the recipe names, or one that is trained and kept in the cache."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpt.config import Config, cache_key_fields
from jaxpt.data import chat_template, tokenizers
from jaxpt.data.checks import cache_root, digest, trained_size
from jaxpt.data.parts import Part, languages_of
from jaxpt.data.records.store import FORMAT
from jaxpt.data.sources.base import Source, interleaved_texts
from jaxpt.data.sources.examples import Examples
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from jaxpt.runtime.progress import Progress


def tokenizer_of(
    config: Config, parts: Sequence[Part], sources: list[Source], known: list[Any], say: Progress, save: bool
) -> Tokenizer:
    """A run's vocabulary: loaded from the run, `data.tokenizer.path` or the objective's; found in the cache or trained.

    Args:
      config: the run's configuration.
      parts: its tasks.
      sources: of each.
      known: fingerprint of each source.
      say: is told what is done.
      save: whether the run keeps it in its directory.

    Returns:
      The tokenizer.

    Raises:
      UserError: a vocabulary that is not there, or not what the run, the model or the data want.
    """
    settings, checks = config.data.tokenizer, _checks(config, sources)
    tokenizer_dir = Path(config.run_dir) / "tokenizer" if config.run_dir else None
    if tokenizer_dir is not None and tokenizer_dir.is_dir():
        tokenizer = tokenizers.load(tokenizer_dir, settings.kind, **checks)
        if missing := [token for token in settings.add_tokens if token not in tokenizer.added]:
            raise UserError(
                f"{tokenizer_dir}: has no token {missing[0]!r} of data.tokenizer.add_tokens; a run keeps its "
                "vocabulary: choose another run_dir"
            )
        rule = getattr(tokenizer, "pre_tokenizer", None)
        if settings.pre_tokenizer not in (None, rule):
            raise UserError(
                f"{tokenizer_dir}: cuts text by the rule {rule}, data.tokenizer.pre_tokenizer is "
                f"{settings.pre_tokenizer}; a run keeps its vocabulary: choose another run_dir"
            )
        return tokenizer
    tokenizer = _named(config, sources)
    if tokenizer is None:
        tokenizer = _trained(config, parts, sources, known, say)
    if settings.add_tokens:
        tokenizer = _grown(tokenizer, config, say)
    template = config.objective.data_spec(config.data.length).chat_template
    if template is not None:
        tokenizer.chat_templates = {"default": chat_template.source(template)}
    if tokenizer_dir is not None and save:
        tokenizers.publish(tokenizer, tokenizer_dir)
        tokenizer = tokenizers.load(tokenizer_dir, settings.kind, **checks)
    return tokenizer


def existing(config: Config, parts: Sequence[Part], sources: list[Source]) -> Tokenizer | None:
    """A run's vocabulary where it need not be trained: the run's own, the one that is named, or the cache's.

    Args:
      config: the run's configuration.
      parts: its tasks.
      sources: of each.

    Returns:
      The tokenizer; None where a vocabulary is still to be trained.
    """
    settings, tokenizer_dir = config.data.tokenizer, Path(config.run_dir) / "tokenizer"
    if tokenizer_dir.is_dir():
        return tokenizers.load(tokenizer_dir, settings.kind, **_checks(config, sources))
    tokenizer = _named(config, sources)
    if tokenizer is None and not any(source.tokenized for source in sources):
        directory = _trained_at(config, parts, sources, [source.fingerprint() for source in sources])
        if directory.is_dir() and vocabulary_files.damage(directory) is None:
            tokenizer = tokenizers.load(directory, settings.kind, languages=languages_of(sources))
    return tokenizers.add(tokenizer, settings.add_tokens) if tokenizer and settings.add_tokens else tokenizer


def _checks(config: Config, sources: Sequence[Source]) -> dict[str, Any]:
    """What a vocabulary must be, for `tokenizers.load`."""
    settings = config.data.tokenizer
    of_settings = {"lowercase": settings.lowercase, "extra_ids": settings.extra_ids}
    return of_settings | {"max_size": config.model.vocab_size, "languages": languages_of(sources)}


def _named(config: Config, sources: Sequence[Source]) -> Tokenizer | None:
    """The vocabulary that the recipe, its objective or its SeqIO Task names; None where it is to be trained."""
    settings, checks = config.data.tokenizer, _checks(config, sources)
    path = settings.path or config.objective.vocabulary_path()
    if path is None and isinstance(sources[0], Examples) and sources[0].sentencepiece is not None:
        path, checks["extra_ids"] = sources[0].sentencepiece
    checks["pre_tokenizer"] = settings.pre_tokenizer
    return None if path is None else tokenizers.load(path, settings.kind, **checks)


def _grown(tokenizer: Tokenizer, config: Config, say: Progress) -> Tokenizer:
    """The tokenizer with `data.tokenizer.add_tokens`; says what ids they have."""
    size, max_size = tokenizer.vocabulary.size, config.model.vocab_size
    tokenizer = tokenizers.add(tokenizer, config.data.tokenizer.add_tokens)
    if tokenizer.vocabulary.size > max_size:
        raise UserError(
            f"data.tokenizer.add_tokens: {tokenizer.vocabulary.size} token ids with them, but model.vocab_size is "
            f"{max_size}; it wants {tokenizer.vocabulary.size} or more"
        )
    for token, i in tokenizer.vocabulary.added:
        if token in config.data.tokenizer.add_tokens:
            say.note(f"data.tokenizer.add_tokens: {token} is {'a new token' if i >= size else 'there already'}, id {i}")
    return tokenizer


def _trained(
    config: Config, parts: Sequence[Part], sources: list[Source], known: list[Any], say: Progress
) -> Tokenizer:
    """From the cache, or trained on the training split into it."""
    size = trained_size(config)
    settings = config.data.tokenizer.model_copy(update={"add_tokens": ()})  # they are added to what is trained
    if any(source.tokenized for source in sources):
        raise UserError("data.tokenizer.path is missing: data.task gives token ids, so its vocabulary has to be named")
    languages, directory = languages_of(sources), _trained_at(config, parts, sources, known)
    if directory.is_dir():
        damage = vocabulary_files.damage(directory)
        if damage is None:
            return tokenizers.load(directory, settings.kind, languages=languages)
        say.note(f"{damage}; training the vocabulary again")
    shutil.rmtree(directory, ignore_errors=True)
    tokenizer = tokenizers.train(interleaved_texts(sources), settings, size, languages=languages)
    tokenizers.publish(tokenizer, directory)
    return tokenizers.load(directory, settings.kind, languages=languages)


def _trained_at(config: Config, parts: Sequence[Part], sources: list[Source], known: list[Any]) -> Path:
    """Where the cache keeps a vocabulary that is trained."""
    settings = config.data.tokenizer
    # Later keys, which the cache of others has not.
    unset = {key for key in ("min_count", "pre_tokenizer") if getattr(settings, key) is None}
    identity = settings.model_dump(exclude={"add_tokens", *unset}) | {
        "size": trained_size(config),
        "format": FORMAT,
    }
    identity["sources"] = [
        {"files": of_source, "data": cache_key_fields(part.config.data, "records")}
        for part, of_source in zip(parts, known)
    ]
    for of_part, part in zip(identity["sources"], parts):
        if part.config.task is not None:  # which columns are text
            of_part["task"] = cache_key_fields(part.config.task, "records")
    if languages := languages_of(sources):
        identity["languages"] = languages
    return cache_root(config) / "tokenizers" / digest(identity)
