"""The T5 paper's decoder-only model: a causal LM, or a prefix LM with bidirectional attention in the prefix.

Paper: https://arxiv.org/abs/1910.10683 (section 3.2)

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

import flax.linen as nn
import jax

from jaxpt.models.base import UntiedHead, compute_dtype
from jaxpt.models.cache import Cache, NewCache, Step
from jaxpt.models.layers import Dropout, Embed, RMSNorm
from jaxpt.models.output import Output
from jaxpt.models.stack import Segment, Shared, Stack
from jaxpt.models.t5 import INIT, Block, T5Config, T5Scores, bias_of, position_bias


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


class T5LM(T5Scores):
    """A decoder of T5's blocks."""

    config: T5LMConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, nn.initializers.normal(1.0), dtype, c.tie_embeddings)
        # A prefix attends to later tokens, so buckets are bidirectional.
        self.decoder_bias = position_bias(c, bidirectional=True)
        self.decoder = Stack((Segment((functools.partial(Block, c),), c.layers),), c.remat, c.unroll)
        self.decoder_norm = RMSNorm(c.epsilon, dtype)
        self.drop = Dropout(c.dropout)
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, INIT, dtype)

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
        """Hidden states after the final norm; causal attention, bidirectional in the prefix.

        Args:
          tokens_BxL: token ids.
          segment_ids: [B, L], 0 on padding, packed sequences numbered from 1; one segment by default.
          positions: ignored: relative positions are the same in a packed row.
          prefix: bool [B, L], True at tokens visible to their whole segment; none by default.
          layers: also return the hidden states of all layers.
          cache: of earlier tokens, or `NewCache`: then the output has the cache for the next call. Positions continue,
            the prompt may be padded on the left (segment 0).

        Returns:
          Hidden states [B, L, D] in the compute dtype.
        """
        step = Step(cache, tokens_BxL, segment_ids, positions)
        mask = step.mask(prefix)
        shared = Shared(mask, bias_of(self.decoder_bias, mask, tokens_BxL.shape[1]))
        output = step.finish(self.decoder(self.drop(self.token_embed(tokens_BxL)), shared, step.past, layers=layers))
        return output.with_hidden(self.drop(self.decoder_norm(output.hidden)))
