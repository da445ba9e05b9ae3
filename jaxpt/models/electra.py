"""ELECTRA's encoder: a BERT whose embeddings may be narrower than its layers.

Generator and discriminator are two of them: `jaxpt.objectives.replaced_token` trains both.
Paper: https://arxiv.org/abs/2003.10555
"""

from __future__ import annotations

from typing import Any, Literal

from jaxpt.config import PositiveInt
from jaxpt.models.bert import Bert, BertConfig


class ElectraConfig(BertConfig):
    """Sizes of an ELECTRA."""

    kind: Literal["electra"] = "electra"
    embedding_dim: PositiveInt | None = None
    """Width of the token, position and type embeddings; embed_dim by default."""

    @property
    def table_dim(self) -> int:
        """Width of the embeddings."""
        return self.embedding_dim or self.embed_dim

    @property
    def project_embeddings(self) -> bool:
        """Whether a projection leads from the embeddings to the first layer."""
        return self.table_dim != self.embed_dim

    @property
    def masked_lm_options(self) -> dict[str, Any]:
        """Options of its masked-LM head, whose activation is always this one."""
        return super().masked_lm_options | {"activation": "gelu"}

    def build(self) -> Electra:
        """The model of these sizes."""
        return Electra(self)


class Electra(Bert):
    """The encoder of a generator or discriminator."""

    config: ElectraConfig
