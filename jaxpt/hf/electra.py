"""An ELECTRA in Hugging Face's `ElectraForPreTraining` (discriminator) or `ElectraForMaskedLM` (generator)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxpt.hf import bert
from jaxpt.hf.mapping import Row, Table, dense, layer_norm
from jaxpt.hf.options import Family, Option
from jaxpt.models.electra import ElectraConfig


def table(config: ElectraConfig) -> Table:
    """The table of one of the two models."""
    if config.role == "generator":
        head = (
            *dense("mlm_head/dense", "generator_predictions.dense"),
            *layer_norm("mlm_head/norm", "generator_predictions.LayerNorm"),
            Row("mlm_head/bias", "generator_lm_head.bias"),
        )
    else:
        head = (
            *dense("replaced_head/dense", "discriminator_predictions.dense"),
            *dense("replaced_head/score", "discriminator_predictions.dense_prediction"),
        )
    tied = ("generator_lm_head.weight",) if config.role == "generator" else ()
    return Table(
        rows=(
            *bert.embeddings("electra.embeddings", tied=tied),
            *(dense("embed_project", "electra.embeddings_project") if config.project_embeddings else ()),
            *bert.encoder("electra.encoder.layer.{layer}"),
            *head,
        ),
        ignored=bert.IGNORED,
        prefix="electra.",
    )


def _infer(keys: dict[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "generator" if "generator_lm_head.bias" in tensors else "discriminator"}


FAMILIES = (
    Family(
        model_type="electra",
        kind="electra",
        architecture=lambda c: "ElectraForMaskedLM" if c.role == "generator" else "ElectraForPreTraining",
        table=table,
        options=(
            *bert.options(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
            Option("embedding_size", "embedding_dim", 128),
        ),
        fixed=bert.FIXED,
        harmless=(
            *bert.HARMLESS, "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout",
        ),
        infer=_infer,
        write=lambda keys, config: keys | {"embedding_size": config.table_dim},
    ),
)  # fmt: skip
