"""EuroBERT: a bidirectional encoder whose blocks are Llama's. Paper: https://arxiv.org/abs/2503.05500

Shapes: B batch · L length · D embedding width
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import jax
from pydantic import model_validator

from jaxpt.config import HeadName, PoolerOptions, Size, TaskHead
from jaxpt.models.base import compute_dtype
from jaxpt.models.decoder_only import INIT, DecoderOnlyConfig, norm_of
from jaxpt.models.layers import Embed
from jaxpt.models.modernbert import ModernBert
from jaxpt.models.stack import Stack


class EuroBertConfig(DecoderOnlyConfig):
    """Configuration of EuroBERT. It has all keys of `decoder_only`; a window extends to both sides."""

    family: ClassVar[str] = "encoder"
    text_layout: ClassVar[str] = "bert"

    kind: Literal["eurobert"] = "eurobert"
    max_positions: Size = 8192
    """Maximum sequence length."""
    pooling: Literal["late", "first", "mean"] = "late"
    """How a text becomes one vector. `late`: a hidden layer is applied to each token, then the mean is taken. `first`:
    it is applied to the first token. `mean`: it is applied to the mean of all tokens."""

    @model_validator(mode="after")
    def _check_encoder(self) -> Self:
        for name in ("positions", "embed_norm", "scale_embeddings", "logit_cap", "experts"):
            if getattr(self, name) != (default := type(self).model_fields[name].default):
                raise ValueError(f"{name}: eurobert has {default} alone; leave it out")
        return self

    @property
    def masked_lm_options(self) -> dict[str, Any]:
        """Options of the masked-LM head, which is a projection alone. It has a bias if the feed-forward has one."""
        return super().masked_lm_options | {
            "has_transform": False, "is_tied": self.tie_embeddings, "use_bias": self.mlp_bias
        }  # fmt: skip

    def task_head(self, name: HeadName) -> TaskHead:
        """Heads of whole texts have a hidden layer."""
        if name in ("tags", "span"):
            return TaskHead("encoder", "each", drops_out=False)
        return TaskHead("encoder", self.pooling, PoolerOptions("gelu"), drops_out=False)

    def build(self) -> EuroBert:
        """Builds the model."""
        return EuroBert(self)


class EuroBert(ModernBert):
    """ModernBERT's encoder with Llama's blocks and without a norm of the embeddings."""

    config: EuroBertConfig

    def setup(self) -> None:
        c = self.config
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, compute_dtype(c), c.tie_embeddings)
        self.encoder = Stack(c.segments(), c.remat, c.unroll)
        self.final_norm = norm_of(c)()

    def embed(self, tokens_BxL: jax.Array) -> jax.Array:
        """Token embeddings."""
        return self.token_embed(tokens_BxL)
