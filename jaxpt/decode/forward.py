"""One forward pass over texts gives each text its logits, hidden states and attention weights, without padding.

Shapes: B rows · L length, of an encoder-decoder the encoder's · T length of the decoder · D width of the model
V vocabulary · K chosen layers · N layers · H heads · S keys
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxpt.decode import batching
from jaxpt.decode.embed import Layer, Rows, check_layer, choose_layer, segments_of, states
from jaxpt.errors import UserError
from jaxpt.models.attention import WEIGHTS
from jaxpt.models.base import compute_dtype
from jaxpt.models.network import Network
from jaxpt.models.output import CROSS

MAX_TOKENS = 2048
"""Maximum number of tokens in a batch, whose logits are in memory together."""


@dataclasses.dataclass(frozen=True)
class DecoderForward:
    """What the decoder of an encoder-decoder computes."""

    ids: list[int]
    """What it reads: its start tokens, then the targets."""
    tokens: list[str]
    """The same as the tokenizer writes them."""
    hidden: np.ndarray | None
    """float32 [T, D], or [K, T, D] if several layers were requested."""
    attentions: np.ndarray | None
    """float32 [N, H, T, T] on request: the weights of its self-attention."""
    cross_attentions: np.ndarray | None
    """float32 [N, H, T, L] on request: how much each of its tokens attends to each of the encoder's."""

    def __repr__(self) -> str:
        return f"DecoderForward({_shown(self, ('hidden', 'attentions', 'cross_attentions'))})"


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a model computes of one text. For an encoder-decoder, all but `logits` and `decoder` is the encoder's."""

    ids: list[int]
    """Ids of the tokens, special ones included."""
    tokens: list[str]
    """The tokens as its tokenizer writes them."""
    logits: np.ndarray | None
    """float32 [L, V]: a decoder predicts the next token at each position, an encoder the token itself. For an
    encoder-decoder [T, V]: the token after each one that the decoder reads. None if the model has no logits."""
    hidden: np.ndarray | None
    """float32 [L, D], or [K, L, D] if several layers were requested."""
    attentions: np.ndarray | None
    """float32 [N, H, L, L] on request: how much each token attends to each other one; rows sum to 1."""
    decoder: DecoderForward | None = None
    """What the decoder of an encoder-decoder computes."""

    def __repr__(self) -> str:
        decoder = "" if self.decoder is None else f"; {self.decoder}"
        return f"Forward({_shown(self, ('logits', 'hidden', 'attentions'))}{decoder})"


def _shown(forward: Forward | DecoderForward, arrays: Sequence[str]) -> str:
    """Formats the first tokens and the shapes of the arrays."""
    shapes = (f"{name}={list(x.shape)}" for name in arrays if (x := getattr(forward, name)) is not None)
    return f"{' '.join(forward.tokens[:12])}{' …' * (len(forward.tokens) > 12)}; {', '.join(shapes)}"


def has_logits(network: Network) -> bool:
    """True if hidden states alone give logits: for decoders, and for encoders with a masked-LM head."""
    return network.config.family == "decoder" or "masked_lm" in network.heads


def forward(
    network: Network,
    params: Any,
    rows: Rows,
    layer: Layer | None = None,
    attentions: bool = False,
    decoder_rows: Sequence[Sequence[int]] = (),
) -> list[Forward]:
    """Runs a model on texts.

    Args:
      network: backbone and heads.
      params: its parameters.
      rows: the texts, as `embed.lay` gives them.
      layer: whose hidden states are returned, see `Layer`; None for none.
      attentions: also return the attention weights.
      decoder_rows: for an encoder-decoder, the ids that its decoder reads for each text: its start tokens, then the
        targets. Without them the encoder runs alone.

    Returns:
      The results of each text. Their `tokens` are empty.

    Raises:
      UserError: no such layer, an id that is not in the vocabulary, or a model without attention.
    """
    if layer is not None:
        check_layer(layer)
    which = tuple(layer) if isinstance(layer, Sequence) and not isinstance(layer, str) else layer
    limit, vocab_size = network.config.position_limit, network.config.vocab_size
    network, joins_sizes = batching.independent(network)
    batching.check_ids("decoder input", decoder_rows, vocab_size)
    decodes = len(decoder_rows) > 0
    decoded = list(decoder_rows) if decodes else [()] * len(rows.tokens)
    sizes = [
        (batching.bucket(len(row), limit), batching.bucket(len(ids), limit) if decodes else 0)
        for row, ids in zip(rows.tokens, decoded, strict=True)
    ]
    results: list[Any] = [None] * len(sizes)
    max_tokens = 1 if attentions else MAX_TOKENS  # weights are quadratic in the length: a text at a time
    for size, chosen, places in batching.batches(sizes, sum, vocab_size, max_tokens, joins_sizes):
        tokens, lengths = batching.padded_with_lengths([rows.tokens[i] for i in chosen], places, size[0])
        types, _ = batching.padded_with_lengths([rows.types[i] for i in chosen], places, size[0])
        decoder = batching.padded_with_lengths([decoded[i] for i in chosen], places, size[1]) if decodes else ()
        static = network, which, attentions
        arrays = batching.run(_forward, static, params, tokens, lengths, types, *decoder)
        for b, i in enumerate(chosen):
            results[i] = _of_row(arrays, b, rows.tokens[i], decoded[i] if decodes else None)
    return results


