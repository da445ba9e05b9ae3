"""RoBERTa, and XLM-R: a BERT with one token type, whose positions start after padding's id.

Papers: https://arxiv.org/abs/1907.11692, XLM-R https://arxiv.org/abs/1911.02116
"""

from __future__ import annotations

from typing import Any, Literal

from jaxpt.config import NonNegativeInt, PositiveFloat, PositiveInt
from jaxpt.models.bert import Bert, BertConfig


class RobertaConfig(BertConfig):
    """Sizes of a RoBERTa."""

    kind: Literal["roberta"] = "roberta"
    max_positions: PositiveInt = 514
    """Rows of the position table; the first padding_id + 1 of them belong to no position."""
    padding_id: NonNegativeInt = 1
    """Id of padding in the vocabulary."""
    token_types: NonNegativeInt = 1
    epsilon: PositiveFloat = 1e-5
    """Of the norms."""

    @property
    def position_offset(self) -> int:
        """Row of the first position in the table."""
        return self.padding_id + 1

    @property
    def masked_lm_options(self) -> dict[str, Any]:
        """Options of its masked-LM head, whose activation is always this one."""
        return super().masked_lm_options | {"activation": "gelu"}

    def build(self) -> Roberta:
        """The model of these sizes."""
        return Roberta(self)


class Roberta(Bert):
    """The encoder."""

    config: RobertaConfig
