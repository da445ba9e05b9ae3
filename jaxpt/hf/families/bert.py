"""BERT as Hugging Face's `BertForPreTraining`, `BertForMaskedLM` or `BertModel`, depending on the heads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import HeadTable, Row, Table, dense, layer, norm
from jaxpt.hf.tasks import tasks

BLOCK = {
    "attention/query": "attention.self.query", "attention/key": "attention.self.key",
    "attention/value": "attention.self.value", "attention/output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm", "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense", "feed_forward_norm": "output.LayerNorm",
}  # fmt: skip
"""Names of a layer's parts."""
OURS = "encoder/segment_0/block_0"


def embeddings(theirs: str, types: bool = True) -> tuple[Row, ...]:
    """Rows of the embeddings."""
    rows = (
        Row("token_embed/table", f"{theirs}.word_embeddings.weight"),
        Row("position_embed/table", f"{theirs}.position_embeddings.weight"),
        *norm("embed_norm", f"{theirs}.LayerNorm"),
    )
    return (*rows, Row("type_embed/table", f"{theirs}.token_type_embeddings.weight")) if types else rows


def masked_lm(dense_name: str, norm_name: str, bias: Row, tied: str) -> HeadTable:
    """Rows of a masked-LM head; `tied` is the name of the tied token embeddings."""
    return HeadTable((*dense("dense", dense_name), *norm("norm", norm_name), bias), (tied,))


def options(**defaults: Any) -> tuple[Option, ...]:
    """Keys of config.json that BERT-like encoders share; `defaults` override BERT's."""
    plain = {
        "vocab_size": ("vocab_size", 30522),
        "hidden_size": ("embed_dim", 768),
        "num_hidden_layers": ("layers", 12),
        "num_attention_heads": ("heads", 12),
        "intermediate_size": ("mlp_dim", 3072),
        "max_position_embeddings": ("max_positions", 512),
        "type_vocab_size": ("token_types", 2),
        "layer_norm_eps": ("epsilon", 1e-12),
        "hidden_dropout_prob": ("dropout", 0.1),
    }
    rows = [Option(theirs, ours, defaults.pop(theirs, default)) for theirs, (ours, default) in plain.items()]
    activation = Option("hidden_act", "activation", defaults.pop("hidden_act", "gelu"), ACTIVATIONS)
    assert not defaults, defaults
    return (*rows, activation)


# Sizes in files of 2018.
HARMLESS = (
    "directionality", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
)  # fmt: skip
DROPOUTS = ("attention_probs_dropout_prob",)
FIXED = {"position_embedding_type": "absolute", "tie_word_embeddings": True}
IGNORED = (r".*\.position_ids", r".*embeddings\.token_type_ids")
# Files of 2018 use TensorFlow's names of norm parameters.
RENAMED = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))


def body(name: str, *more: Row, ignored: tuple[str, ...] = ()) -> Table:
    """Weight table of a BERT whose class calls it `name`; `more` are rows of what stands before the layers."""
    layers = layer(OURS, f"{name}.encoder.layer.{{layer}}", BLOCK)
    rows = (*embeddings(f"{name}.embeddings"), *more, *layers)
    return Table(rows, ignored=(*IGNORED, *ignored), prefix=f"{name}.", renamed=RENAMED)


PREDICTIONS = "cls.predictions"
HEADS: Mapping[str, Callable[[Any], HeadTable]] = {
    "masked_lm": lambda config: masked_lm(
        f"{PREDICTIONS}.transform.dense", f"{PREDICTIONS}.transform.LayerNorm",
        Row("bias", f"{PREDICTIONS}.bias", tied=(f"{PREDICTIONS}.decoder.bias",)), f"{PREDICTIONS}.decoder.weight",
    ),
    "pooler": lambda config: HeadTable(dense("dense", "bert.pooler.dense")),
    "sentence_pair": lambda config: HeadTable(dense("dense", "cls.seq_relationship")),
}  # fmt: skip
family = functools.partial(Family, fixed=FIXED, dropouts=DROPOUTS, harmless=HARMLESS)
"""A family with BERT's keys of config.json."""
POOLED = ("bert.pooler.dense", "classifier")
FAMILIES = (
    family(
        model_type="bert",
        kind="bert",
        classes={
            ("masked_lm", "pooler", "sentence_pair"): "BertForPreTraining",
            ("masked_lm",): "BertForMaskedLM",
            ("pooler",): "BertModel",
            (): "BertModel",
        },
        table=lambda config: body("bert"),
        heads=HEADS,
        tasks=tasks("Bert", classes=POOLED, choice=POOLED),
        options=options(),
    ),
)
