"""One forward pass over texts: logits, hidden states and attention weights, of each text without its padding.

Shapes: B rows · L length · D width of the model · V vocabulary · K chosen layers · N layers · H heads · S keys
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
from jaxpt.decode.embed import Layer, Rows, states
from jaxpt.errors import UserError
from jaxpt.models.attention import WEIGHTS
from jaxpt.models.network import Network
from jaxpt.models.output import CROSS

MAX_TOKENS = 2048
"""Tokens of a batch: their logits are in memory together."""


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a model computes of one text."""

    ids: list[int]
    """Of its tokens, special ones included."""
    tokens: list[str]
    """The tokens as its tokenizer writes them."""
    logits: np.ndarray | None
    """float32 [L, V]: a decoder's of the next token, an encoder's of the token itself; None if the model has none."""
    hidden: np.ndarray | None
    """float32 [L, D], of several layers [K, L, D], as they were requested."""
    attentions: np.ndarray | None
    """float32 [N, H, L, L] on request: how much each token attends to each other one; rows sum to 1."""

    def __repr__(self) -> str:
        arrays = ("logits", "hidden", "attentions")
        shapes = (f"{name}={list(x.shape)}" for name in arrays if (x := getattr(self, name)) is not None)
        return f"Forward({' '.join(self.tokens[:12])}{' …' * (len(self.tokens) > 12)}; {', '.join(shapes)})"


def has_logits(network: Network) -> bool:
    """True if hidden states alone give logits: of decoders, and of encoders with a masked-LM head."""
    return network.config.family == "decoder" or "masked_lm" in network.heads


def forward(
    network: Network, params: Any, rows: Rows, layer: Layer | None = None, attentions: bool = False
) -> list[Forward]:
    """Runs a model on texts; an encoder-decoder's encoder.

    Args:
      network: backbone and heads.
      params: its parameters.
      rows: the texts, as of `embed.lay`.
      layer: whose hidden states are returned, see `Layer`; None for none.
      attentions: also return the attention weights.

    Returns:
      What was computed of each text, without the names of its tokens.

    Raises:
      UserError: no such layer, or a model without attention.
    """
    which = tuple(layer) if isinstance(layer, Sequence) and not isinstance(layer, str) else layer
    limit, vocab_size = network.config.position_limit, network.config.vocab_size
    sizes = [(batching.bucket(len(row), limit),) for row in rows.tokens]
    results: list[Any] = [None] * len(sizes)
    max_tokens = 1 if attentions else MAX_TOKENS  # weights are quadratic in the length: a text at a time
    for (length,), chosen, places in batching.batches(sizes, lambda size: size[0], vocab_size, max_tokens):
        tokens, lengths = batching.padded_with_lengths([rows.tokens[i] for i in chosen], places, length)
        types, _ = batching.padded_with_lengths([rows.types[i] for i in chosen], places, length)
        logits, hidden, weights = batching.run(_forward, (network, which, attentions), params, tokens, lengths, types)
        for b, i in enumerate(chosen):
            count = len(rows.tokens[i])
            results[i] = Forward(
                list(map(int, rows.tokens[i])), [], None if logits is None else logits[b, :count],
                None if hidden is None else hidden[..., b, :count, :],
                None if weights is None else weights[:, b, :, :count, :count],
            )  # fmt: skip
    return results


def _forward(
    network: Network, layer: Layer | None, attentions: bool, params: Any, tokens_BxL: jax.Array, lengths_B: jax.Array,
    types_BxL: jax.Array,
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:  # fmt: skip
    bound = network.bind(params)
    sown: dict[str, Any] | None = {} if attentions else None
    last = states(dataclasses.replace(bound, intermediates=sown), tokens_BxL, lengths_B, types_BxL)
    logits = bound.logits(last) if has_logits(network) else None
    hidden = last if layer == -1 else None
    if layer not in (None, -1):
        hidden = states(bound, tokens_BxL, lengths_B, types_BxL, layer)
    return logits, hidden, None if sown is None else attention_weights(sown, network.config.kind)


def attention_weights(intermediates: Mapping[str, Any], kind: str) -> jax.Array:
    """The attention weights of all layers, in their order; those of cross-attention are left out.

    Args:
      intermediates: what the modules of a model sowed: {stack: {segment: {block: {…}}}}.
      kind: of the model, for the message.

    Returns:
      float32 [N, B, H, L, S].

    Raises:
      UserError: the model sowed none.
    """
    layers: list[jax.Array] = []
    for stack in intermediates.values():
        for segment in stack.values() if isinstance(stack, Mapping) else ():
            blocks = sorted(segment, key=lambda name: int(name.rpartition("_")[2]))
            of_blocks = [weights for block in blocks for weights in _of_block(segment[block])]
            layers += [
                weights[index] for index in range(len(of_blocks[0]) if of_blocks else 0) for weights in of_blocks
            ]
    if not layers:
        raise UserError(f"attentions: model.kind: {kind} has no attention weights; call the model without attentions")
    return jnp.stack(layers).astype(jnp.float32).transpose(0, 1, 3, 2, 4)


def _of_block(tree: Mapping[str, Any]) -> list[jax.Array]:
    """The weights of a block's self-attention, [repeats, B, L, H, S]."""
    flat = traverse_util.flatten_dict(tree)
    return [sown[-1] for path, sown in flat.items() if path[-1] == WEIGHTS and CROSS not in path]
