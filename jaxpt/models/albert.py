"""ALBERT: a BERT whose layers share their parameters, with narrow token embeddings that are projected up.

Paper: https://arxiv.org/abs/1909.11942
"""

from __future__ import annotations

import functools
from typing import Literal, Self

from pydantic import model_validator

from jaxpt.config import PositiveInt
from jaxpt.models.bert import Bert, BertConfig, Block
from jaxpt.models.layers import Activation
from jaxpt.models.stack import Segment


class AlbertConfig(BertConfig):
    """Sizes of an ALBERT."""

    kind: Literal["albert"] = "albert"
    embedding_dim: PositiveInt = 128
    """Width of the token, position and type embeddings."""
    groups: PositiveInt = 1
    """Groups of layers; those of a group share their parameters."""
    inner_layers: PositiveInt = 1
    """Layers with parameters of their own inside a group, all of them run in each of `layers`."""
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

    @property
    def project_embeddings(self) -> bool:
        """A projection leads from the embeddings to the first layer."""
        return True

    def segments(self) -> tuple[Segment, ...]:
        """The layers, group by group."""
        blocks = (functools.partial(Block, self),) * self.inner_layers
        return (Segment(blocks, self.layers // self.groups, shared=True),) * self.groups

    def build(self) -> Albert:
        """The model of these sizes."""
        return Albert(self)


class Albert(Bert):
    """The encoder."""

    config: AlbertConfig
