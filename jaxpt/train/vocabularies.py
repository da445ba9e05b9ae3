"""What a run's vocabulary means for the weights that it starts from: rows of new tokens, tables made of its words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flax import traverse_util

from jaxpt.config import Config, InitConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import extension
from jaxpt.errors import UserError
from jaxpt.runtime import hub
from jaxpt.train import checkpoint, weights
from jaxpt.train.state import Setup, State

if TYPE_CHECKING:
    from jaxpt.data.tokenizers.base import Tokenizer


def old_pieces(config: Config, source: InitConfig) -> dict[int, list[int]]:
    """What the tokens that a run's vocabulary has beyond its source's were there.

    Args:
      config: the run's configuration, which names its vocabulary.
      source: where the weights come from.

    Returns:
      {id: ids of the source's pieces}; without tokens that the source has no pieces for.

    Raises:
      UserError: no vocabulary is named, or it does not begin with the source's.
    """
    new, old = _both(config, source, "mean needs data.tokenizer.path, a vocabulary that extends the source's")
    try:
        return {i: pieces for i, pieces in extension.old_pieces(new, old).items() if pieces}
    except UserError as error:
        raise UserError(f"init_from.vocabulary: mean: {error}") from None


def rows_by_token(config: Config, source: InitConfig) -> np.ndarray:
    """The id that each token of a run's vocabulary has in its source's.

    Args:
      config: the run's configuration, which names its vocabulary.
      source: where the weights come from.

    Returns:
      int64 [vocabulary of the run], -1 of a token that the source has not.

    Raises:
      UserError: no vocabulary is named, or the two have no token in common.
    """
    new, old = _both(config, source, "tokens needs data.tokenizer.path, the run's vocabulary")
    ids = {token: i for i, token in reversed(list(enumerate(old.tokens(range(old.vocabulary.size)))))}
    rows = np.array([ids.get(token, -1) for token in new.tokens(range(new.vocabulary.size))])
    if (rows < 0).all():
        raise UserError(f"init_from.vocabulary: tokens: {source.path} has none of the run's {len(rows)} tokens")
    return rows


def _both(config: Config, source: InitConfig, needs: str) -> tuple[Tokenizer, Tokenizer]:
    """The vocabularies of the run and of its source; `needs` is said where the run names none."""
    settings = config.data.tokenizer
    if settings.path is None:
        raise UserError(f"init_from.vocabulary: {needs}")
    options = {"extra_ids": settings.extra_ids}
    new = tokenizers.load(settings.path, settings.kind, add_tokens=settings.add_tokens, **options)
    return new, tokenizers.load(_directory(source.path), settings.kind, **options)


def with_constants(setup: Setup, state: State, tokenizer: Tokenizer) -> State:
    """A fresh state with the parameters that a model makes of the vocabulary (`ModelConfig.constants`).

    Args:
      setup: of the run.
      state: before the first step.
      tokenizer: of the run.
    """
    flat = traverse_util.flatten_dict(state.params, sep="/")
    for path, array in setup.config.model.constants(tokenizer).items():
        flat[path] = weights.placed(array, flat[path].sharding)
    return state.replace(params=traverse_util.unflatten_dict(flat, sep="/"))


def _directory(path: str) -> Path:
    """Where the vocabulary of a model is: of a run in its directory `tokenizer`."""
    place = hub.local(path)
    named = checkpoint.named_step(place)
    run_dir = named[0] if named else place
    return run_dir / "tokenizer" if (run_dir / "tokenizer").is_dir() else run_dir
