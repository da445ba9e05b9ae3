"""T5: an encoder-decoder with relative position biases, RMSNorm as pre-norm and no other biases.

Version 1.0 has ReLU and tied embeddings; version 1.1 has gated GELU and an untied output projection. With `experts` it
is a Switch Transformer. Papers: https://arxiv.org/abs/1910.10683, version 1.1 https://arxiv.org/abs/2002.05202, Switch
https://arxiv.org/abs/2101.03961

Shapes: B batch · S encoder length · T decoder length · D embedding width · H heads · V vocabulary (Vp: rows in storage)
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, Literal, Self

import flax.linen as nn
import jax
from pydantic import model_validator

from jaxpt.config import Fraction, HeadName, Layers, PositiveFloat, Size, TaskHead
from jaxpt.models import adapters
from jaxpt.models.attention import Attention
from jaxpt.models.base import LanguageModel, UntiedHead, compute_dtype
from jaxpt.models.cache import stored
from jaxpt.models.decoder import EncoderDecoder
from jaxpt.models.layers import Activation, Dropout, Embed, FeedForward, Initializer, RMSNorm, constrain
from jaxpt.models.mask import Mask
from jaxpt.models.moe import MixtureConfig, MoE, feed
from jaxpt.models.output import Output, Past, Projection
from jaxpt.models.positions import LearnedBias, RelativeBias
from jaxpt.models.stack import Segment, Shared, Stack, repeated

ACTIVATION: dict[str, Activation] = {"relu": "relu", "gated_gelu": "gelu_tanh", "gated_silu": "silu"}


class T5Config(MixtureConfig):
    """Configuration of T5."""

    family: ClassVar[str] = "encoder_decoder"
    text_layout: ClassVar[str] = "t5"

    kind: Literal["t5"] = "t5"
    layers: Layers
    """Layers of the encoder, and of the decoder unless `decoder_layers` is set."""
    decoder_layers: Layers | None = None
    embed_dim: Size
    heads: Size
    head_dim: Size = 64
    """Width of a head; heads · head_dim may differ from embed_dim."""
    mlp_dim: Size
    """Hidden width of the feed-forward blocks."""
    feed_forward: Literal["relu", "gated_gelu", "gated_silu"] = "gated_gelu"
    """`relu` is version 1.0, `gated_gelu` version 1.1, `gated_silu` UL2."""
    tie_embeddings: bool = False
    """Use the token embeddings as the output projection (version 1.0)."""
    scale_logits: bool | None = None
    """Scale the input of the output projection by 1/√D; by default if it is tied."""
    share_layers: bool = False
    """Share the layers of encoder and decoder, except cross-attention."""
    bias_per_layer: bool = False
    """Each layer has a separate position bias (UMT5); false: all layers of a stack share one."""
    epsilon: PositiveFloat = 1e-6
    """ε of the norms."""
    init_scale: PositiveFloat = 1.0
    """Factor of the variance of all first weights but the embeddings' and the routers' (Switch: 0.1)."""
    buckets: Size = 32
    """Number of buckets of the position bias, 4 or more."""
    max_distance: Size = 128
    """Distance in tokens, above the number of exact buckets (half of a decoder's); larger distances share the last
    bucket."""
    dropout: Fraction = 0.0
    """Dropout rate on embeddings, attention weights, hidden activations of the feed-forward and block outputs."""
    pooling: Literal["last", "mean"] = "last"
    """The vector of a whole text: the decoder's state at its last token, which reads the text a second time, or the
    mean of the encoder's states (Sentence-T5, https://arxiv.org/abs/2108.08877)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.share_layers and (self.bias_per_layer or self.decoder_layers not in (None, self.layers)):
            raise ValueError("share_layers: requires bias_per_layer: false and decoder_layers equal to layers")
        if self.share_layers and self.experts is not None:
            raise ValueError("share_layers: goes with no experts")
        if self.buckets < 4:
            raise ValueError(f"buckets: {self.buckets} are too few; set 4 or more")
        return self

    def idle_settings(self) -> tuple[str, ...]:
        exact = self.buckets // (4 if self.family == "decoder" else 2)
        if self.max_distance > exact:
            return super().idle_settings()
        line = f"model.max_distance: {self.max_distance} is not above {exact}, the number of exact buckets; raise it"
        return (*super().idle_settings(), line)

    def numbers(self, stack: str) -> tuple[tuple[range, ...], ...]:
        """Layer numbers of each block of each segment of a stack."""
        count = self.layers if stack == "encoder" else self.decoder_layers or self.layers
        return repeated([self.is_sparse(i) for i in range(count)], self.sparse_period)

    def segments(self, side: str) -> tuple[Segment, ...]:
        """The layers of the encoder or decoder."""
        return tuple(
            Segment(tuple(functools.partial(Block, self, self.is_sparse(at[0])) for at in blocks), len(blocks[0]))
            for blocks in self.numbers(side)
        )

    def kernel_init(self, factor: float = 1.0) -> Initializer:
        """Draws a matrix of n rows with the variance factor · `init_scale` / n."""
        return nn.initializers.variance_scaling(factor * self.init_scale, "fan_in", "normal")

    @property
    def scaled(self) -> bool:
        """True if the input of the output projection is scaled."""
        return self.tie_embeddings if self.scale_logits is None else self.scale_logits

    def task_head(self, name: HeadName) -> TaskHead:
        """As BART; tags from the encoder's states, and with `pooling: mean` whole texts too."""
        head = super().task_head(name)
        if self.family == "decoder":
            return head
        if name in ("classes", "choice") and self.pooling == "mean":
            return dataclasses.replace(head, stack="encoder", position="mean")
        return dataclasses.replace(head, stack="encoder") if name == "tags" else head

    def build(self) -> T5:
        """Builds the model."""
        return T5(self)


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, and feed-forward, each x ← x + f(RMSNorm(x))."""

    config: T5Config
    is_sparse: bool = False
    """The feed-forward is a mixture of experts (Switch Transformers)."""

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, dtype = self.config, compute_dtype(self.config)
        drop = Dropout(c.dropout)

        def norm(name: str, x: jax.Array) -> jax.Array:
            return RMSNorm(c.epsilon, dtype, name=f"{name}_norm")(x)

        # Scores are not divided by √head_dim: the query initialiser is scaled instead.
        init, query_init = c.kernel_init(), c.kernel_init(1.0 / c.head_dim)
        attention = functools.partial(
            Attention, c.heads, c.head_dim, dtype, init, init, query_init, use_bias=False, scale=1.0,
            dropout=c.dropout, implementation=c.attention,
        )  # fmt: skip
        options = {"gated": c.feed_forward != "relu", "dropout": c.dropout, "name": "feed_forward"}
        parts = ACTIVATION[c.feed_forward], init, init, dtype
        dense = functools.partial(FeedForward, c.mlp_dim, use_bias=False)
        feed_forward = (functools.partial(MoE, c) if self.is_sparse else dense)(*parts, **options)

        bias_HxLxS, cross_kv = shared.bias_HxLxS, None
        if c.bias_per_layer:
            bias = position_bias(c, bidirectional=shared.memory_mask is None, name="position_bias")
            bias_HxLxS = bias_of(bias, shared.mask, x_BxLxD.shape[1])
        y, kv = attention(name="attention")(
            norm("attention", x_BxLxD), shared.mask, bias_HxLxS=bias_HxLxS, past=past.of("attention")
        )
        x_BxLxD += adapters.after(c, "attention")(drop(y))
        if shared.memory_mask is not None:
            y, cross_kv = attention(name="cross_attention")(
                norm("cross_attention", x_BxLxD), shared.memory_mask,
                memory_BxSxD=shared.memory_BxSxD, past=past.of("cross_attention"),
            )  # fmt: skip
            x_BxLxD += adapters.after(c, "cross_attention")(drop(y))
        y, routing = feed(feed_forward, norm("feed_forward", x_BxLxD), past, shared)
        x_BxLxD += adapters.after(c, "feed_forward")(drop(y))
        cache = stored(attention=kv, cross_attention=cross_kv)
        return Output(constrain(x_BxLxD, "act_embed"), cache=cache, routing=routing)


def position_bias(config: T5Config, bidirectional: bool, name: str | None = None) -> RelativeBias:
    """The module of the relative position bias [H, L, S]."""
    init = nn.initializers.variance_scaling(config.init_scale, "fan_avg", "uniform")
    return RelativeBias(
        config.heads, bidirectional, init, buckets=config.buckets, max_distance=config.max_distance, name=name
    )


def bias_of(bias: RelativeBias, mask: Mask, length: int) -> LearnedBias | jax.Array:
    """The position bias of `length` queries, whose keys are those of `mask`; as an array [H, L, S] with a cache."""
    if mask.key_index_S is None:
        return bias()
    return bias().materialise(length, len(mask.key_index_S), mask.offset, mask.key_index_S)


class T5Scores(LanguageModel):
    """What T5's models have in common: it divides by √D before tied embeddings, which have unit variance."""

    config: T5Config

    def output_projection(self) -> Projection:
        """As `LanguageModel.output_projection`, scaled."""
        projection = super().output_projection()
        return projection.replace(scale=self.config.embed_dim**-0.5) if self.config.scaled else projection


class T5(T5Scores, EncoderDecoder):
    """T5, versions 1.0 and 1.1; mT5 and UMT5."""

    config: T5Config

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, nn.initializers.normal(1.0), dtype, c.tie_embeddings)
        self.encoder_bias = None if c.bias_per_layer else position_bias(c, bidirectional=True)
        self.decoder_bias = None if c.bias_per_layer else position_bias(c, bidirectional=False)
        self.encoder = Stack(c.segments("encoder"), c.remat, c.unroll)
        decoder = Stack(c.segments("decoder"), c.remat, c.unroll)
        self.decoder = self.encoder if c.share_layers else decoder
        self.encoder_norm, self.decoder_norm = RMSNorm(c.epsilon, dtype), RMSNorm(c.epsilon, dtype)
        self.encoder_drop, self.decoder_drop = Dropout(c.dropout), Dropout(c.dropout)
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, c.kernel_init(), dtype)

    def embed(self, stack: str, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """The token embeddings; relative positions are the same in a packed row."""
        return getattr(self, f"{stack}_drop")(self.token_embed(tokens_BxL))

    def bias(self, stack: str, mask: Mask, length: int) -> LearnedBias | jax.Array | None:
        """The position bias that all layers of the stack share."""
        bias = getattr(self, f"{stack}_bias")
        return None if bias is None else bias_of(bias, mask, length)

    def finish(self, stack: str, hidden_BxLxD: jax.Array) -> jax.Array:
        """The final norm, and dropout."""
        return getattr(self, f"{stack}_drop")(getattr(self, f"{stack}_norm")(hidden_BxLxD))
