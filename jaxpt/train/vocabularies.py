"""Initial weights that depend on a run's vocabulary: rows of its tokens, and tables computed from its words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from jaxpt.config import Config, InitConfig, run_dir_of
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import extension
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from jaxpt.objectives.rows import TOKENS, RowObjective, Tables
from jaxpt.parallel.distributed import to_host
from jaxpt.runtime import hub
from jaxpt.train import weights
from jaxpt.train.state import Setup, State


def old_pieces(config: Config, source: InitConfig) -> dict[int, list[int]]:
    """The pieces that the source's vocabulary had for the tokens that a run's vocabulary adds.

    Args:
      config: the run's configuration, which names its vocabulary.
      source: where the weights come from.

    Returns:
      {id of an added token: ids of the source's pieces}. Tokens that the source has no pieces for are left out.

    Raises:
      UserError: no vocabulary is named, or it does not begin with the source's.
    """
    new, old = _both(config, source, "mean needs data.tokenizer.path, a vocabulary that extends the source's")
    try:
        return {i: pieces for i, pieces in extension.old_pieces(new, old).items() if pieces}
    except UserError as error:
        raise UserError(f"init_from.vocabulary: mean: {error}") from None


def with_constants(setup: Setup, state: State, tokenizer: Tokenizer) -> State:
    """Replaces the parameters that a model computes from the vocabulary (`ModelConfig.constants`).

    Args:
      setup: the run's setup.
      state: the state before the first step.
      tokenizer: the run's tokenizer.

    Returns:
      The state with these parameters.
    """
    flat = traverse_util.flatten_dict(state.params, sep="/")
    for path, array in setup.config.model.constants(tokenizer).items():
        flat[path] = weights.placed(array, flat[path].sharding)
    return state.replace(params=traverse_util.unflatten_dict(flat, sep="/"))


class WordVectors(NamedTuple):
    """The word vectors that a run gives away."""

    ids: np.ndarray
    """int64 [V] of the words."""
    words: Sequence[str]
    vectors_VxD: np.ndarray


def word_vectors(objective: RowObjective, tokenizer: Tokenizer, tables: Tables) -> WordVectors:
    """The word vectors that a run gives away, without those of special tokens.

    Args:
      objective: of the run.
      tokenizer: of the run.
      tables: {path: [rows, width]}, all parameters of its network.
    """
    special = {token.content for token in tokenizer.special_tokens().values() if token is not None}
    names = tokenizer.tokens(range(tokenizer.vocabulary.size))
    ids = np.array([i for i, name in enumerate(names) if name not in special])
    words = [names[i] for i in ids]
    return WordVectors(ids, words, objective.word_vectors(tables, ids, words))


def published_table(objective: RowObjective, tokenizer: Tokenizer, tables: Tables) -> np.ndarray | None:
    """The table of token embeddings with the `word_vectors` in it; None where it has them already."""
    ids, _, vectors_VxD = word_vectors(objective, tokenizer, tables)
    if np.array_equal(tables[TOKENS][ids], vectors_VxD):
        return None
    table = np.array(tables[TOKENS])
    table[ids] = vectors_VxD
    return table


def with_word_vectors(config: Config, tokenizer: Tokenizer, params: Any) -> Any:
    """The parameters with which a run embeds texts: a table of word vectors has those that the run gives away.

    Args:
      config: of the run.
      tokenizer: of the run.
      params: of its network; NumPy arrays, or arrays on devices. Where other processes hold parts of them, all of them
        must call this.

    Returns:
      The parameters with another table; as they are of other models, and where nothing changes.
    """
    objective = config.objective
    if config.model.kind != "word_vectors" or not isinstance(objective, RowObjective):
        return params
    flat = traverse_util.flatten_dict(params, sep="/")
    tables = {path: x if isinstance(x, np.ndarray) else to_host(x) for path, x in flat.items()}
    table = published_table(objective, tokenizer, tables)
    if table is None:
        return params
    old = flat[TOKENS]
    new = table if isinstance(old, np.ndarray) else weights.placed(table, old.sharding)
    return traverse_util.unflatten_dict({**flat, TOKENS: new}, sep="/")


def rows_by_token(config: Config, source: InitConfig) -> np.ndarray:
    """The id that each token of a run's vocabulary has in its source's.

    Args:
      config: the run's configuration, which names its vocabulary.
      source: where the weights come from.

    Returns:
      int64 [vocabulary of the run], -1 for a token that the source does not have.

    Raises:
      UserError: no vocabulary is named, or the two have no token in common.
    """
    new, old = _both(config, source, "tokens needs data.tokenizer.path, the run's vocabulary")
    ids = {token: i for i, token in reversed(list(enumerate(old.pieces(range(old.vocabulary.size)))))}
    rows = np.array([ids.get(token, -1) for token in new.pieces(range(new.vocabulary.size))])
    if (rows < 0).all():
        raise UserError(f"init_from.vocabulary: tokens: {source.path} has none of the run's {len(rows)} tokens")
    return rows


def _both(config: Config, source: InitConfig, needs: str) -> tuple[Tokenizer, Tokenizer]:
    """Loads the vocabularies of the run and of its source. `needs` is the message if the run names none."""
    settings = config.data.tokenizer
    if settings.path is None:
        raise UserError(f"init_from.vocabulary: {needs}")
    options = {"extra_ids": settings.extra_ids}
    new = tokenizers.load(settings.path, settings.kind, add_tokens=settings.add_tokens, **options)
    return new, tokenizers.load(directory_of(source.path), settings.kind, **options)


def directory_of(path: str) -> Path:
    """The directory of a model's vocabulary. In a run it is `tokenizer`."""
    place = hub.local(path)
    run_dir = run_dir_of(place)
    return run_dir / "tokenizer" if (run_dir / "tokenizer").is_dir() else run_dir
