"""What a run's vocabulary means for the weights that it starts from: rows of new tokens, tables made of its words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
    settings = config.data.tokenizer
    if settings.path is None:
        raise UserError("init_from.vocabulary: mean needs data.tokenizer.path, a vocabulary that extends the source's")
    options = {"extra_ids": settings.extra_ids}
    new = tokenizers.load(settings.path, settings.kind, add_tokens=settings.add_tokens, **options)
    old = tokenizers.load(_directory(source.path), settings.kind, **options)
    try:
        return {i: pieces for i, pieces in extension.old_pieces(new, old).items() if pieces}
    except UserError as error:
        raise UserError(f"init_from.vocabulary: mean: {error}") from None


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
