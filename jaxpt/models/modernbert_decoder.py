"""ModernBERT's decoder: its blocks with causal attention, and the masked-LM head's layers before the logits.

Paper (Ettin): https://arxiv.org/abs/2507.11412

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

from typing import ClassVar, Literal

import jax

from jaxpt.config import HeadName, PoolerOptions, TaskHead
from jaxpt.models.base import compute_dtype
from jaxpt.models.cache import Step
from jaxpt.models.decoder import Decoder
from jaxpt.models.heads.masked_lm import MaskedLMHead
from jaxpt.models.layers import Dropout, Embed, LayerNorm
from jaxpt.models.modernbert import INIT, ModernBertConfig
from jaxpt.models.output import Projection
from jaxpt.models.positions import positions_from
from jaxpt.models.stack import Shared, Stack


class ModernBertDecoderConfig(ModernBertConfig):
    """Configuration of ModernBERT's decoder."""

    family: ClassVar[str] = "decoder"
    text_layout: ClassVar[str] = "decoder"

    kind: Literal["modernbert_decoder"] = "modernbert_decoder"
    pooling: Literal["last"] = "last"
    """The vector of a whole text: its last token's state."""

    @property
    def local_window(self) -> int:
        """Local layers attend to window / 2 tokens, the token itself included."""
        return self.window // 2

    @property
    def counts_in_row(self) -> bool:
        """Local layers have a window."""
        return True

    def task_head(self, name: HeadName) -> TaskHead:
        """Heads of whole texts have the hidden layer of the masked-LM head."""
        if name in ("tags", "span"):
            return TaskHead("decoder", "each")
        pooler = PoolerOptions(
            self.head_activation, use_bias=self.head_bias, epsilon=self.epsilon, norm_bias=self.norm_bias
        )
        return TaskHead("decoder", "last", pooler, use_bias=self.head_bias)

    def build(self) -> ModernBertDecoder:
        """Builds the model."""
        return ModernBertDecoder(self)


class ModernBertDecoder(Decoder):
    """The decoder."""

    config: ModernBertDecoderConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype)
        self.embed_norm = LayerNorm(c.epsilon, dtype, c.norm_bias)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack(c.segments(), c.remat, c.unroll)
        self.final_norm = LayerNorm(c.epsilon, dtype, c.norm_bias)
        self.lm_head = MaskedLMHead(c.vocab_size, dtype=dtype, **c.masked_lm_options)

    def embed(self, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Token embeddings after their norm."""
        return self.embed_dropout(self.embed_norm(self.token_embed(tokens_BxL)))

    def shared(self, step: Step, prefix: jax.Array | None) -> Shared:
        """The mask, and the rotary positions of local and global layers."""
        positions = positions_from(step.length) if step.positions is None else step.positions
        return Shared(step.mask(prefix), positional=self.config.rotations(positions))

    def lm_states(self, x: jax.Array) -> jax.Array:
        """Hidden states after the layers before the projection."""
        return self.lm_head(x)

    def output_projection(self) -> Projection:
        """The projection from `lm_states` to logits."""
        return self.lm_head.projection(super().output_projection())
