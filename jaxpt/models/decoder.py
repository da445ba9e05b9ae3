"""The base of causal decoders: what `decode` does for each of them.

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

import jax

from jaxpt.models.base import LanguageModel
from jaxpt.models.cache import Cache, NewCache, Step
from jaxpt.models.output import Output
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
        output = step.finish(self.decoder(x_BxLxD, self.shared(step, prefix), step.past, layers=layers))
        return output if self.final_norm is None else output.with_hidden(self.final_norm(output.hidden))
