"""A generator and a discriminator in one model, of any backbone that masked LM can train: replaced-token detection.

The generator, a smaller masked LM, fills masks; the discriminator tells its samples from the original tokens. They
share their embeddings, or the discriminator's are the generator's plus a difference of its own, Δ, which starts at 0:

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
from pydantic import Field

from jaxpt.config import ModelConfig, PositiveInt
from jaxpt.models.layers import Initializer
from jaxpt.models.output import Output, Projection

TABLES = ("token_embed/table", "position_embed/table", "type_embed/table")
Share = Annotated[float, Field(gt=0, le=1)]


class PairConfig(ModelConfig):
    """What a backbone's sizes gain; a backbone says in `of_generator` what its generator is."""

    generator: Share | None = None
    """Train a generator with the discriminator, of this share of its width (ELECTRA: 1/4 small, 1/3 base; four times as
    wide inside the feed-forward blocks; DeBERTa-v3: 1); none by default."""
    generator_layers: Share = 1.0
    """Its share of the layers (DeBERTa-v3: 1/2)."""
    generator_heads: PositiveInt | None = None
    """Its heads; by default one for each 64 of its width (ELECTRA), or as many as the discriminator has (DeBERTa)."""
    sharing: Literal["shared", "disentangled"] = "shared"
    """Embeddings (and their norm) of both in one, or the discriminator's as the generator's, whose gradient is stopped,
    plus a difference (DeBERTa-v3's gradient-disentangled sharing)."""

    @property
    def disentangled(self) -> bool:
        """Whether the tables hold a difference alone."""
        return self.generator is not None and self.sharing == "disentangled"

    def of_generator(self) -> Self:
        """The generator as a model of its own."""
        raise NotImplementedError

    def layers_of_generator(self, layers: int) -> int:
        """How many of the discriminator's layers it has."""
        return max(round(layers * self.generator_layers), 1)

    def export_view(self, paths: Iterable[str]) -> tuple[ModelConfig, dict[str, tuple[str, ...]]]:
        """The discriminator alone; its embeddings are summed up where they are disentangled."""
        kept = {path: (path,) for path in paths if not path.startswith("generator/")}
        if self.disentangled:
            kept |= {path: (path, f"generator/{path}") for path in TABLES if path in kept}
        none = {"generator": None, "generator_layers": 1.0, "generator_heads": None, "sharing": "shared"}
        return self.model_copy(update=none), kept


class Pair(nn.Module):
    """What a backbone's module gains: put before it among the bases.

    The backbone has the methods `embeddings` (makes token_embed, position_embed, type_embed and embed_norm), `heads`,
    `embed`, `encode`, `lm_states` and `output_projection`; after its own `heads` it calls `make_generator`, and it has
    a `replaced_head`.
    """

    tables: tuple[nn.Module | None, ...] | None = None
    """The other's token, position and type embeddings and their norm, where they are shared."""

    def embeddings(self, init: Initializer) -> None:
        """Makes the tables and their norm, or takes the other's."""
        if self.tables is not None:
            self.token_embed, self.position_embed, self.type_embed, self.embed_norm = self.tables
        else:
            super().embeddings(nn.initializers.zeros if self.config.disentangled else init)

    def make_generator(self) -> None:
        """Makes the generator of a pair."""
        c = self.config
        if c.generator:
            tables = (self.token_embed, self.position_embed, self.type_embed, self.embed_norm)
            self.generator = type(self)(c.of_generator(), tables=tables if c.sharing == "shared" else None)

    def embed(self, tokens_BxL: jax.Array, token_types: jax.Array | None, positions: jax.Array | None) -> jax.Array:
        """The sum of the embeddings, before the norm: [B, L] → [B, L, table's width]."""
        x_BxLxD = super().embed(tokens_BxL, token_types, positions)
        if not self.config.disentangled:
            return x_BxLxD
        return x_BxLxD + jax.lax.stop_gradient(self.generator.embed(tokens_BxL, token_types, positions))

    def generator_states(self, tokens_BxL: jax.Array, **options: Any) -> Output:
        """`encode` by the generator."""
        return self.generator.encode(tokens_BxL, **options)

    def lm_states(self, x: jax.Array) -> jax.Array:
        """The generator's hidden states, where there is one, through its head's layers."""
        return self.generator.lm_states(x) if self.config.generator else super().lm_states(x)

    def output_projection(self) -> Projection:
        """The generator's, where there is one."""
        return self.generator.output_projection() if self.config.generator else super().output_projection()

    def replaced(self, x_BxLxD: jax.Array) -> jax.Array:
        """The discriminator's scores, above 0 for "replaced": [B, L, D] → float32 [B, L]."""
        return self.replaced_head(x_BxLxD)
