"""DistilBERT: a BERT with half the layers and no token types.

Paper: https://arxiv.org/abs/1910.01108
"""

from __future__ import annotations

from typing import Literal

from jaxpt.models.bert import Bert, BertConfig


class DistilBertConfig(BertConfig):
    """Configuration of DistilBERT."""

    kind: Literal["distilbert"] = "distilbert"
    token_types: Literal[0] = 0

    def build(self) -> DistilBert:
        """Builds the model."""
        return DistilBert(self)


class DistilBert(Bert):
    """The encoder."""

    config: DistilBertConfig
