"""ELECTRA: a generator, a small masked LM, and a discriminator, which tells its samples from the original tokens.

Both are BERTs whose embeddings may be narrower than their layers. Each may be a model of its own (`role`), or they are
one model, to be trained together: a discriminator that has a `generator`. Then they share their embeddings, or the
discriminator's are the generator's plus a difference of its own, Δ, which starts at 0:

    shared          E_D = E_G          both losses reach it (ELECTRA)
    disentangled    E_D = sg(E_G) + Δ  the generator's loss reaches E_G, the discriminator's Δ (DeBERTa-v3)

Papers: https://arxiv.org/abs/2003.10555, disentangled https://arxiv.org/abs/2111.09543

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

import flax.linen as nn
import jax
from pydantic import Field, model_validator

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.models.base import compute_dtype
from jaxpt.models.bert import INIT, Bert, BertConfig
from jaxpt.models.heads import MaskedLMHead, ReplacedTokenHead
from jaxpt.models.layers import Activation, Initializer

TABLES = ("token_embed/table", "position_embed/table", "type_embed/table")
Share = Annotated[float, Field(gt=0, le=1)]


class ElectraConfig(BertConfig):
    """Sizes of a discriminator, alone or with its generator, or of a generator alone."""

    kind: Literal["electra"] = "electra"
    role: Literal["discriminator", "generator"] = "discriminator"
    """`discriminator` scores each token, `generator` has a masked-LM head."""
    embedding_dim: PositiveInt | None = None
    """Width of the token, position and type embeddings; embed_dim by default."""
    generator: Share | None = None
    """Train a generator with the discriminator, of this share of its width (1/4 small, 1/3 base; four times as wide
    inside the feed-forward blocks, a head for each 64); none by default."""
    generator_layers: Share = 1.0
    """Its share of the layers (DeBERTa-v3: 1/2)."""
    sharing: Literal["shared", "disentangled"] = "shared"
    """Embeddings (and their norm) of both in one, or the discriminator's as the generator's, whose gradient is stopped,
    plus a difference (DeBERTa-v3's gradient-disentangled sharing)."""
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
        return width, max(width // 64, 1)

    def of_generator(self) -> ElectraConfig:
        """The generator as a model of its own."""
        width, heads = self._generator_sizes()
        sizes = {"embed_dim": width, "heads": heads, "mlp_dim": 4 * width, "embedding_dim": self.table_dim}
        layers = max(round(self.layers * self.generator_layers), 1)
        return self.model_copy(update={**sizes, "role": "generator", "generator": None, "layers": layers})

    def shipped(self, paths: Iterable[str]) -> tuple[ModelConfig, dict[str, tuple[str, ...]]]:
        """The discriminator alone; its embeddings are summed up where they are disentangled."""
        kept = {path: (path,) for path in paths if not path.startswith("generator/")}
        if self.generator and self.sharing == "disentangled":
            kept |= {path: (path, f"generator/{path}") for path in TABLES if path in kept}
        return self.model_copy(update={"generator": None, "generator_layers": 1.0, "sharing": "shared"}), kept

    def build(self) -> Electra:
        """The model of these sizes."""
        return Electra(self)


class Electra(Bert):
    """The discriminator, which may have a generator, or the generator."""

    config: ElectraConfig
    tables: tuple[nn.Module | None, ...] | None = None
    """The other's token, position and type embeddings and their norm, where they are shared."""

    def embeddings(self, init: Initializer) -> None:
        """Makes the tables and their norm, or takes the other's."""
        c = self.config
        if self.tables is not None:
            self.token_embed, self.position_embed, self.type_embed, self.embed_norm = self.tables
        else:
            super().embeddings(nn.initializers.zeros if c.generator and c.sharing == "disentangled" else init)

    def heads(self) -> None:
        """Makes what comes after the layers, and the generator."""
        c, dtype = self.config, compute_dtype(self.config)
        if c.role == "generator":
            self.mlm_head = MaskedLMHead(c.vocab_size, c.head_activation, c.epsilon, INIT, dtype)
        else:
            self.replaced_head = ReplacedTokenHead(c.activation, INIT, dtype)
        if c.generator:
            tables = (self.token_embed, self.position_embed, self.type_embed, self.embed_norm)
            self.generator = Electra(c.of_generator(), tables if c.sharing == "shared" else None)

    def embed(self, tokens_BxL: jax.Array, token_types: jax.Array | None, positions: jax.Array | None) -> jax.Array:
        """The sum of the embeddings, before the norm: [B, L] → [B, L, table's width]."""
        x_BxLxD = super().embed(tokens_BxL, token_types, positions)
        if not self.config.generator or self.config.sharing == "shared":
            return x_BxLxD
        return x_BxLxD + jax.lax.stop_gradient(self.generator.embed(tokens_BxL, token_types, positions))

    def generator_states(self, tokens_BxL: jax.Array, **options: Any) -> jax.Array:
        """`encode` by the generator: [B, L] → [B, L, its width]."""
        return self.generator.encode(tokens_BxL, **options)

    def logits(self, x: jax.Array, padded: bool = False) -> jax.Array:
        """Scores of the vocabulary, of the generator's hidden states: see `Bert.logits`."""
        return self.generator.logits(x, padded) if self.config.generator else super().logits(x, padded)

    def replaced(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """The discriminator's scores, above 0 for "replaced": [..., D] → float32 [...]."""
        return self.replaced_head(x)

    def __call__(self, tokens_BxL: jax.Array) -> tuple[jax.Array, ...]:
        """Scores of the tokens [B, L], or of the vocabulary [B, L, V], or both: touches every parameter."""
        x_BxLxD = self.encode(tokens_BxL)
        if self.config.role == "generator":
            return (self.logits(x_BxLxD),)
        return self.replaced(x_BxLxD), *(self.generator(tokens_BxL) if self.config.generator else ())
