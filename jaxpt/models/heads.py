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
    Embed,
    Initializer,
    LayerNorm,
    SmallEmbed,
    constrain,
    param,
    stored_rows,
)

# Large enough to vanish in a softmax, small enough to be summed.
PADDED = -1e9


def finish_logits(logits: jax.Array, vocab_size: int, padded: bool) -> jax.Array:
    """Hides the columns that exist in storage alone.

    Args:
      logits: float32 [..., Vp].
      vocab_size: V.
      padded: leave these columns in place, as a large negative number, so that a sharded axis stays divisible.

    Returns:
      float32 [..., Vp] if `padded`, else [..., V].
    """
    logits = constrain(logits, "act_vocab")
    if logits.shape[-1] == vocab_size:
        return logits
    if not padded:
        return logits[..., :vocab_size]
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, PADDED)


class LanguageModel(nn.Module):
    """Base of models whose scores are x · Eᵀ with the token embeddings E, or x · W where both tables are apart.

    Its `setup` makes `token_embed`, and `head` where `tie_embeddings` is false.
    """

    config: ModelConfig

    def logits(self, x: jax.Array, padded: bool = False) -> jax.Array:
        """Scores of the next token.

        Args:
          x: hidden states [..., D].
          padded: keep the columns that exist in storage alone, as a large negative number.

        Returns:
          float32 [..., V], or [..., Vp] if `padded`.
        """
        scores = self.token_embed.project(x) if self.config.tie_embeddings else self.head(x)
        return finish_logits(scores, self.config.vocab_size, padded)


class MaskedLMHead(nn.Module):
    """BERT's: LN(f(x · W + b)) · Eᵀ + c, with the token embeddings E, whose width W gives.

    Paper: https://arxiv.org/abs/1810.04805
    """

    vocab_size: int
    activation: Activation
    epsilon: float
    kernel_init: Initializer
    dtype: DTypeLike
    dense_bias: bool = True
    """Whether there is b."""
    norm_bias: bool = True
    use_bias: bool = True
    """Whether there is c."""

    @nn.compact
    def __call__(self, x: jax.Array, embed: Embed) -> jax.Array:
        """[..., D] → float32 [..., Vp]."""
        dense = Dense(embed.width, ("embed", "norm"), self.kernel_init, self.dtype, self.dense_bias, name="dense")
        x = ACTIVATIONS[self.activation](dense(x))
        x = LayerNorm(self.epsilon, self.dtype, self.norm_bias, name="norm")(x)
        if not self.use_bias:
            return embed.project(x)
        bias = param(self, "bias", nn.initializers.zeros, (stored_rows(self.vocab_size),), ("vocab",))
        return embed.project(x) + bias


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

    def states(self, left: jax.Array, right: jax.Array, places: jax.Array) -> jax.Array:
        """[..., D], [..., D], int [...] from 0 → h [..., width]."""
        x = jnp.concatenate([left, right, self.position_embed(places)], axis=-1)
        for dense, norm in ((self.dense_1, self.norm_1), (self.dense_2, self.norm_2)):
            x = norm(ACTIVATIONS[self.activation](dense(x)))
        return x

    def scores(self, h: jax.Array, embed: Embed) -> jax.Array:
        """[..., width] → float32 [..., Vp]."""
        return embed.project(h) + self.bias


class UntiedHead(nn.Module):
    """x · W with its own W [D, Vp] (T5 1.1)."""

    vocab_size: int
    kernel_init: Initializer
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] → float32 [..., Vp]."""
        shape = (x.shape[-1], stored_rows(self.vocab_size))
        kernel = param(self, "kernel", self.kernel_init, shape, ("embed", "vocab")).astype(self.dtype)
        return jnp.einsum("...D,DV->...V", x.astype(self.dtype), kernel, preferred_element_type=jnp.float32)


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
