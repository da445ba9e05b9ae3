"""ELECTRA: a generator, a small masked LM, and a discriminator, which tells its samples from the original tokens.

Both are BERTs whose embeddings may be narrower than their layers. Each is a model of its own here; what they share in
training is the objective's matter. Paper: https://arxiv.org/abs/2003.10555

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

from typing import Literal

import jax

from jaxpt.config import PositiveInt
from jaxpt.models.base import compute_dtype
from jaxpt.models.bert import INIT, Bert, BertConfig
from jaxpt.models.heads import MaskedLMHead, ReplacedTokenHead
from jaxpt.models.layers import Activation


class ElectraConfig(BertConfig):
    """Sizes of one of the two models of an ELECTRA."""

    kind: Literal["electra"] = "electra"
    role: Literal["discriminator", "generator"] = "discriminator"
    """`discriminator` scores each token, `generator` has a masked-LM head."""
    embedding_dim: PositiveInt | None = None
    """Width of the token, position and type embeddings; embed_dim by default."""
    next_sentence: Literal[False] = False

    @property
    def table_dim(self) -> int:
        """Width of the embeddings."""
        return self.embedding_dim or self.embed_dim

    @property
    def project_embeddings(self) -> bool:
        """Whether a projection leads from the embeddings to the first layer."""
        return self.table_dim != self.embed_dim

    @property
    def head_activation(self) -> Activation:
        """Of the masked-LM head: always this one."""
        return "gelu"

    def build(self) -> Electra:
        """The model of these sizes."""
        return Electra(self)


class Electra(Bert):
    """The discriminator or the generator."""

    config: ElectraConfig

    def heads(self) -> None:
        """Makes what comes after the layers."""
        c, dtype = self.config, compute_dtype(self.config)
        if c.role == "generator":
            self.mlm_head = MaskedLMHead(c.vocab_size, c.head_activation, c.epsilon, INIT, dtype)
        else:
            self.replaced_head = ReplacedTokenHead(c.activation, INIT, dtype)

    def replaced(self, x: jax.Array) -> jax.Array:
        """The discriminator's scores, above 0 for "replaced": [..., D] → float32 [...]."""
        return self.replaced_head(x)

    def __call__(self, tokens_BxL: jax.Array) -> tuple[jax.Array, ...]:
        """Scores of the tokens [B, L], or of the vocabulary [B, L, V]: touches every parameter."""
        x_BxLxD = self.encode(tokens_BxL)
        return (self.logits(x_BxLxD) if self.config.role == "generator" else self.replaced(x_BxLxD),)
