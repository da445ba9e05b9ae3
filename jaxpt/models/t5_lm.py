"""The T5 paper's decoder-only model: a causal LM, or a prefix LM with bidirectional attention in the prefix.

Paper: https://arxiv.org/abs/1910.10683 (section 3.2)

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

from typing import ClassVar, Literal

import flax.linen as nn
import jax

from jaxpt.models.base import UntiedHead, compute_dtype
from jaxpt.models.cache import Cache, NewCache, Step
from jaxpt.models.decoder import Decoder
from jaxpt.models.layers import Dropout, Embed, RMSNorm
from jaxpt.models.output import Output
from jaxpt.models.stack import Shared, Stack
from jaxpt.models.t5 import T5Config, T5Scores, bias_of, position_bias


class T5LMConfig(T5Config):
    """Configuration of a T5-style decoder."""

    family: ClassVar[str] = "decoder"
    text_layout: ClassVar[str] = "decoder"

    kind: Literal["t5_lm"] = "t5_lm"
    decoder_layers: None = None
    bias_per_layer: Literal[False] = False
    share_layers: Literal[False] = False
    pooling: Literal["last"] = "last"

    def build(self) -> T5LM:
        """Builds the model."""
        return T5LM(self)


class T5LM(T5Scores, Decoder):
    """A decoder of T5's blocks."""

    config: T5LMConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, nn.initializers.normal(1.0), dtype, c.tie_embeddings)
        # A prefix attends to later tokens, so buckets are bidirectional.
        self.decoder_bias = position_bias(c, bidirectional=True)
        self.decoder = Stack(c.segments("decoder"), c.remat, c.unroll)
        self.decoder_norm = RMSNorm(c.epsilon, dtype)
        self.drop = Dropout(c.dropout)
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, c.kernel_init(), dtype)

    def embed(self, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Input of the first layer: token embeddings alone."""
        return self.drop(self.token_embed(tokens_BxL))

    def shared(self, step: Step, prefix: jax.Array | None) -> Shared:
        """Mask and relative position bias."""
        mask = step.mask(prefix)
        return Shared(mask, bias_of(self.decoder_bias, mask, step.length))

    def final_norm(self, x_BxLxD: jax.Array) -> jax.Array:
        """Norm and dropout after the last layer."""
        return self.drop(self.decoder_norm(x_BxLxD))

    def decode(
        self,
        tokens_BxL: jax.Array,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        prefix: jax.Array | None = None,
        layers: bool = False,
        cache: Cache | NewCache | None = None,
    ) -> Output:
        """As `Decoder.decode`, without `branches` and without regard to `positions`.

        The bias counts distances in the row: a branch is not beside its context there, and packing changes no distance.
        """
        return super().decode(
            tokens_BxL, segment_ids=segment_ids, positions=positions, prefix=prefix, layers=layers, cache=cache
        )
