"""An ALBERT in Hugging Face's `AlbertForPreTraining`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxpt.hf import bert
from jaxpt.hf.mapping import Row, Table, dense, layer_norm
from jaxpt.hf.options import Family, Option
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
    """The table of an ALBERT."""
    group = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
    next_sentence = (
        *dense("pooler/dense", "albert.pooler"),
        *dense("next_sentence_head/dense", "sop_classifier.classifier"),
    )
    return Table(
        rows=(
            *bert.embeddings("albert.embeddings", tied=("predictions.decoder.weight",)),
            *dense("embed_project", "albert.encoder.embedding_hidden_mapping_in"),
            *(
                row
                for g in range(config.groups)
                for i in range(config.inner_layers)
                for row in _block(f"encoder/segment_{g}/block_{i}", group.format(group=g, inner=i))
            ),
            *dense("mlm_head/dense", "predictions.dense"),
            *layer_norm("mlm_head/norm", "predictions.LayerNorm"),
            Row("mlm_head/bias", "predictions.bias", tied=("predictions.decoder.bias",)),
            *(next_sentence if config.next_sentence else ()),
        ),
        ignored=bert.IGNORED,
        prefix="albert.",
    )


def _infer(keys: dict[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A file with a masked-LM head and no sentence-order head is an `AlbertForMaskedLM`."""
    masked_alone = "predictions.bias" in tensors and "sop_classifier.classifier.weight" not in tensors
    return {"next_sentence": not masked_alone}


FAMILIES = (
    Family(
        model_type="albert",
        kind="albert",
        architecture=lambda config: "AlbertForPreTraining" if config.next_sentence else "AlbertForMaskedLM",
        table=table,
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
        harmless=(*bert.HARMLESS, "classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type",
                  "num_memory_blocks"),
        infer=_infer,
    ),
)  # fmt: skip
