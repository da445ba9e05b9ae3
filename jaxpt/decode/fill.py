"""Candidates for the masks of a text, by encoders: all masks at once, each with probabilities.

    text    [CLS] the [MASK] sat on the [MASK] [SEP]
    at 2    cat 0.31, dog 0.22 …
    at 6    mat 0.40, sofa 0.11 …

A masked LM sees the other masks; XLNet's query stream does not see the other targets. Spans of any length are in
`jaxpt.decode.spans`.

Shapes: B rows · L length · P masks · K candidates · D width of the model
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.decode import batching
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.logits import map_logits
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective, encode_batch
from jaxpt.objectives.formats import Format


def candidates(bound: Bound, batch: Mapping[str, jax.Array], k: int) -> tuple[jax.Array, jax.Array]:
    """The most likely tokens of an encoder at each masked position.

    Args:
      bound: a bound encoder with a masked-LM head, or with a query stream.
      batch: encoder_input_tokens, encoder_token_types, encoder_segment_ids, masked_positions, and encoder_positions or
        encoder_ranks if the model was trained with them; for two-stream models encoder_order.
      k: number of candidates, at most the vocabulary's size.

    Returns:
      (ids int32 [B, P, K], the most likely first; their probabilities float32 [B, P, K]).
    """
    at_BxP = batch["masked_positions"]
    if "encoder_order" in batch:
        chosen_BxPxD = bound.streams(
            batch["encoder_input_tokens"], token_types=batch["encoder_token_types"],
            segment_ids=batch["encoder_segment_ids"], ranks=batch["encoder_order"], targets=at_BxP,
        ).hidden.query_BxPxD  # fmt: skip
    else:
        chosen_BxPxD = jnp.take_along_axis(encode_batch(bound, batch).hidden, at_BxP[..., None], axis=1)

    def best(logits_BxCxV: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits_BxCxK, ids_BxCxK = jax.lax.top_k(logits_BxCxV, k)
        log_z_BxC = jax.nn.logsumexp(logits_BxCxV, axis=-1)
        return ids_BxCxK, jnp.exp(logits_BxCxK - log_z_BxC[..., None])

    return map_logits(best, bound.lm_states(chosen_BxPxD), bound.output_projection())


class Filled(NamedTuple):
    """The candidates of a mask."""

    position: int
    """Index of the mask in the given text."""
    ids: np.ndarray
    """int32 [K], the most likely first."""
    probabilities: np.ndarray
    """float32 [K]."""


def fill_masks(
    network: Network,
    params: Any,
    objective: Objective,
    vocabulary: Vocabulary,
    texts: Sequence[Sequence[int]],
    *,
    k: int = 5,
) -> list[list[Filled]]:
    """Candidates for all masks of texts.

    Args:
      network: backbone and heads, an encoder.
      params: its parameters.
      objective: the objective that the network was trained with.
      vocabulary: vocabulary of the run.
      texts: ids of each text with `vocabulary.mask` at the masks, without the special tokens around it.
      k: number of candidates of each mask.

    Returns:
      For each text its masks, from left to right.

    Raises:
      UserError: a text without masks, one that is longer than the model's positions, or a model that does not fill
        masks.
    """
    config = network.config
    if config.family != "encoder" or vocabulary.mask is None:
        raise UserError(f"model.kind: {config.kind} fills no masks: it needs an encoder and a vocabulary with [MASK]")
    if not 1 <= k <= config.vocab_size:
        raise UserError(f"top_k: {k} candidates are wanted, between 1 and the vocabulary's {config.vocab_size} exist")
    batching.check_ids("text", texts, config.vocab_size)
    layout = objective.text_format(config, vocabulary)
    masks = [[n for n, i in enumerate(ids) if i == vocabulary.mask] for ids in texts]
    rows = []
    for item, (ids, at) in enumerate(zip(texts, masks)):
        if not at:
            raise UserError(f"text {item}: has no mask, id {vocabulary.mask}; write one where a token is missing")
        wrapped = layout.wrap(ids)
        if config.position_limit is not None and len(wrapped) > config.position_limit:
            raise UserError(
                f"text {item}: has {len(wrapped)} tokens with special tokens, but the model {config.position_limit} "
                "positions; shorten it"
            )
        rows.append((wrapped, layout.token_types(len(wrapped)), [len(layout.before) + n for n in at]))
    sizes = [
        (batching.bucket(len(tokens), config.position_limit), batching.power_of_two(len(at))) for tokens, _, at in rows
    ]
    network, joins_sizes = batching.independent(network)
    filled: list[list[Filled]] = [[]] * len(rows)
    batches = batching.batches(sizes, sum, config.vocab_size, joins_sizes=joins_sizes)
    for (length, count), chosen, batch in batches:
        tokens, types, at = zip(*(rows[i] for i in chosen))
        arrays = [*batching.padded_with_lengths(tokens, batch, length)]
        arrays += [
            x for rows_, n in ((types, length), (at, count)) for x in batching.padded_with_lengths(rows_, batch, n)[:1]
        ]
        ids, probabilities = batching.run(
            _candidates, (network, objective, layout, vocabulary.mask, k), params, *arrays
        )
        for b, i in enumerate(chosen):
            filled[i] = [Filled(n, ids[b, p], probabilities[b, p]) for p, n in enumerate(masks[i])]
    return filled


def _candidates(
    network: Network, objective: Objective, layout: Format, mask: int, k: int, params: Any,
    tokens_BxL: jax.Array, lengths_B: jax.Array, types_BxL: jax.Array, at_BxP: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """`candidates` of rows without packing."""
    real_BxL = jnp.arange(tokens_BxL.shape[1]) < lengths_B[:, None]
    batch = {
        "encoder_input_tokens": tokens_BxL, "encoder_segment_ids": real_BxL.astype(jnp.int32),
        "encoder_token_types": types_BxL, "masked_positions": at_BxP,
    }  # fmt: skip
    if layout.permutes:  # all masks have one rank, above that of the text
        batch["encoder_order"] = jnp.where(tokens_BxL == mask, 0, -1)
    return candidates(objective.lm_network(network.bind(params)), batch, k)
