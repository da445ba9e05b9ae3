"""ModernBERT: an encoder with rotary positions, gated feed-forward and mostly local attention.

Every third layer has global attention, the others a local window. Pre-norm, without a norm before the first attention.
Paper: https://arxiv.org/abs/2412.13663

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, Literal, Self

import flax.linen as nn
import jax
from pydantic import model_validator

from jaxpt.config import Fraction, HeadName, Layers, ModelConfig, PoolerOptions, PositiveFloat, Size, TaskHead
from jaxpt.models import adapters
from jaxpt.models.attention import AttentionBlock
from jaxpt.models.base import Encoder, compute_dtype
from jaxpt.models.cache import stored
from jaxpt.models.layers import Activation, Dropout, Embed, FeedForward, LayerNorm, constrain
from jaxpt.models.mask import Mask
from jaxpt.models.output import Output, Past
from jaxpt.models.positions import Rope, Rotation, positions_from
from jaxpt.models.stack import Segment, Shared, Stack

INIT = nn.initializers.truncated_normal(0.02)


class ModernBertConfig(ModelConfig):
    """Configuration of ModernBERT."""

    family: ClassVar[str] = "encoder"
    text_layout: ClassVar[str] = "bert"

    kind: Literal["modernbert"] = "modernbert"
    layers: Layers
    embed_dim: Size
    """Width of the hidden states; a multiple of `heads`."""
    heads: Size
    mlp_dim: Size
    """Hidden width of the gated feed-forward blocks."""
    max_positions: Size = 8192
    """Maximum sequence length."""
    global_every: Size = 3
    """Layers 0, n, 2n … have global attention."""
    window: Size = 128
    """The other layers attend to window / 2 tokens on each side."""
    global_theta: PositiveFloat = 160_000.0
    """Base of the rotary positions in global layers."""
    local_theta: PositiveFloat = 10_000.0
    """Base of the rotary positions in local layers."""
    activation: Activation = "gelu"
    head_activation: Activation = "gelu"
    """Activation of the heads' hidden layer."""
    pooling: Literal["first", "mean"] = "first"
    """The vector of a whole text: the first token's state, or the mean of all."""
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    """Bias of the head's hidden layer."""
    vocab_bias: bool = True
    """Bias of the vocabulary logits."""
    epsilon: PositiveFloat = 1e-5
    """ε of the norms."""
    dropout: Fraction = 0.0
    """Dropout rate on embeddings, attention weights and outputs, and the hidden activations of the feed-forward."""
    attention_output_dropout: Fraction | None = None
    """Dropout rate on the attention's outputs; that of `dropout` by default."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.embed_dim % self.heads or self.embed_dim // self.heads % 2:
            raise ValueError(f"heads: {self.heads} does not divide embed_dim {self.embed_dim} into heads of even width")
        return self

    @property
    def masked_lm_options(self) -> dict[str, Any]:
        """Options of the masked-LM head."""
        return {
            "width": self.embed_dim, "activation": self.head_activation, "epsilon": self.epsilon,
            "dense_bias": self.head_bias, "norm_bias": self.norm_bias, "use_bias": self.vocab_bias,
        }  # fmt: skip

    @property
    def local_window(self) -> int:
        """Local layers attend to tokens at a distance below this."""
        return self.window // 2 + 1

    def rotations(self, positions: jax.Array, segment_ids: jax.Array | None = None) -> dict[str, Rotation]:
        """The rotary positions of local and global layers, for positions [B, L] or [1, L] of texts with these ids."""
        thetas, width = {"global": self.global_theta, "local": self.local_theta}, self.embed_dim // self.heads
        return {kind: Rope(x).rotation(positions, width, segment_ids) for kind, x in thetas.items()}

    def segments(self) -> tuple[Segment, ...]:
        """The layers."""
        return tuple(
            Segment(tuple(functools.partial(Block, self, numbers[0]) for numbers in blocks), len(blocks[0]))
            for blocks in self.patterns()
        )

    def patterns(self) -> tuple[tuple[range, ...], ...]:
        """Layer numbers of each block of each segment: `patterns()[segment][block]`.

        Example: 7 layers, one in three global: (0, 1, 2) is a separate segment, because its first layer has no norm;
        then one repetition of (3, 4, 5), then (6).
        """
        n, step = self.layers, self.global_every
        first, whole = min(step, n), (n - min(step, n)) // step
        segments = [tuple(range(i, i + 1) for i in range(first))]
        if whole:
            end = first + whole * step
            segments.append(tuple(range(first + i, end, step) for i in range(step)))
        rest = range(first + whole * step, n)
        return (*segments, tuple(range(i, i + 1) for i in rest)) if rest else tuple(segments)

    def task_head(self, name: HeadName) -> TaskHead:
        """Every head has the hidden layer of the masked-LM head."""
        pooler = PoolerOptions(
            self.head_activation, use_bias=self.head_bias, epsilon=self.epsilon, norm_bias=self.norm_bias
        )
        return TaskHead("encoder", "each" if name in ("tags", "span") else self.pooling, pooler)

    def build(self) -> ModernBert:
        """Builds the model."""
        return ModernBert(self)


class Block(AttentionBlock):
    """Attention and feed-forward, each x ← x + f(LN(x)); without the norm in the first attention."""

    config: ModernBertConfig
    number: int
    """Number of the layer, or of the first repetition of this block."""

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, dtype = self.config, compute_dtype(self.config)
        local = bool(self.number % c.global_every)
        residual = nn.initializers.truncated_normal(0.02 / math.sqrt(2 * c.layers))
        output_dropout = c.dropout if c.attention_output_dropout is None else c.attention_output_dropout
        norm = functools.partial(LayerNorm, c.epsilon, dtype, c.norm_bias)
        attention = self.attention_class(
            c.heads, c.embed_dim // c.heads, dtype, INIT, residual, use_bias=c.attention_bias, dropout=c.dropout,
            implementation=c.attention, name="attention",
        )  # fmt: skip
        feed_forward = FeedForward(
            c.mlp_dim, c.activation, INIT, residual, dtype, gated=True, use_bias=c.mlp_bias, dropout=c.dropout,
            name="feed_forward",
        )  # fmt: skip

        mask = shared.mask.replace(window=c.local_window) if local else shared.mask
        y = x_BxLxD if self.number == 0 else norm(name="attention_norm")(x_BxLxD)
        rotation = shared.positional["local" if local else "global"]
        y, kv = attention(y, mask, positional=rotation, past=past.of("attention"))
        x_BxLxD += adapters.after(c, "attention")(Dropout(output_dropout)(y))
        y = feed_forward(norm(name="feed_forward_norm")(x_BxLxD))
        x_BxLxD += adapters.after(c, "feed_forward")(y)
        return Output(constrain(x_BxLxD, "act_embed"), cache=stored(attention=kv))


class ModernBert(Encoder):
    """The encoder."""

    config: ModernBertConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype)
        self.embed_norm = LayerNorm(c.epsilon, dtype, c.norm_bias)
        self.embed_dropout = Dropout(c.dropout)
        self.encoder = Stack(c.segments(), c.remat, c.unroll)
        self.final_norm = LayerNorm(c.epsilon, dtype, c.norm_bias)

    def embed(self, tokens_BxL: jax.Array) -> jax.Array:
        """Normalised token embeddings; positions come in the layers."""
        return self.embed_dropout(self.embed_norm(self.token_embed(tokens_BxL)))

    def encode(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        layers: bool = False,
    ) -> Output:
        """As `Encoder.encode`; `token_types` are ignored: the model has none."""
        positions = positions_from(tokens_BxL.shape[1]) if positions is None else positions
        shared = Shared(Mask(segment_ids, segment_ids), positional=self.config.rotations(positions, segment_ids))
        output = self.encoder(self.embed(tokens_BxL), shared, layers=layers)
        return output.with_hidden(self.final_norm(output.hidden))
