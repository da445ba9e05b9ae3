"""ALBERT as Hugging Face's `AlbertForPreTraining`, `AlbertForMaskedLM` or `AlbertModel`, depending on the heads."""

from __future__ import annotations

from jaxpt.hf.families import bert
from jaxpt.hf.mapping import HeadTable, Row, Table, dense, layer_norm
from jaxpt.hf.options import Family, Option
from jaxpt.hf.tasks import tasks
from jaxpt.models.albert import AlbertConfig


def _block(ours: str, theirs: str) -> tuple[Row, ...]:
    return (
        *dense(f"{ours}/attention/query", f"{theirs}.attention.query"),
        *dense(f"{ours}/attention/key", f"{theirs}.attention.key"),
        *dense(f"{ours}/attention/value", f"{theirs}.attention.value"),
        *dense(f"{ours}/attention/output", f"{theirs}.attention.dense"),
        *layer_norm(f"{ours}/attention_norm", f"{theirs}.attention.LayerNorm"),
        *dense(f"{ours}/feed_forward/up", f"{theirs}.ffn"),
        *dense(f"{ours}/feed_forward/down", f"{theirs}.ffn_output"),
        *layer_norm(f"{ours}/feed_forward_norm", f"{theirs}.full_layer_layer_norm"),
    )


def table(config: AlbertConfig) -> Table:
    """Weight table of ALBERT."""
    group = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
    return Table(
        rows=(
            *bert.embeddings("albert.embeddings"),
            *dense("embed_project", "albert.encoder.embedding_hidden_mapping_in"),
            *(
                row
                for g in range(config.groups)
                for i in range(config.inner_layers)
                for row in _block(f"encoder/segment_{g}/block_{i}", group.format(group=g, inner=i))
            ),
        ),
        ignored=bert.IGNORED,
        prefix="albert.",
    )


POOLED = ("albert.pooler", "classifier")
FAMILIES = (
    Family(
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
        fixed=bert.FIXED,
        dropouts=bert.DROPOUTS,
        harmless=(*bert.HARMLESS, "down_scale_factor", "gap_size", "net_structure_type",
                  "num_memory_blocks"),
    ),
)  # fmt: skip
