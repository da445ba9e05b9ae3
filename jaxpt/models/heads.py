"""What turns hidden states into scores: of the vocabulary, or of a few classes.

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.models.layers import (
    ACTIVATIONS,
    Activation,
    Dense,
    Initializer,
    LayerNorm,
    SmallEmbed,
    param,
    stored_rows,
)
from jaxpt.models.output import Projection


class LanguageModel(nn.Module):
    """Base of models that score the vocabulary: by x · Eᵀ with the token embeddings E, or x · W with a table apart.

    Its `setup` makes `token_embed`, and `head` where there is W. A model that has more after its layers says so in
    `lm_states` and `output_projection`.
    """

    config: ModelConfig

    def lm_states(self, x: jax.Array) -> jax.Array:
        """What `output_projection` is applied to: hidden states [..., D], through the head's layers if it has any."""
        return x

    def output_projection(self) -> Projection:
        """From `lm_states` to scores: what losses take, to make the scores of a few positions at a time."""
        if getattr(self, "head", None) is not None:
            return self.head.projection()
        embed = self.token_embed
        return Projection(embed.table, vocab_size=self.config.vocab_size, tied=True, dtype=embed.dtype)

    def logits(self, x: jax.Array, padded: bool = False) -> jax.Array:
        """Scores of the vocabulary.

        Args:
          x: hidden states [..., D], of all positions or a few.
          padded: keep the columns that exist in storage alone, as a large negative number.

        Returns:
          float32 [..., V], or [..., Vp] if `padded`.
        """
        return self.output_projection()(self.lm_states(x), padded)


class MaskedLMHead(nn.Module):
    """BERT's: LN(f(x · W + b)) · Eᵀ + c, with the token embeddings E, whose width W gives.

    Paper: https://arxiv.org/abs/1810.04805
    """

    vocab_size: int
    width: int
    """Of the token embeddings."""
    activation: Activation
    epsilon: float
    kernel_init: Initializer
    dtype: DTypeLike
    dense_bias: bool = True
    """Whether there is b."""
    norm_bias: bool = True
    use_bias: bool = True
    """Whether there is c."""

    def setup(self) -> None:
        self.dense = Dense(self.width, ("embed", "norm"), self.kernel_init, self.dtype, self.dense_bias)
        self.norm = LayerNorm(self.epsilon, self.dtype, self.norm_bias)
        rows = (stored_rows(self.vocab_size),)
        self.bias = param(self, "bias", nn.initializers.zeros, rows, ("vocab",)) if self.use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """What Eᵀ is multiplied with: [..., D] → [..., width]."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(x)))


class SpanBoundaryHead(nn.Module):
    """SpanBERT's: a token of a span from the states beside the span and its place in it.

        h = LN(f(LN(f([x_{s−1}; x_{e+1}; p_i] · W₁ + b₁)) · W₂ + b₂)),   scores = h · Eᵀ + c

    with the token embeddings E, whose width W₂ gives. Paper: https://arxiv.org/abs/1907.10529
    """

    rows: int
    """Places in a span that have an embedding p."""
    position_dim: int
    vocab_size: int
    width: int
    """Of the token embeddings."""
    activation: Activation
    epsilon: float
    kernel_init: Initializer
    dtype: DTypeLike

    def setup(self) -> None:
        self.position_embed = SmallEmbed(self.rows, self.position_dim, self.kernel_init, self.dtype)
        self.dense_1, self.dense_2 = (
            Dense(self.width, ("embed", "norm"), self.kernel_init, self.dtype) for _ in range(2)
        )
        self.norm_1, self.norm_2 = (LayerNorm(self.epsilon, self.dtype) for _ in range(2))
        self.bias = param(self, "bias", nn.initializers.zeros, (stored_rows(self.vocab_size),), ("vocab",))

    def __call__(self, left: jax.Array, right: jax.Array, places: jax.Array) -> jax.Array:
        """What Eᵀ is multiplied with: [..., D], [..., D], int [...] from 0 → h [..., width]."""
        x = jnp.concatenate([left, right, self.position_embed(places)], axis=-1)
        for dense, norm in ((self.dense_1, self.norm_1), (self.dense_2, self.norm_2)):
            x = norm(ACTIVATIONS[self.activation](dense(x)))
        return x


class UntiedHead(nn.Module):
    """x · W with its own W [D, Vp] (T5 1.1)."""

    vocab_size: int
    width: int
    """D."""
    kernel_init: Initializer
    dtype: DTypeLike

    def setup(self) -> None:
        shape = (self.width, stored_rows(self.vocab_size))
        self.kernel = param(self, "kernel", self.kernel_init, shape, ("embed", "vocab"))

    def projection(self) -> Projection:
        """x · W."""
        return Projection(self.kernel, vocab_size=self.vocab_size, dtype=self.dtype)


class Pooler(nn.Module):
    """tanh(x₀ · W + b): the first token's state, for tasks on the whole sequence (BERT)."""

    kernel_init: Initializer
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        """[B, L, D] → [B, D]."""
        width = x_BxLxD.shape[-1]
        return jnp.tanh(Dense(width, ("embed", "norm"), self.kernel_init, self.dtype, name="dense")(x_BxLxD[:, 0]))


class Classifier(nn.Module):
    """x · W + b over a few classes, in float32."""

    classes: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x_BxD: jax.Array) -> jax.Array:
        """[B, D] → float32 [B, classes]."""
        return Dense(self.classes, ("embed", "classes"), self.kernel_init, jnp.float32, name="dense")(x_BxD)


class ReplacedTokenHead(nn.Module):
    """f(x · W + b) · w + c: one score a token, high where it was replaced (ELECTRA).

    Paper: https://arxiv.org/abs/2003.10555
    """

    activation: Activation
    kernel_init: Initializer
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] → float32 [...]."""
        x = Dense(x.shape[-1], ("embed", "norm"), self.kernel_init, self.dtype, name="dense")(x)
        x = ACTIVATIONS[self.activation](x)
        return Dense(1, ("embed", "classes"), self.kernel_init, jnp.float32, name="score")(x)[..., 0]
