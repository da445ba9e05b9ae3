"""What is measured: models, batches, and the same random batch for both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CONFIGS = Path(__file__).parents[2] / "configs" / "models"


@dataclasses.dataclass(frozen=True)
class Case:
    """One training step."""

    model: str
    """File of `configs/models`."""
    objective: str
    rows: int
    length: int
    """Tokens of a row; of T5 its inputs, whose targets follow from the rule of span corruption."""
    dropout: float = 0.1
    layers: int | None = None
    """Instead of the model's: to try things out."""


CPU = {
    "bert_base_16x128": Case("bert_base", "masked_lm", 16, 128),
    "t5_small_16x128": Case("t5_small", "span_corruption", 16, 128),
    "gpt2_124m_4x256": Case("gpt2_124m", "causal_lm", 4, 256),
}
"""In minutes on two cores."""
GPU = {
    "bert_base_128": Case("bert_base", "masked_lm", 128, 128),
    "bert_base_512": Case("bert_base", "masked_lm", 32, 512),
    "bert_large_128": Case("bert_large", "masked_lm", 64, 128),
    "bert_large_512": Case("bert_large", "masked_lm", 16, 512),
    "t5_1_1_base": Case("t5_1_1_base", "span_corruption", 32, 512, dropout=0.0),
    "t5_1_1_large": Case("t5_1_1_large", "span_corruption", 16, 512, dropout=0.0),
    "gpt2_124m": Case("gpt2_124m", "causal_lm", 16, 1024),
    "gpt2_1_5b": Case("gpt2_1558m", "causal_lm", 4, 1024),
    "llama_1b": Case("llama3_2_1b", "causal_lm", 4, 2048, dropout=0.0),
}
"""For one GPU of 80 GB or more."""
CASES = CPU | GPU

LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 1e-4, 0.01, 1.0
"""Of AdamW on both sides."""


def random_batch(shapes: Mapping[str, Any], vocab_size: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch of full rows for jaxpt's step: random ids, each row one segment.

    Args:
      shapes: {feature: anything with a shape and a dtype}, as `jaxpt.train.step.batch_shapes` gives them.
      vocab_size: ids are below it.
      seed: of the draws.

    Returns:
      {feature: array}.
    """
    rng = np.random.default_rng(seed)
    batch: dict[str, np.ndarray] = {}
    for name, wanted in sorted(shapes.items()):
        rows, length = shape = wanted.shape
        if name.endswith(("_tokens", "_targets")):
            value: Any = rng.integers(5, vocab_size, shape)
        elif name == "masked_positions":
            length = shapes["encoder_input_tokens"].shape[1]
            value = np.sort([rng.choice(length, shape[1], replace=False) for _ in range(rows)], -1)
        elif name.endswith("_positions"):
            value = np.broadcast_to(np.arange(length), shape)
        else:
            value = np.zeros(shape) if name.endswith("_types") else np.ones(shape)
        batch[name] = np.asarray(value, wanted.dtype)
    if "decoder_target_tokens" in batch:
        targets, inputs = batch["decoder_target_tokens"], batch["decoder_input_tokens"]
        if "encoder_input_tokens" in batch:  # of an encoder-decoder the decoder starts from padding
            inputs[:, 0], inputs[:, 1:] = 0, targets[:, :-1]
        else:
            targets[:, :-1] = inputs[:, 1:]
            batch["decoder_loss_weights"][:, -1] = 0  # whose target would be the next row's
    return batch


def of_transformers(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same batch as transformers' models take it, with labels."""
    if "masked_positions" in batch:
        inputs = batch["encoder_input_tokens"]
        labels = np.full(inputs.shape, -100)
        np.put_along_axis(labels, batch["masked_positions"], batch["masked_targets"], -1)
        return {"input_ids": inputs, "labels": labels}
    if "encoder_input_tokens" in batch:
        return {"input_ids": batch["encoder_input_tokens"], "labels": batch["decoder_target_tokens"]}
    return {"input_ids": batch["decoder_input_tokens"], "labels": batch["decoder_input_tokens"]}
