"""Embeddings of texts: hidden states of an encoder, a decoder, or the encoder of an encoder-decoder, pooled.

    mean   Σ_t h_t / n, over all tokens of the text, special ones included
    cls    the state of CLS: the first token, XLNet's last
    last   the state of the last token, which in a decoder sees all others
    none   the states of all tokens

A mean counts a word that the model reads whole (ELMo) once, however many tokens spell it.

Of one layer, of several, or of the mean of all of them ("mix"), as ELMo without its learned weights.

A text that is longer than the model's positions loses its end. A backward model reads each text from its last token to
its first; with `none` its states are in that order.

Shapes: B rows · L length · D width of the model · K chosen layers · N tokens of a text · W words
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.decode import batching
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.network import Network
from jaxpt.models.output import Output
from jaxpt.objectives.base import Objective
from jaxpt.objectives.formats import Languages

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
    return choose_layer(_read(bound, tokens_BxL, lengths_B, token_types_BxL, layer), layer)


def _read(
    bound: Bound, tokens_BxL: jax.Array, lengths_B: jax.Array, token_types_BxL: jax.Array | None, layer: Layer
) -> Output:
    """The output that `states` chooses from."""
    options: dict[str, Any] = {"segment_ids": segments_of(tokens_BxL, lengths_B)}
    if bound.config.family == "encoder":
        options["token_types"] = jnp.zeros_like(tokens_BxL) if token_types_BxL is None else token_types_BxL
    run = bound.decode if bound.config.family == "decoder" else bound.encode
    return run(tokens_BxL, **options, layers=layer != -1)


def segments_of(tokens_BxL: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Segment ids of rows with one text each: 1, and 0 on padding."""
    return (jnp.arange(tokens_BxL.shape[1]) < lengths_B[:, None]).astype(jnp.int32)


def check_layer(layer: Layer) -> None:
    """Raises UserError for what is no layer, of whatever model."""
    numbers = layer if isinstance(layer, Sequence) and not isinstance(layer, str) else (layer,)
    are_numbers = all(isinstance(number, int | np.integer) and not isinstance(number, bool) for number in numbers)
    is_name = isinstance(layer, str) and layer in ("all", "mix")
    if not is_name and not (len(numbers) and are_numbers):
        raise UserError(f"layer: {layer} is not known; a number, several, all or mix are")


def choose_layer(output: Output, layer: Layer) -> jax.Array:
    """Hidden states of a layer, or of several, from what a stack returned.

    Args:
      output: of a stack, with all layers unless `layer` is −1.
      layer: which, see `Layer`.

    Returns:
      float32 [B, L, D], of several layers [K, B, L, D].

    Raises:
      UserError: the model has no such layer.
    """
    if layer == -1:
        return output.hidden.astype(jnp.float32)
    layers = output.layers
    if layer == "all":
        return layers.astype(jnp.float32)
    if layer == "mix":
        return layers.astype(jnp.float32).mean(0)
    for index in layer if isinstance(layer, tuple) else (layer,):
        if not -len(layers) <= index < len(layers):
            raise UserError(f"layer: {index} is not one of the model's; 0 (embeddings) to {len(layers) - 1} are")
    return layers[jnp.array(layer)].astype(jnp.float32)