def _of_row(arrays: Any, b: int, ids: Sequence[int], decoder_ids: Sequence[int] | None) -> Forward:
    """The results of row `b` of a batch, without its padding."""
    logits, (hidden, weights), decoder = arrays
    length, last = len(ids), len(ids if decoder_ids is None else decoder_ids)
    decoded = None
    if decoder_ids is not None:
        decoder_hidden, decoder_weights, cross_weights = decoder
        decoded = DecoderForward(
            list(map(int, decoder_ids)), [], _hidden_of(decoder_hidden, b, last),
            _weights_of(decoder_weights, b, last, last), _weights_of(cross_weights, b, last, length),
        )  # fmt: skip
    return Forward(
        list(map(int, ids)), [], None if logits is None else logits[b, :last], _hidden_of(hidden, b, length),
        _weights_of(weights, b, length, length), decoded,
    )  # fmt: skip


def _hidden_of(hidden: np.ndarray | None, b: int, length: int) -> np.ndarray | None:
    return None if hidden is None else hidden[..., b, :length, :]


def _weights_of(weights: np.ndarray | None, b: int, queries: int, keys: int) -> np.ndarray | None:
    return None if weights is None else weights[:, b, :, :queries, :keys]


def _forward(
    network: Network, layer: Layer | None, attentions: bool, params: Any, tokens_BxL: jax.Array, lengths_B: jax.Array,
    types_BxL: jax.Array, *decoder: jax.Array,
) -> tuple[jax.Array | None, tuple[jax.Array | None, ...], tuple[jax.Array | None, ...]]:  # fmt: skip
    """Computes logits; hidden states and attention weights; for an encoder-decoder also those of its decoder."""
    bound, kind = network.bind(params), network.config.kind
    sown: dict[str, Any] | None = {} if attentions else None
    last = states(dataclasses.replace(bound, intermediates=sown), tokens_BxL, lengths_B, types_BxL)
    hidden = last if layer == -1 else None
    if layer not in (None, -1):
        hidden = states(bound, tokens_BxL, lengths_B, types_BxL, layer)
    texts = hidden, None if sown is None else attention_weights(sown, kind)
    if not decoder:
        return bound.logits(last) if has_logits(network) else None, texts, ()
    decoder_tokens_BxT, decoder_lengths_B = decoder
    sown = {} if attentions else None  # T5 may use one stack for both, which would sow twice
    output = dataclasses.replace(bound, intermediates=sown).decode(
        decoder_tokens_BxT,
        last.astype(compute_dtype(network.config)),
        segment_ids=segments_of(decoder_tokens_BxT, decoder_lengths_B),
        encoder_segment_ids=segments_of(tokens_BxL, lengths_B),
        layers=layer not in (None, -1),
    )
    decoder_hidden = None if layer is None else choose_layer(output, layer)
    weights = (None, None) if sown is None else (attention_weights(sown, kind), attention_weights(sown, kind, True))
    return bound.logits(output.hidden), texts, (decoder_hidden, *weights)


def attention_weights(intermediates: Mapping[str, Any], kind: str, is_cross: bool = False) -> jax.Array:
    """The attention weights of all layers, in their order.

    Args:
      intermediates: what the modules of a model sowed: {stack: {segment: {block: {…}}}}.
      kind: kind of the model, for the message.
      is_cross: return the weights of cross-attention instead of self-attention.

    Returns:
      float32 [N, B, H, L, S].

    Raises:
      UserError: the model sowed none.
    """
    layers: list[jax.Array] = []
    for stack in intermediates.values():
        for segment in stack.values() if isinstance(stack, Mapping) else ():
            blocks = sorted(segment, key=lambda name: int(name.rpartition("_")[2]))
            of_blocks = [weights for block in blocks for weights in _of_block(segment[block], is_cross)]
            layers += [
                weights[index] for index in range(len(of_blocks[0]) if of_blocks else 0) for weights in of_blocks
            ]
    if not layers:
        raise UserError(f"attentions: model.kind: {kind} has no attention weights; call the model without attentions")
    return jnp.stack(layers).astype(jnp.float32).transpose(0, 1, 3, 2, 4)


def _of_block(tree: Mapping[str, Any], is_cross: bool) -> list[jax.Array]:
    """The weights of a block's self-attention, or cross-attention, [repeats, B, L, H, S]."""
    flat = traverse_util.flatten_dict(tree)
    return [sown[-1] for path, sown in flat.items() if path[-1] == WEIGHTS and (CROSS in path) == is_cross]
