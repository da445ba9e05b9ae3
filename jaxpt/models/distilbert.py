"""DistilBERT: a BERT with half the layers and no token types.

Paper: https://arxiv.org/abs/1910.01108
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxpt.config import HeadName, PoolerOptions, TaskHead
from jaxpt.models.bert import BertConfig


class DistilBertConfig(BertConfig):
    """Configuration of DistilBERT."""

    kind: Literal["distilbert"] = "distilbert"
    token_types: Literal[0] = 0

    def pooler(self, name: HeadName) -> PoolerOptions:
        """As BERT's, with ReLU."""
        return PoolerOptions("relu")

    def task_head(self, name: HeadName) -> TaskHead:
        """As BERT, with dropout before the logits of spans, too."""
        return dataclasses.replace(super().task_head(name), drops_out=True)