def pool(
    states_BxLxD: jax.Array, lengths_B: jax.Array, pooling: Pooling, *, cls: str = "first", normalize: bool = False,
    starts_BxL: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """One vector for each row, or its states.

    Args:
      states_BxLxD: hidden states.
      lengths_B: number of tokens of each row.
      pooling: see the table in the module docstring.
      cls: where CLS is, "first" or "last".
      normalize: divide each vector by its L2 norm.
      starts_BxL: `Output.word_starts`: a mean is over words; None: over tokens.

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
        is_counted_BxLx1 = real_BxLx1 if starts_BxL is None else real_BxLx1 & starts_BxL[..., None]
        pooled = jnp.where(is_counted_BxLx1, states_BxLxD, 0).sum(1) / jnp.maximum(is_counted_BxLx1.sum(1), 1)
    elif pooling == "cls" and cls == "first":
        pooled = states_BxLxD[:, 0]
    else:
        last_Bx1x1 = jnp.maximum(lengths_B - 1, 0)[:, None, None]
        pooled = jnp.take_along_axis(states_BxLxD, last_Bx1x1, axis=1)[:, 0]
    return _unit(pooled, normalize)


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


class Rows(NamedTuple):
    """Texts as the model reads them, with its special tokens, truncated from the right to its positions."""

    tokens: list[list[int]]
    types: list[list[int]]
    """Token types."""
    cls: Literal["first", "last"] | None
    """Where CLS is."""
    is_cut: list[bool]
    """Which texts were truncated."""
    spans: list[np.ndarray]
    """(first token, one behind the last) of the words that are averaged: int64 [W, 2]; [] without words."""
    numbers: list[np.ndarray]
    """Which of a text's words these are; those beyond the positions, or without a token, are missing."""


class Embeddings(NamedTuple):
    """Vectors in the given order."""

    vectors: list[np.ndarray]
    """float32 [D] of each text, [tokens, D] if pooling is none, special tokens included, [W, D] of words; of several
    layers [K, …]."""
    rows: Rows

    @property
    def truncated(self) -> int:
        """Number of texts that were truncated."""
        return sum(self.rows.is_cut)

    def by_layer(self) -> np.ndarray:
        """The vectors of all texts, or of all words one after the other, of each layer: [K, N, D]."""
        joined = np.concatenate(self.vectors, -2) if self.rows.spans else np.stack(self.vectors, -2)
        return joined.reshape(-1, *joined.shape[-2:])


def lay(
    network: Network,
    objective: Objective,
    vocabulary: Vocabulary,
    texts: Sequence[Sequence[int]],
    *,
    spans: Sequence[np.ndarray] | None = None,
    bos: int | None = None,
    languages: Languages | None = None,
) -> Rows:
    """Rows of texts.

    Args:
      network: backbone and heads.
      objective: the objective that the network was trained with.
      vocabulary: vocabulary of the run.
      texts: ids of each text, without special tokens that the format adds ([CLS], EOS of an encoder's input).
      spans: (first token, one behind the last) of each text's words, int [W, 2].
      bos: the id that begins a decoder's text.
      languages: those that are read and written (mBART).

    Returns:
      The rows.

    Raises:
      UserError: an id is not in the vocabulary, or a text is empty and the model adds no tokens.
    """
    config = network.config
    batching.check_ids("text", texts, config.vocab_size)
    layout = objective.text_format(config, vocabulary, mode="NLU", languages=languages)
    rows = Rows([], [], layout.cls, [], [], [])
    for number, ids in enumerate(texts):
        ids = ids[::-1] if objective.reads_backward else ids
        is_opened = config.family == "decoder" and bos is not None and list(ids[:1]) != [bos]
        before = [bos] if is_opened else list(layout.before)
        room = None if config.position_limit is None else config.position_limit - len(before) - len(layout.after)
        row = [*before, *ids[:room], *layout.after]
        if not row:
            raise UserError(f"text {number}: has no tokens, at least 1 is needed")
        rows.tokens.append(row)
        rows.types.append(layout.token_types(len(row)))
        rows.is_cut.append(room is not None and len(ids) > room)
        if spans is not None:
            tokens_Wx2 = np.reshape(spans[number], (-1, 2)).astype(np.int64)
            if objective.reads_backward:
                tokens_Wx2 = len(ids) - tokens_Wx2[:, ::-1]
            has_tokens_W = (tokens_Wx2[:, 1] <= len(ids[:room])) & (tokens_Wx2[:, 0] < tokens_Wx2[:, 1])
            rows.numbers.append(np.flatnonzero(has_tokens_W))
            rows.spans.append(tokens_Wx2[has_tokens_W] + len(before))
    return rows


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
    stop: Callable[[], bool] = lambda: False,
    **reading: Any,
) -> Embeddings | None:
    """Embeddings of texts, or of their words; a vector does not depend on the other texts.

    Args:
      network: backbone and heads.
      params: its parameters; where they are shapes, the programs are compiled.
      objective: as of `lay`.
      vocabulary: as of `lay`.
      texts: as of `lay`.
      pooling: see the table in the module docstring; a word's vector is the mean over its tokens.
      layer: see `Layer`.
      normalize: divide each vector by its L2 norm.
      stop: asked between batches.
      **reading: `spans`, `bos` and `languages` of `lay`.

    Returns:
      The vectors, and the rows that were read; None if stopped.

    Raises:
      UserError: pooling: cls without a CLS token, a layer that the model does not have, or as `lay`.
    """
    config = network.config
    if pooling not in POOLINGS:
        raise UserError(f"pooling: {pooling} is not known; {', '.join(POOLINGS)} are")
    check_layer(layer)
    rows = lay(network, objective, vocabulary, texts, **reading)
    if pooling == "cls" and (config.family != "encoder" or rows.cls is None):
        raise UserError(f"pooling: cls needs an encoder with [CLS], and model.kind: {config.kind} has none; use mean")
    network, joins_sizes = batching.independent(network)
    # A list is no key of a compiled program.
    which = tuple(layer) if isinstance(layer, Sequence) and not isinstance(layer, str) else layer
    static = (network, "words" if rows.spans else pooling, rows.cls, which, normalize)
    spans = rows.spans or [np.zeros((0, 2), np.int64)] * len(texts)
    sizes = [
        (batching.bucket(len(row), config.position_limit), batching.power_of_two(len(words)) if rows.spans else 0)
        for row, words in zip(rows.tokens, spans)
    ]
    vectors: list[Any] = [None] * len(sizes)
    batches = batching.batches(sizes, lambda x: x[0], config.vocab_size, joins_sizes=joins_sizes)
    for (length, words), chosen, places in batches:
        tokens, lengths = batching.padded_with_lengths([rows.tokens[i] for i in chosen], places, length)
        types, _ = batching.padded_with_lengths([rows.types[i] for i in chosen], places, length)
        spans_BxWx2 = np.zeros((places, words, 2), np.int32)
        for b, i in enumerate(chosen):
            spans_BxWx2[b, : len(spans[i])] = spans[i]
        pooled = batching.run(_embed, static, params, tokens, lengths, types, spans_BxWx2)
        for b, i in enumerate(chosen):
            count = len(spans[i]) if rows.spans else len(rows.tokens[i]) if pooling == "none" else None
            vectors[i] = pooled[b] if count is None else pooled[b, ..., :count, :]
        if stop():
            return None
    return Embeddings(vectors, rows)


