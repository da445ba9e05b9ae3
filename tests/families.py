"""The three families at toy size, with random batches of their objectives: no text and no TensorFlow needed."""

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.models import parts
from jaxpt.train import lora, trainable

MODELS = {
    "t5": {"kind": "t5", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "head_dim": 8, "mlp_dim": 64},
    "bert": {
        "kind": "bert", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "max_positions": 32,
    },
    "gpt2": {"kind": "gpt2", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "max_positions": 32},
    "llama": {"kind": "llama", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 8, "mlp_dim": 64},
    "phi": {
        "kind": "decoder_only", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64,
        "rotary_share": 0.75,
    },
    "gemma": {
        "kind": "decoder_only", "vocab_size": 200, "layers": 4, "embed_dim": 32, "heads": 4, "kv_heads": 2,
        "head_dim": 16, "mlp_dim": 64, "pattern": ["other", "main"], "other_window": 8, "norm": "rms_plus_one",
        "norm_position": "both", "qk_norm": "head", "score_cap": 2.0, "logit_cap": 3.0, "scale_embeddings": True,
        "tie_embeddings": True,
    },
    "neox": {
        "kind": "decoder_only", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64,
        "norm": "layer", "parallel": "two_norms", "gated": False, "activation": "gelu", "attention_bias": True,
        "mlp_bias": True, "rotary_share": 0.25,
    },
    "olmo": {
        "kind": "decoder_only", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64,
        "norm_position": "after", "qk_norm": "heads", "attention_bias": True,
    },
    "mixture": {
        "kind": "decoder_only", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64,
        "experts": 8, "experts_per_token": 3, "expert_dim": 16, "sparse_every": 2, "shared_experts": 1,
        "router_z_weight": 0.01, "balance_weight": 0.1,
    },
    "awd_lstm": {"kind": "awd_lstm", "vocab_size": 200, "layers": 2, "embed_dim": 32, "hidden_dim": 64},
    "elmo": {
        "kind": "elmo", "vocab_size": 600, "layers": 2, "embed_dim": 16, "cells": 16, "char_dim": 4,
        "filters": [[1, 8], [2, 8]], "highways": 1, "longest_word": 8,
    },
}  # fmt: skip
DECODERS = ("gpt2", "llama", "phi", "gemma", "neox", "olmo", "mixture")
OBJECTIVES = {
    "t5": "span_corruption", "bert": "masked_lm", **dict.fromkeys(DECODERS, "causal_lm"), "awd_lstm": "recurrent_lm",
    "elmo": "bidirectional_lm",
}  # fmt: skip
TOKENIZERS = {
    **dict.fromkeys((*DECODERS, "awd_lstm"), "bpe"), "t5": "sentencepiece", "bert": "wordpiece",
    "llama": "sentencepiece", "elmo": "spelled_words",
}  # fmt: skip
FAMILIES = ("t5", "bert", "gpt2")
EVALUATED = [{"kind": "heldout"}, {"kind": "baseline"}, {"kind": "samples"}]
"""What a recipe without `evals` has."""


def tree(family, **sections):
    """A plain configuration tree; keyword arguments are merged into its sections.

    A run of it evaluates its held-out loss alone, or `evals=EVALUATED`: samples are a quarter of a toy run's time.
    """
    base = {
        "model": {**MODELS[family], "dtype": "float32"},
        "objective": {"kind": OBJECTIVES[family]},
        "data": {"tokenizer": {"kind": TOKENIZERS[family]}, "length": 32, "batch_size": 8},
        "optimizer": {"kind": "adamw", "learning_rate": 1e-3},
        "train": {"steps": 10},
    }
    if "task" not in sections:
        base["evals"] = [{"kind": "heldout"}]
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
    return base


def config(family, **sections):
    return configs.build(tree(family, **sections))


def network(config):
    """The backbone with the heads that the objective wants."""
    return config.objective.network(config.model)


def layout(config):
    """Which of a model's parameters are trained when."""
    model = network(config)
    return trainable.layout(config, model.shapes(), model.logical_axes())


def begin(setup, seed=0, spread=0.1):
    """A state before the first step, with random parameters: to compile `setup.init` takes as long as half a step.

    Whichever way a stack is stored in parts, the model's parameters are the same; so they are on any mesh.
    """
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        x = spread * rng.standard_normal(leaf.shape, np.float32)
        return x + 1 if path[-1].key == "scale" else x

    params = parts.split(jax.tree_util.tree_map_with_path(draw, setup.network.shapes()), setup.layout.parts)
    if lora.ADAPTER in setup.shapes.params:
        params[lora.ADAPTER] = jax.tree_util.tree_map_with_path(draw, setup.shapes.params[lora.ADAPTER])
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), setup.shapes)
    ema = None if zeros.ema is None else trainable.partition(params, setup.trained)[0]
    return placed(zeros.replace(params=params, ema=ema), setup)


def placed(state, setup):
    """A state of NumPy arrays on the mesh; in copies, since a step donates its state."""

    def place(x, sharding):
        return jax.make_array_from_callback(np.shape(x), sharding, lambda index: np.array(np.asarray(x)[index]))

    return jax.tree.map(place, state, setup.shardings)


def batch(config, seed=0):
    """Random features with random weights: rows differ in how much they weigh, as real batches do."""
    rng = np.random.default_rng(seed)
    size, length = config.data.batch_size, config.data.length
    out = {}
    for name, (shape, dtype) in config.objective.data_spec(length).features.items():
        full = (size, *shape)
        if name.endswith("weights"):
            out[name] = (rng.random(full) < 0.7).astype(np.float32)
        elif name.endswith("segment_ids"):
            out[name] = np.tile(np.arange(shape[0]), (size, 1)) < rng.integers(shape[0] // 2, shape[0] + 1, (size, 1))
            out[name] = out[name].astype(dtype)
        elif name == "masked_positions":
            out[name] = np.stack([np.sort(rng.permutation(length)[: shape[0]]) for _ in range(size)]).astype(dtype)
        elif name.endswith("positions"):
            out[name] = np.tile(np.arange(shape[0], dtype=dtype), (size, 1))
        elif name == "encoder_token_types" or name.endswith("labels"):
            out[name] = rng.integers(0, 2, full).astype(dtype)
        else:
            out[name] = rng.integers(0, config.model.vocab_size, full).astype(dtype)
    return out
