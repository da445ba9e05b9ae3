"""DistilBERT: a BERT with half the layers and no token types.

Paper: https://arxiv.org/abs/1910.01108
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxpt.config import HeadName, PoolerOptions, TaskHead
from jaxpt.models.bert import Bert, BertConfig


class DistilBertConfig(BertConfig):
    """Configuration of DistilBERT."""

    kind: Literal["distilbert"] = "distilbert"
    token_types: Literal[0] = 0

    def task_head(self, name: HeadName) -> TaskHead:
        """As BERT, with ReLU in the pooler, and with dropout before the logits of spans."""
        pooler = None if name in ("tags", "span") else PoolerOptions("relu")
        return dataclasses.replace(super().task_head(name), pooler=pooler, drops_out=True)

    def build(self) -> DistilBert:
        """Builds the model."""
        return DistilBert(self)


class DistilBert(Bert):
    """The encoder."""

    config: DistilBertConfig
