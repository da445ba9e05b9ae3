"""A vocabulary that something keeps a copy of: a run, the cache, prepared batches."""

from __future__ import annotations

import contextlib
from pathlib import Path

from jaxpt.config import Config
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from jaxpt.runtime import disk


def publish(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes a vocabulary; the directory appears whole or not at all, and another process's is kept."""
    with contextlib.suppress(FileExistsError), disk.whole_directory(directory) as temporary:
        tokenizer.save(temporary)


def check_same(config: Config, own: Tokenizer, words: str) -> None:
    """Raises UserError where the vocabulary of `data.tokenizer.path` is another one.

    Args:
      config: the run's configuration in one phase.
      own: the vocabulary that it has to be.
      words: whose this is, and what to do about it, for the message.
    """
    settings = config.data.tokenizer
    if settings.path is None:
        return
    tokenizer = tokenizers.load(
        settings.path, settings.kind, lowercase=settings.lowercase, extra_ids=settings.extra_ids
    )
    if settings.add_tokens:
        tokenizer = tokenizers.add(tokenizer, settings.add_tokens)
    ids = range(own.vocabulary.size)
    if tokenizer.vocabulary.size != own.vocabulary.size or tokenizer.tokens(ids) != own.tokens(ids):
        raise UserError(f"data.tokenizer.path: {settings.path}: is not the vocabulary {words}")
