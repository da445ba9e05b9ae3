"""The T5 paper's decoder without an encoder: a language model, or a prefix LM whose prefix is seen in both directions.

Paper: https://arxiv.org/abs/1910.10683 (section 3.2)

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

import flax.linen as nn
import jax

from jaxpt.models.base import compute_dtype
from jaxpt.models.layers import Dropout, Embed, RMSNorm
from jaxpt.models.lm import UntiedHead
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output
from jaxpt.models.stack import Segment, Shared, Stack
from jaxpt.models.t5 import INIT, Block, T5Config, T5Scores, position_bias


class T5LMConfig(T5Config):
    """Sizes of a decoder in T5's style."""

    family: ClassVar[str] = "decoder"

    kind: Literal["t5_lm"] = "t5_lm"
    decoder_layers: None = None
    bias_per_layer: Literal[False] = False
    share_layers: Literal[False] = False

    def build(self) -> T5LM:
        """The model of these sizes."""
        return T5LM(self)


class T5LM(T5Scores):
    """A decoder of T5's blocks."""

    config: T5LMConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, nn.initializers.normal(1.0), dtype)
        # With a prefix there are distances to tokens that come later.
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
    ) -> Output:
        """Hidden states after the final norm; each position sees itself, those before it, and the prefix.

        Args:
          tokens_BxL: token ids.
          segment_ids: [B, L], 0 on padding, counting from 1 over packed sequences; one segment by default.
          positions: not needed: distances inside a segment are those inside the row.
          prefix: bool [B, L], True at tokens that all of their segment may see; none by default.
          layers: give the hidden states of all layers too.

        Returns:
          Hidden states [B, L, D] in the compute dtype.
        """
        length = tokens_BxL.shape[1]
        mask = Mask(segment_ids, segment_ids, prefix_BxS=prefix, causal=True)
        shared = Shared(mask, self.decoder_bias(length, length))
        output = self.decoder(self.drop(self.token_embed(tokens_BxL)), shared, layers=layers)
        return output.ending(self.drop(self.decoder_norm(output.hidden)))

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        """Next-token scores [B, L, V]: touches every parameter."""
        return self.logits(self.decode(tokens_BxL).hidden)
