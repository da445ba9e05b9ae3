"""A RoBERTa or XLM-R in Hugging Face's `RobertaForMaskedLM` or `XLMRobertaForMaskedLM`, which are alike."""

from __future__ import annotations

import dataclasses

from jaxpt.hf import bert
from jaxpt.hf.mapping import Row, Table, dense, layer_norm
from jaxpt.hf.options import Family, Option
from jaxpt.models.roberta import RobertaConfig


def table(config: RobertaConfig) -> Table:
    """The table of a RoBERTa."""
    return Table(
        rows=(
            *bert.embeddings("roberta.embeddings", tied=("lm_head.decoder.weight",)),
            *bert.encoder("roberta.encoder.layer.{layer}"),
            *dense("mlm_head/dense", "lm_head.dense"),
            *layer_norm("mlm_head/norm", "lm_head.layer_norm"),
            Row("mlm_head/bias", "lm_head.bias", tied=("lm_head.decoder.bias",)),
        ),
        ignored=(*bert.IGNORED, r"roberta\.pooler\..*"),  # no head uses the pooler that some files have
        prefix="roberta.",
        renamed=bert.RENAMED,
    )


PADDING = Option("pad_token_id", "padding_id", 1)
ROBERTA = Family(
    model_type="roberta",
    kind="roberta",
    architecture="RobertaForMaskedLM",
    table=table,
    options=(*bert.options(vocab_size=50265), PADDING),
    fixed=bert.FIXED,
    harmless=bert.HARMLESS,
)
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    model_type="xlm-roberta",
    architecture="XLMRobertaForMaskedLM",
    options=(*bert.options(), PADDING),
    supports=lambda config: False,
)
FAMILIES = (ROBERTA, XLM_ROBERTA)
