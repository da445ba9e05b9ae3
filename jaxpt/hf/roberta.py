"""A RoBERTa or XLM-R in Hugging Face's `RobertaForMaskedLM` or `XLMRobertaForMaskedLM`, which are alike."""

from __future__ import annotations

import dataclasses

from jaxpt.hf import bert
from jaxpt.hf.mapping import Row, Table
from jaxpt.hf.options import Family, Option
from jaxpt.models.roberta import RobertaConfig


def table(config: RobertaConfig) -> Table:
    """The table of a RoBERTa."""
    return Table(
        rows=(
            *bert.embeddings("roberta.embeddings"),
            *bert.encoder("roberta.encoder.layer.{layer}"),
        ),
        ignored=(*bert.IGNORED, r"roberta\.pooler\..*"),  # no head uses the pooler that some files have
        prefix="roberta.",
        renamed=bert.RENAMED,
    )


PADDING = Option("pad_token_id", "padding_id", 1)
ROBERTA = Family(
    model_type="roberta",
    kind="roberta",
    classes={("masked_lm",): "RobertaForMaskedLM", (): "RobertaModel"},
    table=table,
    heads={
        "masked_lm": lambda config: bert.masked_lm(
            "lm_head.dense", "lm_head.layer_norm", Row("bias", "lm_head.bias", tied=("lm_head.decoder.bias",)),
            "lm_head.decoder.weight",
        )
    },
    options=(*bert.options(vocab_size=50265), PADDING),
    fixed=bert.FIXED,
    harmless=bert.HARMLESS,
)  # fmt: skip
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    model_type="xlm-roberta",
    classes={("masked_lm",): "XLMRobertaForMaskedLM", (): "XLMRobertaModel"},
    options=(*bert.options(), PADDING),
    supports=lambda config: False,
)
FAMILIES = (ROBERTA, XLM_ROBERTA)
