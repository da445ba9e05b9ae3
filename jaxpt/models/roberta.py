"""RoBERTa, and XLM-R: a BERT without next-sentence head, one token type, and positions that start after padding's id.

Papers: https://arxiv.org/abs/1907.11692, XLM-R https://arxiv.org/abs/1911.02116
"""

from __future__ import annotations

from typing import Literal

from jaxpt.config import NonNegativeInt, PositiveFloat, PositiveInt
from jaxpt.models.bert import Bert, BertConfig
from jaxpt.models.layers import Activation


class RobertaConfig(BertConfig):
    """Sizes of a RoBERTa."""

    kind: Literal["roberta"] = "roberta"
    max_positions: PositiveInt = 514
    """Rows of the position table; the first padding_id + 1 of them belong to no position."""
    padding_id: NonNegativeInt = 1
    """Id of padding in the vocabulary."""
    token_types: NonNegativeInt = 1
    next_sentence: Literal[False] = False
    epsilon: PositiveFloat = 1e-5
    """Of the norms."""

    @property
    def position_offset(self) -> int:
        """Row of the first position in the table."""
        return self.padding_id + 1

    @property
    def head_activation(self) -> Activation:
        """Of the masked-LM head: always this one."""
        return "gelu"

    def build(self) -> Roberta:
        """The model of these sizes."""
        return Roberta(self)


class Roberta(Bert):
    """RoBERTa with its masked-LM head."""

    config: RobertaConfig
