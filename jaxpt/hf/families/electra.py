"""ELECTRA as Hugging Face's `ElectraForPreTraining` (discriminator) or `ElectraForMaskedLM` (generator)."""

from __future__ import annotations

from jaxpt.hf.families import bert
from jaxpt.hf.options import Option
from jaxpt.hf.table import HeadTable, Row, Table, dense
from jaxpt.hf.tasks import tasks
from jaxpt.models.electra import ElectraConfig


def table(config: ElectraConfig) -> Table:
    """Weight table of one of the two models."""
    return bert.body(
        "electra", *(dense("embed_project", "electra.embeddings_project") if config.project_embeddings else ())
    )


SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
FAMILIES = (
    bert.family(
        model_type="electra",
        kind="electra",
        classes={
            ("masked_lm",): "ElectraForMaskedLM", ("replaced_token",): "ElectraForPreTraining", (): "ElectraModel",
        },
        table=table,
        heads={
            "masked_lm": lambda config: bert.masked_lm(
                "generator_predictions.dense", "generator_predictions.LayerNorm", Row("bias", "generator_lm_head.bias"),
                "generator_lm_head.weight",
            ),
            "replaced_token": lambda config: HeadTable((
                *dense("dense", "discriminator_predictions.dense"),
                *dense("score", "discriminator_predictions.dense_prediction"),
            )),
        },
        tasks=tasks(
            "Electra", classes=("classifier.dense", "classifier.out_proj"),
            choice=("sequence_summary.summary", "classifier"), fixed=SUMMARY,
        ),
        options=(
            *bert.options(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
            Option("embedding_size", "embedding_dim", 128),
        ),
        harmless=(
            *bert.HARMLESS, "summary_type", "summary_use_proj", "summary_activation",
        ),
        write=lambda keys, config: keys | {"embedding_size": config.table_dim},
    ),
)  # fmt: skip
