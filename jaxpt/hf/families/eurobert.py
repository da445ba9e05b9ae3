"""EuroBERT as Hugging Face's `EuroBertForMaskedLM` or `EuroBertModel`: Llama's names, and a projection of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxpt.errors import UserError, shown
from jaxpt.hf import decoders, rope
from jaxpt.hf.options import Option
from jaxpt.hf.table import HeadTable, Row, Table
from jaxpt.hf.tasks import tasks
from jaxpt.models.eurobert import EuroBertConfig


def table(config: EuroBertConfig) -> Table:
    """Weight table of EuroBERT: Llama's without the projection, which is the masked-LM head's."""
    llama = decoders.table(config)
    return dataclasses.replace(llama, rows=tuple(row for row in llama.rows if row.theirs != "lm_head.weight"))


def _masked_lm(config: EuroBertConfig) -> HeadTable:
    kernel = () if config.tie_embeddings else (Row("kernel", "lm_head.weight", "transpose"),)
    return HeadTable((*kernel, *((Row("bias", "lm_head.bias"),) if config.mlp_bias else ())))


def _read(keys: dict[str, Any]) -> dict[str, Any]:
    if (pooling := keys.pop("clf_pooling", "late")) != "late":  # the class of transformers does not read this key
        raise UserError(f"config.json: clf_pooling: {shown(pooling)} is not supported, only late")
    return rope.read(keys, 10_000.0)


DEFAULTS = {
    "vocab_size": 128256, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "head_dim": None, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
POOLINGS = {"late": "late", "bos": "first", "mean": "mean"}
FAMILIES = (
    decoders.family(
        "eurobert", "EuroBert", {},
        (*decoders.options(10_000.0, **DEFAULTS), Option("classifier_pooling", "pooling", "late", POOLINGS)),
        kind="eurobert", kinds=(), classes={("masked_lm",): "EuroBertForMaskedLM", (): "EuroBertModel"}, table=table,
        heads={"masked_lm": _masked_lm}, tasks=tasks("EuroBert", classes=("dense", "classifier"), span=None),
        harmless=("pretraining_tp", "bos_token", "eos_token", "pad_token", "mask_token"),
        read=_read,
    ),
)  # fmt: skip
