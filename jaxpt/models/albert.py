"""ALBERT: a BERT with parameters shared across layers and narrow, projected embeddings.

Paper: https://arxiv.org/abs/1909.11942
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from jaxpt.config import Layers, Size
from jaxpt.models.bert import BertConfig, Block
from jaxpt.models.layers import Activation
from jaxpt.models.stack import Segment


class AlbertConfig(BertConfig):
    """Configuration of ALBERT."""

    project_embeddings: ClassVar[bool] = True

    kind: Literal["albert"] = "albert"
    embedding_dim: Size = 128
    """Width of the token, position and type embeddings."""
    groups: Size = 1
    """Number of layer groups; the layers of a group share their parameters."""
    inner_layers: Layers = 1
    """Number of distinct blocks in a group; each of `layers` runs all of them."""
    activation: Activation = "gelu_tanh"

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.layers % self.groups:
            raise ValueError(f"groups: {self.groups} does not divide layers {self.layers}")
        return self

    @property
    def table_dim(self) -> int:
        """Width of the embeddings."""
        return self.embedding_dim

    def segments(self) -> tuple[Segment, ...]:
        """One segment per group."""
        blocks = (functools.partial(Block, self),) * self.inner_layers
        return (Segment(blocks, self.layers // self.groups, shared=True),) * self.groups
