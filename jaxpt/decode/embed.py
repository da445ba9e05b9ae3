"""Embeddings of texts: hidden states of an encoder, a decoder, or the encoder of an encoder-decoder, pooled.

    mean   Σ_t h_t / n, over all tokens of the text, special ones included
    cls    the state of CLS: the first token, XLNet's last
    last   the state of the last token, which in a decoder sees all others
    none   the states of all tokens

Of one layer, of several, or of the mean of all of them ("mix"), as ELMo without its learned weights.

Shapes: B rows · L length · D width of the model · K chosen layers · N tokens of a text · W words
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.decode import batching
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.formats import text_format

Pooling = Literal["mean", "cls", "last", "none"]
POOLINGS = ("mean", "cls", "last", "none")
Layer = int | Sequence[int] | Literal["all", "mix"]
"""0 for the embeddings, 1 … N for the layers, negative from the end (−1 is the last one); several of these or all, each
with its own vector; or the mean of all, the embeddings included."""


def states(
    bound: Bound, tokens_BxL: jax.Array, lengths_B: jax.Array, token_types_BxL: jax.Array | None = None,
    layer: Layer = -1,
) -> jax.Array:  # fmt: skip
    """Hidden states of a layer, or of several.

    Args:
      bound: a bound model; of an encoder-decoder the encoder is used.
      tokens_BxL: ids.
      lengths_B: number of tokens of each row.
      token_types_BxL: of an encoder; all 0 by default.
      layer: which, see `Layer`.

    Returns:
      float32 [B, L, D], of several layers [K, B, L, D]; meaningless on padding.

    Raises:
      UserError: the model has no such layer.
    """
    options: dict[str, Any] = {"segment_ids": (jnp.arange(tokens_BxL.shape[1]) < lengths_B[:, None]).astype(jnp.int32)}
    if bound.config.family == "encoder":
        options["token_types"] = jnp.zeros_like(tokens_BxL) if token_types_BxL is None else token_types_BxL
    run = bound.decode if bound.config.family == "decoder" else bound.encode
    if layer == -1:
        return run(tokens_BxL, **options).hidden.astype(jnp.float32)
    layers = run(tokens_BxL, **options, layers=True).layers
    if layer == "all":
        return layers.astype(jnp.float32)
    if layer == "mix":
        return layers.astype(jnp.float32).mean(0)
    for index in layer if isinstance(layer, tuple) else (layer,):
        if not -len(layers) <= index < len(layers):
            raise UserError(f"layer: {index} is not one of the model's; 0 (embeddings) to {len(layers) - 1} are")
    return layers[jnp.array(layer)].astype(jnp.float32)


def pool(
    states_BxLxD: jax.Array, lengths_B: jax.Array, pooling: Pooling, *, cls: str = "first", normalize: bool = False
) -> jax.Array:
    """One vector for each row, or its states.

    Args:
      states_BxLxD: hidden states.
      lengths_B: number of tokens of each row.
      pooling: see the table in the module docstring.
      cls: where CLS is, "first" or "last".
      normalize: divide each vector by its L2 norm.

    Returns:
      [B, D], or [B, L, D] with 0 on padding if pooling is none.

    Example:
      >>> states = jnp.array([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
      >>> print(pool(states, jnp.array([2]), "mean"), pool(states, jnp.array([2]), "last"))
      [[0.5 0.5]] [[0. 1.]]
    """
    real_BxLx1 = (jnp.arange(states_BxLxD.shape[1]) < lengths_B[:, None])[..., None]
    states_BxLxD = jnp.where(real_BxLx1, states_BxLxD, 0)
    if pooling == "none":
        pooled = states_BxLxD
    elif pooling == "mean":
        pooled = states_BxLxD.sum(1) / jnp.maximum(lengths_B, 1)[:, None]
    elif pooling == "cls" and cls == "first":
        pooled = states_BxLxD[:, 0]
    else:
        last_Bx1x1 = jnp.maximum(lengths_B - 1, 0)[:, None, None]
        pooled = jnp.take_along_axis(states_BxLxD, last_Bx1x1, axis=1)[:, 0]
    if not normalize:
        return pooled
    return pooled * jax.lax.rsqrt(jnp.maximum(jnp.square(pooled).sum(-1, keepdims=True), 1e-24))


def tokens_of(offsets_Nx2: np.ndarray, spans_Wx2: np.ndarray) -> np.ndarray:
    """The tokens of each span of characters.

    Args:
      offsets_Nx2: characters of each token, ascending.
      spans_Wx2: characters of each word.

    Returns:
      int64 [W, 2]: the first token that has a character of the word, and one behind the last; equal where none has.

    Example:
      >>> tokens_of(np.array([(0, 3), (4, 7), (7, 9), (10, 12)]), np.array([(4, 9), (9, 10)])).tolist()
      [[1, 3], [3, 3]]
    """
    first = np.searchsorted(offsets_Nx2[:, 1], spans_Wx2[:, 0], "right")
    return np.stack([first, np.maximum(first, np.searchsorted(offsets_Nx2[:, 0], spans_Wx2[:, 1]))], -1)


class Embeddings(NamedTuple):
    """Vectors in the given order."""

    vectors: list[np.ndarray]
    """float32 [D] of each text, or [tokens, D] if pooling is none, special tokens included; of several layers
    [K, …]."""
    truncated: int
    """Number of texts that were truncated from the right to the model's positions."""
    special: tuple[int, int] = (0, 0)
    """Number of special tokens before and after each text."""


def embed(
    network: Network,
    params: Any,
    objective: Objective,
    vocabulary: Vocabulary,
    texts: Sequence[Sequence[int]],
    *,
    pooling: Pooling = "mean",
    layer: Layer = -1,
    normalize: bool = False,
    language: int | None = None,
    max_tokens: int | None = None,
) -> Embeddings:
    """Embeddings of texts; a vector does not depend on the other texts.

    Args:
      network: backbone and heads.
      params: its parameters.
      objective: the objective that the network was trained with.
      vocabulary: vocabulary of the run.
      texts: ids of each text, without special tokens that the format adds ([CLS], EOS of an encoder's input).
      pooling: see the table in the module docstring.
      layer: see `Layer`.
      normalize: divide each vector by its L2 norm.
      language: the language's token (mBART).
      max_tokens: tokens in a batch on each device; by default 16,384, on a CPU 2,048.

    Returns:
      The vectors, and the number of truncated texts.

    Raises:
      UserError: pooling: cls without a CLS token, a layer that the model does not have, or an empty text of a model
        that adds no tokens.
    """
    config = network.config
    if pooling not in POOLINGS:
        raise UserError(f"pooling: {pooling} is not known; {', '.join(POOLINGS)} are")
    if isinstance(layer, str) and layer not in ("all", "mix"):
        raise UserError(f"layer: {layer} is not known; a number, several, all or mix are")
    batching.check_ids("text", texts, config.vocab_size)
    layout = text_format(objective, config, vocabulary, mode="NLU", language=language)
    if pooling == "cls" and (config.family != "encoder" or layout.cls is None):
        raise UserError(f"pooling: cls needs an encoder with [CLS], and model.kind: {config.kind} has none; use mean")
    room = None if config.position_limit is None else config.position_limit - len(layout.wrap([]))
    rows = [layout.wrap(ids[:room]) for ids in texts]
    for item, row in enumerate(rows):
        if not row:
            raise UserError(f"text {item}: has no tokens, at least 1 is needed")
    sizes = [(batching.bucket(len(row), config.position_limit),) for row in rows]
    # A list is no key of a compiled program.
    which = tuple(layer) if isinstance(layer, Sequence) and not isinstance(layer, str) else layer
    static = (network, pooling, layout.cls, which, normalize)
    embeddings: list[Any] = [None] * len(rows)
    for (length,), chosen, batch in batching.batches(sizes, sum, config.vocab_size, max_tokens):
        tokens, lengths = batching.padded_with_lengths([rows[i] for i in chosen], batch, length)
        types, _ = batching.padded_with_lengths([layout.token_types(len(rows[i])) for i in chosen], batch, length)
        pooled = batching.run(_embed, static, params, tokens, lengths, types)
        for b, i in enumerate(chosen):
            embeddings[i] = pooled[b, ..., : len(rows[i]), :] if pooling == "none" else pooled[b]
    truncated = sum(room is not None and len(ids) > room for ids in texts)
    return Embeddings(embeddings, truncated, (len(layout.before), len(layout.after)))


def _embed(
    network: Network, pooling: Pooling, cls: str | None, layer: Layer, normalize: bool, params: Any,
    tokens_BxL: jax.Array, lengths_B: jax.Array, types_BxL: jax.Array,
) -> jax.Array:  # fmt: skip
    hidden = states(network.bind(params), tokens_BxL, lengths_B, types_BxL, layer)
    pooled = functools.partial(pool, lengths_B=lengths_B, pooling=pooling, cls=cls or "first", normalize=normalize)
    return pooled(hidden) if hidden.ndim == 3 else jax.vmap(pooled, out_axes=1)(hidden)
