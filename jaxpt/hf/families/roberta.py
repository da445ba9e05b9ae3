"""RoBERTa, XLM-R and CamemBERT as Hugging Face's `RobertaForMaskedLM`, `XLMRobertaForMaskedLM`, `CamembertForMaskedLM`.

The three classes are equal.
"""

from __future__ import annotations

import dataclasses

from jaxpt.hf.families import bert
from jaxpt.hf.options import Option
from jaxpt.hf.table import Row
from jaxpt.hf.tasks import Task, tasks


def _tasks(name: str) -> dict[str, Task]:
    return tasks(
        name, classes=("classifier.dense", "classifier.out_proj"), choice=("roberta.pooler.dense", "classifier")
    )


PADDING = Option("pad_token_id", "padding_id", 1)
ROBERTA = bert.family(
    model_type="roberta",
    kind="roberta",
    classes={("masked_lm",): "RobertaForMaskedLM", (): "RobertaModel"},
    table=lambda config: bert.body("roberta", ignored=(r"roberta\.pooler\..*",)),  # some files have an unused pooler
    heads={
        "masked_lm": lambda config: bert.masked_lm(
            "lm_head.dense", "lm_head.layer_norm", Row("bias", "lm_head.bias", tied=("lm_head.decoder.bias",)),
            "lm_head.decoder.weight",
        )
    },
    tasks=_tasks("Roberta"),
    options=(*bert.options(vocab_size=50265), PADDING),
)  # fmt: skip
FAMILIES = (
    ROBERTA,
    *(
        dataclasses.replace(
            ROBERTA,
            model_type=model_type,
            classes={("masked_lm",): f"{name}ForMaskedLM", (): f"{name}Model"},
            tasks=_tasks(name),
            options=(*bert.options(), PADDING),
            only_of_origin=True,
        )
        for model_type, name in (("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert"))
    ),
)