def _embed(
    network: Network, pooling: str, cls: str | None, layer: Layer, normalize: bool, params: Any,
    tokens_BxL: jax.Array, lengths_B: jax.Array, types_BxL: jax.Array, spans_BxWx2: jax.Array,
) -> jax.Array:  # fmt: skip
    output = _read(network.bind(params), tokens_BxL, lengths_B, types_BxL, layer)
    hidden, starts_BxL = choose_layer(output, layer), output.word_starts

    def pooled(states_BxLxD: jax.Array) -> jax.Array:
        if pooling == "words":
            return _unit(_of_words(states_BxLxD, lengths_B, spans_BxWx2, starts_BxL), normalize)
        options = {"cls": cls or "first", "normalize": normalize, "starts_BxL": starts_BxL}
        return pool(states_BxLxD, lengths_B, pooling, **options)

    return pooled(hidden) if hidden.ndim == 3 else jax.vmap(pooled, out_axes=1)(hidden)


def _of_words(
    states_BxLxD: jax.Array, lengths_B: jax.Array, spans_BxWx2: jax.Array, starts_BxL: jax.Array | None
) -> jax.Array:
    """Means over the tokens of each span, or over the words that the model reads in it: [B, W, D], 0 without any."""
    at_L = jnp.arange(states_BxLxD.shape[1])
    states_BxLxD = jnp.where((at_L < lengths_B[:, None])[..., None], states_BxLxD, 0)
    start_BxWx1, end_BxWx1 = spans_BxWx2[..., :1], spans_BxWx2[..., 1:]
    is_in_BxWxL = (at_L >= start_BxWx1) & (at_L < end_BxWx1)
    is_in_BxWxL = (is_in_BxWxL if starts_BxL is None else is_in_BxWxL & starts_BxL[:, None]).astype(jnp.float32)
    sums = jnp.einsum("bwl,bld->bwd", is_in_BxWxL, states_BxLxD, precision="highest")
    return sums / jnp.maximum(is_in_BxWxL.sum(-1, keepdims=True), 1)


def _unit(vectors: jax.Array, normalize: bool) -> jax.Array:
    """Vectors divided by their L2 norm, if wanted."""
    return (
        vectors * jax.lax.rsqrt(jnp.maximum(jnp.square(vectors).sum(-1, keepdims=True), 1e-24))
        if normalize
        else vectors
    )
