"""RoBERTa, and XLM-R: a BERT with one token type whose positions start at padding_id + 1.

Papers: https://arxiv.org/abs/1907.11692, XLM-R https://arxiv.org/abs/1911.02116
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from jaxpt.config import HeadName, NonNegativeInt, PoolerOptions, PositiveFloat, Size
from jaxpt.models.bert import BertConfig


class RobertaConfig(BertConfig):
    """Configuration of RoBERTa."""

    text_layout: ClassVar[str] = "roberta"

    kind: Literal["roberta"] = "roberta"
    max_positions: Size = 514
    """Rows of the position table; the first padding_id + 1 rows are unused."""
    padding_id: NonNegativeInt = 1
    """Padding id of the vocabulary."""
    token_types: NonNegativeInt = 1
    epsilon: PositiveFloat = 1e-5
    """ε of the norms."""

    @property
    def position_offset(self) -> int:
        """Row of position 0 in the table."""
        return self.padding_id + 1

    @property
    def masked_lm_options(self) -> dict[str, Any]:
        """Options of the masked-LM head, whose activation is fixed."""
        return super().masked_lm_options | {"activation": "gelu"}

    def pooler(self, name: HeadName) -> PoolerOptions:
        """As BERT's, for whole texts with dropout before it."""
        return PoolerOptions(drops_out=name == "classes")
