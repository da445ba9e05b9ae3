"""The bases of causal decoders and of encoder-decoders: what `encode` and `decode` do for each of them.

Shapes: B batch · L length · S encoder length · T decoder length · D embedding width
"""

from __future__ import annotations

import jax

from jaxpt.models import moe
from jaxpt.models.base import LanguageModel
from jaxpt.models.cache import Cache, NewCache, Step
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output
from jaxpt.models.positions import LearnedBias
from jaxpt.models.stack import Shared


class Decoder(LanguageModel):
    """A causal decoder; `setup` creates `token_embed`, the stack `decoder` and `final_norm`, which may be None."""

    def embed(self, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Input of the first layer: [B, L] → [B, L, D]; positions are 0 … L-1 by default."""
        return self.token_embed(tokens_BxL)

    def shared(self, step: Step, prefix: jax.Array | None) -> Shared:
        """Inputs common to all layers."""
        return Shared(step.mask(prefix))

    def decode(
        self,
        tokens_BxL: jax.Array,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        prefix: jax.Array | None = None,
        branches: jax.Array | None = None,
        layers: bool = False,
        cache: Cache | NewCache | None = None,
    ) -> Output:
        """Hidden states after the final norm; causal attention, bidirectional in the prefix.

        Args:
          tokens_BxL: token ids.
          segment_ids: [B, L], 0 on padding, packed sequences numbered from 1; one segment by default.
          positions: [B, L], 0 … L-1 by default.
          prefix: bool [B, L], True at tokens visible to their whole segment; none by default.
          branches: [B, L], branch of each token in its segment: tokens of branch 0 are visible to the whole segment,
            those of another branch only to itself (continuations of one context); not with a cache.
          layers: also return the hidden states of all layers.
          cache: of earlier tokens, or `NewCache`: then the output has the cache for the next call. Positions continue,
            the prompt may be padded on the left (segment 0).

        Returns:
          Hidden states [B, L, D] in the compute dtype.
        """
        step = Step(cache, tokens_BxL, segment_ids, positions, branches=branches)
        x_BxLxD = self.embed(tokens_BxL, step.positions)
        output = self.decoder(x_BxLxD, self.shared(step, prefix), step.past, layers=layers)
        output = moe.finish(self.config, step.finish(output))
        return output if self.final_norm is None else output.with_hidden(self.final_norm(output.hidden))


class EncoderDecoder(LanguageModel):
    """An encoder and a causal decoder; `setup` creates `token_embed` and the stacks `encoder` and `decoder`.

    Methods have the name of a stack as an argument, "encoder" or "decoder".
    """

    def embed(self, stack: str, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Input of the stack's first layer: [B, L] → [B, L, D]; positions are 0 … L-1 by default."""
        return self.token_embed(tokens_BxL)

    def bias(self, stack: str, mask: Mask, length: int) -> LearnedBias | jax.Array | None:
        """Bias of the stack's self-attention; none by default."""
        return None

    def finish(self, stack: str, hidden_BxLxD: jax.Array) -> jax.Array:
        """The last layer's hidden states after the stack's final norm, if any."""
        return hidden_BxLxD

    def encode(
        self,
        tokens_BxS: jax.Array,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        layers: bool = False,
    ) -> Output:
        """Hidden states [B, S, D] of the encoder; arguments as of `base.Encoder.encode`."""
        x_BxSxD, mask = self.embed("encoder", tokens_BxS, positions), Mask(segment_ids, segment_ids)
        shared = Shared(mask, self.bias("encoder", mask, tokens_BxS.shape[1]))
        output = self.encoder(x_BxSxD, shared, layers=layers)
        return moe.finish(self.config, output, "encoder_").with_hidden(self.finish("encoder", output.hidden))

    def decode(
        self,
        tokens_BxT: jax.Array,
        encoded_BxSxD: jax.Array | None,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        encoder_segment_ids: jax.Array | None = None,
        branches: jax.Array | None = None,
        layers: bool = False,
        cache: Cache | NewCache | None = None,
    ) -> Output:
        """Hidden states of the decoder after the final norm; causal, with cross-attention to `encoded`.

        Args:
          tokens_BxT: token ids, the targets shifted right by one.
          encoded_BxSxD: hidden states from `encode`; None if the cache has its keys and values.
          segment_ids: [B, T], 0 on padding, packed sequences numbered from 1; one segment by default.
          positions: [B, T], 0 … T-1 by default.
          encoder_segment_ids: [B, S], the encoder's; cross-attention stays within a segment.
          branches: [B, T], branch of each token in its segment: tokens of branch 0 are visible to the whole segment,
            those of another branch only to itself (several targets of one input); not with a cache.
          layers: also return the hidden states of all layers.
          cache: of earlier tokens, or `NewCache`: then the output has the cache for the next call. Positions continue,
            the tokens may be padded on the left (segment 0).

        Returns:
          Hidden states [B, T, D] in the compute dtype.
        """
        step = Step(cache, tokens_BxT, segment_ids, positions, encoder_segment_ids, branches)
        mask, memory_mask = step.mask(), step.memory_mask()
        shared = Shared(mask, self.bias("decoder", mask, step.length), encoded_BxSxD, memory_mask)
        x_BxTxD = self.embed("decoder", tokens_BxT, step.positions)
        output = step.finish(self.decoder(x_BxTxD, shared, step.past, layers=layers))
        return moe.finish(self.config, output, "decoder_").with_hidden(self.finish("decoder", output.hidden))
