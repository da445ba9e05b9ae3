"""DistilBERT: a BERT of half the layers, without token types.

Paper: https://arxiv.org/abs/1910.01108
"""

from __future__ import annotations

from typing import Literal

from jaxpt.models.bert import Bert, BertConfig


class DistilBertConfig(BertConfig):
    """Sizes of a DistilBERT."""

    kind: Literal["distilbert"] = "distilbert"
    token_types: Literal[0] = 0

    def build(self) -> DistilBert:
        """The model of these sizes."""
        return DistilBert(self)


class DistilBert(Bert):
    """The encoder."""

    config: DistilBertConfig
