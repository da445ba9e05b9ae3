"""ALBERT as Hugging Face's `AlbertForPreTraining`, `AlbertForMaskedLM` or `AlbertModel`, depending on the heads."""

from __future__ import annotations

import itertools

from jaxpt.hf.families import bert
from jaxpt.hf.options import Option
from jaxpt.hf.table import HeadTable, Row, Table, dense, layer
from jaxpt.hf.tasks import tasks
from jaxpt.models.albert import AlbertConfig

BLOCK = {
    "attention/query": "attention.query", "attention/key": "attention.key", "attention/value": "attention.value",
    "attention/output": "attention.dense", "attention_norm": "attention.LayerNorm", "feed_forward/up": "ffn",
    "feed_forward/down": "ffn_output", "feed_forward_norm": "full_layer_layer_norm",
}  # fmt: skip


def table(config: AlbertConfig) -> Table:
    """Weight table of ALBERT."""
    groups = "albert.encoder.albert_layer_groups.{}.albert_layers.{}"
    blocks = itertools.product(range(config.groups), range(config.inner_layers))
    return Table(
        rows=(
            *bert.embeddings("albert.embeddings"),
            *dense("embed_project", "albert.encoder.embedding_hidden_mapping_in"),
            *(row for g, i in blocks for row in layer(f"encoder/segment_{g}/block_{i}", groups.format(g, i), BLOCK)),
        ),
        ignored=bert.IGNORED,
        prefix="albert.",
    )


POOLED = ("albert.pooler", "classifier")
FAMILIES = (
    bert.family(
        model_type="albert",
        kind="albert",
        classes={
            ("masked_lm", "pooler", "sentence_pair"): "AlbertForPreTraining",
            ("masked_lm",): "AlbertForMaskedLM",
            ("pooler",): "AlbertModel",
            (): "AlbertModel",
        },
        table=table,
        heads={
            "masked_lm": lambda config: bert.masked_lm(
                "predictions.dense", "predictions.LayerNorm",
                Row("bias", "predictions.bias", tied=("predictions.decoder.bias",)), "predictions.decoder.weight",
            ),
            "pooler": lambda config: HeadTable(dense("dense", "albert.pooler")),
            "sentence_pair": lambda config: HeadTable(dense("dense", "sop_classifier.classifier")),
        },
        tasks=tasks("Albert", classes=POOLED, choice=POOLED),
        options=(
            *bert.options(
                vocab_size=30000, hidden_size=4096, num_attention_heads=64, intermediate_size=16384,
                hidden_act="gelu_new", hidden_dropout_prob=0.0,
            ),
            Option("embedding_size", "embedding_dim", 128),
            Option("num_hidden_groups", "groups", 1),
            Option("inner_group_num", "inner_layers", 1),
        ),
        harmless=(*bert.HARMLESS, "down_scale_factor", "gap_size", "net_structure_type",
                  "num_memory_blocks"),
    ),
)  # fmt: skip
