"""Features of a frozen model: hidden states of a layer, or of several, averaged over ranges of tokens.

A text's feature is the mean over all of its tokens, special ones included; a word's the mean over its pieces.

Shapes: N rows · L length · W ranges of a row · D width of the model · K layers · U ranges in all
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import Config
from jaxpt.decode.embed import Layer, Pooling, states
from jaxpt.models.network import Network
from jaxpt.objectives.base import Vocabulary
from jaxpt.objectives.formats import text_format
from jaxpt.parallel.distributed import to_host
from jaxpt.train.state import Setup

_BATCH = {True: 256, False: 32}
"""Rows that are read together, of one layer and of several."""


class Rows(NamedTuple):
    """Texts as the model reads them."""

    tokens: np.ndarray
    """int32 [N, L], −1 on padding."""
    types: np.ndarray
    """Token types, int32 [N, L]."""
    ranges: np.ndarray
    """(first token, one behind the last) of what is averaged: int32 [N, W, 2], (0, 0) where a row has fewer."""


def lay(
    texts: Sequence[Sequence[int]],
    config: Config,
    vocabulary: Vocabulary,
    pooling: Pooling = "mean",
    words: Sequence[np.ndarray] | None = None,
    bos: int | None = None,
) -> Rows:
    """Rows of texts as `jaxpt embed` reads them, with the special tokens of the model; a text that is too long loses
    its end.

    Args:
      texts: ids of each text.
      config: the run's.
      vocabulary: its special tokens.
      pooling: mean, cls or last.
      words: (first token, one behind the last) of each text's words, int [W, 2], instead of a range for the text. Words
        beyond the end become (0, 0).
      bos: the id that the tokenizer puts before a decoder's text.

    Returns:
      The rows.
    """
    before, after, length = (), (), config.data.length
    layout, v = None, vocabulary
    if config.model.family == "encoder" and v.cls is not None and v.sep is not None:
        layout = text_format(config.objective, config.model, v)
        before, after = layout.before, layout.after
    elif config.model.family == "encoder_decoder" and v.eos is not None:
        language = v.languages[0] if len(v.languages) == 1 else None
        read = text_format(config.objective, config.model, v, mode="NLU", language=language)
        before, after = read.before, read.after
    elif config.model.family == "decoder" and bos is not None:
        before = (bos,)
    tokens, types = np.full((len(texts), length), -1, np.int32), np.zeros((len(texts), length), np.int32)
    max_ranges = 1 if words is None else max(map(len, words), default=1)
    ranges = np.zeros((len(texts), max_ranges, 2), np.int32)
    is_first = layout is None or layout.cls == "first"
    for n, ids in enumerate(texts):
        text_ids = list(ids[: length - len(before) - len(after)])
        row = [*before, *text_ids, *after]
        tokens[n, : len(row)] = row
        if layout is not None:
            types[n, : len(row)] = layout.token_types(len(row))
        at = 0 if pooling == "cls" and is_first else max(len(row) - 1, 0)
        ranges[n, 0] = (0, len(row)) if pooling == "mean" else (at, at + 1)
        if words is not None:
            word_ranges = np.asarray(words[n], np.int32).reshape(-1, 2)
            is_there = (word_ranges[:, 1] <= len(text_ids)) & (word_ranges[:, 0] < word_ranges[:, 1])
            ranges[n] = 0
            ranges[n, : len(word_ranges)] = np.where(is_there[:, None], word_ranges + len(before), 0)
    return Rows(tokens, types, ranges)


class Features:
    """A compiled program of features."""

    def __init__(self, setup: Setup, layer: Layer, ranges: int) -> None:
        """Compiles it.

        Args:
          setup: the run's setup for evaluation.
          layer: which layers.
          ranges: W, ranges of a row.
        """
        self._setup, self._batch = setup, _BATCH[not isinstance(layer, tuple) and layer != "all"]
        tokens = jax.ShapeDtypeStruct((self._batch, setup.config.data.length), jnp.int32)
        spans = jax.ShapeDtypeStruct((self._batch, ranges, 2), jnp.int32)
        with setup.use():
            lowered = means.lower(setup.network, layer, setup.placed_shapes().params, tokens, tokens, spans)
            self._program = lowered.compile()
        self.layers, _, _, self.width = lowered.out_info.shape

    def __call__(self, params: Any, rows: Rows, stop: Callable[[], bool] = lambda: False) -> np.ndarray | None:
        """Features of the ranges of some rows, without those that are (0, 0).

        Args:
          params: the parameters.
          rows: from `lay`.
          stop: called between batches; True stops.

        Returns:
          float32 [K, U, D]; None if stopped.
        """
        parts = []
        for first in range(0, len(rows.tokens), self._batch):
            tokens, types, ranges = (part[first : first + self._batch] for part in rows)
            real_NxW = ranges[..., 1] > ranges[..., 0]
            missing = self._batch - len(tokens)
            padded = (np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1)) for part in (tokens + 1, types, ranges))
            tokens, types, ranges = padded
            with self._setup.use():
                features_KxBxWxD = to_host(self._program(params, tokens - 1, types, ranges))
            parts.append(features_KxBxWxD[:, : len(real_NxW)][:, real_NxW])
            if stop():
                return None
        return np.concatenate(parts, 1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def means(
    network: Network, layer: Layer, params: Any, tokens_BxL: jax.Array, types_BxL: jax.Array, ranges_BxWx2: jax.Array
) -> jax.Array:
    """Hidden states averaged over ranges of tokens; what `Features` compiles.

    Args:
      network: static.
      layer: static; which layers.
      params: of the network.
      tokens_BxL: −1 on padding.
      types_BxL: token types.
      ranges_BxWx2: as in `Rows`.

    Returns:
      float32 [K, B, W, D].
    """
    lengths_B = (tokens_BxL >= 0).sum(1)
    hidden_states = states(network.bind(params), jnp.maximum(tokens_BxL, 0), lengths_B, types_BxL, layer)
    states_KxBxLxD = hidden_states[None] if hidden_states.ndim == 3 else hidden_states
    at_L = jnp.arange(tokens_BxL.shape[1])
    start_BxWx1, end_BxWx1 = ranges_BxWx2[..., :1], ranges_BxWx2[..., 1:]
    is_in_BxWxL = (at_L >= start_BxWx1) & (at_L < end_BxWx1)
    states_KxBxLxD = jnp.where((tokens_BxL >= 0)[..., None], states_KxBxLxD, 0)
    sums = jnp.einsum("bwl,kbld->kbwd", is_in_BxWxL.astype(jnp.float32), states_KxBxLxD, precision="highest")
    return sums / jnp.maximum(end_BxWx1 - start_BxWx1, 1)
