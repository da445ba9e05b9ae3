"""Logits of fine-tuned classes on random tokens: ours and those of Hugging Face's class.

Shapes: B batch · L length · D embedding width · N labels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.models.base import Bound
from jaxpt.models.heads import classes
from jaxpt.models.network import Network

PADDING, EOS = 0, 1
"""Ids in `batch`; the other tokens have larger ones."""


def random_tokens(rng: np.random.Generator, config: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Random ids without those that some of Hugging Face's classes read as the end of a text.

    Args:
      rng: draws them.
      config: configuration of the model; RoBERTa's classes count positions without its `padding_id`.
      shape: of the result.

    Returns:
      int32 ids from 3 on, none of them `padding_id`.
    """
    first, padding = min(3, config.vocab_size - 1), getattr(config, "padding_id", None)
    is_among = padding is not None and first <= padding < config.vocab_size and first + 1 < config.vocab_size
    tokens = rng.integers(first, config.vocab_size - is_among, shape)
    return (tokens + (tokens >= padding) if is_among else tokens).astype(np.int32)


def batch(config: Any, length: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    """Random texts of three lengths, padded on the right (XLNet: on the left), and token types if the model has them.

    Args:
      config: configuration of the model.
      length: tokens of a row, at most the model's maximum.
      seed: random seed.

    Returns:
      tokens, segments and types; for an encoder-decoder also shifted, the decoder's input: all int32 [3, length].
    """
    rng = np.random.default_rng(seed)
    length = min(length, config.position_limit or length)
    padding = length // 6 * np.arange(3)[:, None]
    segments = (np.arange(length) < length - padding).astype(np.int32)
    tokens = random_tokens(rng, config, segments.shape)
    out = {"tokens": np.where(segments, tokens, PADDING).astype(np.int32), "segments": segments}
    if config.family == "encoder_decoder":
        out["tokens"][np.arange(3), segments.sum(1) - 1] = EOS
        start = PADDING if config.kind == "t5" else EOS  # mBART's is the last token of the text: here EOS, too
        out["shifted"] = np.pad(out["tokens"], ((0, 0), (1, 0)), constant_values=start)[:, :-1]
    if config.kind == "xlnet":
        out = {name: np.stack([np.roll(row, int(n)) for row, n in zip(x, padding[:, 0])]) for name, x in out.items()}
    if config.kind == "xlnet" or getattr(config, "token_types", 0) > 1:
        out["types"] = rng.integers(0, getattr(config, "token_types", 2), tokens.shape).astype(np.int32)
    return out


def states(bound: Bound, inputs: Mapping[str, jax.Array], stack: str) -> jax.Array:
    """Hidden states of the encoder or decoder: [B, L, D].

    Args:
      bound: the backbone.
      inputs: result of `batch`.
      stack: "encoder" or "decoder".
    """
    tokens, segments = inputs["tokens"], inputs["segments"]
    types = {"token_types": inputs["types"]} if "types" in inputs else {}
    if bound.config.family == "decoder":
        return bound.decode(tokens, segment_ids=segments, **types).hidden
    encoded = bound.encode(tokens, segment_ids=segments, **types).hidden
    if stack == "encoder":
        return encoded
    decoded = bound.decode(inputs["shifted"], encoded, segment_ids=segments, encoder_segment_ids=segments)
    return decoded.hidden


def logits(bound: Bound, states_BxLxD: jax.Array, inputs: Mapping[str, jax.Array]) -> jax.Array:
    """Logits of the head for fine-tuning.

    Args:
      bound: the network.
      states_BxLxD: result of `states`, of the stack that the head reads.
      inputs: result of `batch`.

    Returns:
      float32 [B, N] of texts, [B, L, N] of tokens, [1, B] of the texts as choices.
    """
    name, segments = classes.name_of(bound.heads), inputs["segments"]
    position, x = bound.config.task_head(name).position, states_BxLxD
    x = bound.heads["pooler"](x) if position == "late" else x
    if position in ("mean", "late"):
        x = (x * segments[..., None]).sum(1) / segments.sum(1, keepdims=True)
    elif position != "each":
        places = jnp.arange(segments.shape[1]) * (segments > 0)
        at = jnp.zeros(len(segments), int) if position == "first" else places.argmax(1)  # the last token is EOS
        x = jnp.take_along_axis(x, at[:, None, None], axis=1)[:, 0]
    y = classes.apply(bound, name, x)
    return y.T if name == "choice" else y


def ours(network: Network, params: Mapping[str, Any], inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """{"logits": …} of our network."""
    bound = network.bind(params)
    stack = bound.config.task_head(classes.name_of(bound.heads)).stack
    return {"logits": logits(bound, states(bound, inputs, stack), inputs)}


def theirs(name: str, model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The same of a class of `transformers`, which makes the decoder's input itself.

    Args:
      name: of our head.
      model: a torch module; the special ids of its configuration are changed to those of `batch`.
      inputs: result of `batch`.
    """
    import torch

    ids = {"pad_token_id": PADDING, "eos_token_id": EOS}
    if "shifted" in inputs:
        ids["decoder_start_token_id"] = int(inputs["shifted"][0, 0])
    for key, value in ids.items():
        setattr(model.config, key, value)
    names = {"tokens": "input_ids", "segments": "attention_mask", "types": "token_type_ids"}
    model_inputs = {names[key]: torch.from_numpy(x).long() for key, x in inputs.items() if key in names}
    got = model(**{key: x[None] for key, x in model_inputs.items()} if name == "choice" else model_inputs)
    return {"logits": torch.stack((got.start_logits, got.end_logits), -1) if name == "span" else got.logits}
