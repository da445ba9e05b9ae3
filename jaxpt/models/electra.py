"""ELECTRA: a generator, a small masked LM, and a discriminator, which tells its samples from the original tokens.

Both are BERTs whose embeddings may be narrower than their layers. Each may be a model of its own (`role`), or they are
one model, to be trained together: a discriminator that has a `generator` (`jaxpt.models.pair`).

Paper: https://arxiv.org/abs/2003.10555

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

from typing import Literal, Self

import jax
from pydantic import model_validator

from jaxpt.config import PositiveInt
from jaxpt.models.base import compute_dtype
from jaxpt.models.bert import INIT, Bert, BertConfig
from jaxpt.models.heads import MaskedLMHead, ReplacedTokenHead
from jaxpt.models.layers import Activation
from jaxpt.models.pair import Pair, PairConfig


class ElectraConfig(PairConfig, BertConfig):
    """Sizes of a discriminator, alone or with its generator, or of a generator alone."""

    kind: Literal["electra"] = "electra"
    role: Literal["discriminator", "generator"] = "discriminator"
    """`discriminator` scores each token, `generator` has a masked-LM head."""
    embedding_dim: PositiveInt | None = None
    """Width of the token, position and type embeddings; embed_dim by default."""
    next_sentence: Literal[False] = False
    span_boundary: Literal[0] = 0

    @model_validator(mode="after")
    def _check_generator(self) -> Self:
        if self.generator is not None and self.role == "generator":
            raise ValueError("generator: a model whose role is generator has none of its own")
        if self.generator is not None:
            width, heads = self._generator_sizes()
            if width % heads:
                raise ValueError(
                    f"generator: {self.generator} makes it {width} wide, which {heads} heads do not divide"
                )
        return self

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

    def _generator_sizes(self) -> tuple[int, int]:
        """Width and heads."""
        width = max(round(self.embed_dim * self.generator), 1)
        return width, self.generator_heads or max(width // 64, 1)

    def of_generator(self) -> ElectraConfig:
        """The generator as a model of its own."""
        width, heads = self._generator_sizes()
        sizes = {"embed_dim": width, "heads": heads, "mlp_dim": 4 * width, "embedding_dim": self.table_dim}
        layers = self.layers_of_generator(self.layers)
        return self.model_copy(
            update={**sizes, "role": "generator", "generator": None, "layers": layers, "generator_heads": None}
        )

    def build(self) -> Electra:
        """The model of these sizes."""
        return Electra(self)


class Electra(Pair, Bert):
    """The discriminator, which may have a generator, or the generator."""

    config: ElectraConfig

    def heads(self) -> None:
        """Makes what comes after the layers, and the generator."""
        c, dtype = self.config, compute_dtype(self.config)
        if c.role == "generator":
            self.mlm_head = MaskedLMHead(c.vocab_size, c.table_dim, c.head_activation, c.epsilon, INIT, dtype)
        else:
            self.replaced_head = ReplacedTokenHead(c.activation, INIT, dtype)
        self.make_generator()

    def __call__(self, tokens_BxL: jax.Array) -> tuple[jax.Array, ...]:
        """Scores of the tokens [B, L], or of the vocabulary [B, L, V], or both: touches every parameter."""
        x_BxLxD = self.encode(tokens_BxL).hidden
        if self.config.role == "generator":
            return (self.logits(x_BxLxD),)
        return self.replaced(x_BxLxD), *(self.generator(tokens_BxL) if self.config.generator else ())
