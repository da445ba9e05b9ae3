"""ELECTRA's encoder: a BERT with optional narrow, projected embeddings.

`jaxpt.objectives.replaced_token` trains two of them, generator and discriminator.
Paper: https://arxiv.org/abs/2003.10555
"""

from __future__ import annotations

from typing import Any, Literal

from jaxpt.config import HeadName, PoolerOptions, Size
from jaxpt.models.bert import BertConfig


class ElectraConfig(BertConfig):
    """Configuration of ELECTRA."""

    kind: Literal["electra"] = "electra"
    embedding_dim: Size | None = None
    """Width of the token, position and type embeddings; embed_dim by default."""

    @property
    def table_dim(self) -> int:
        """Width of the embeddings."""
        return self.embedding_dim or self.embed_dim

    @property
    def project_embeddings(self) -> bool:
        """True if a projection maps the embeddings to the hidden width."""
        return self.table_dim != self.embed_dim

    @property
    def masked_lm_options(self) -> dict[str, Any]:
        """Options of the masked-LM head, whose activation is fixed."""
        return super().masked_lm_options | {"activation": "gelu"}

    def pooler(self, name: HeadName) -> PoolerOptions:
        """As BERT's, with GELU, and for whole texts with dropout before it."""
        return PoolerOptions("gelu", drops_out=name == "classes")
