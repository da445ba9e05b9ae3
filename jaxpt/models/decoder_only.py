"""The decoder of Llama, Mistral, Qwen, OLMo, SmolLM, Gemma, Phi, StableLM, GPT-NeoX, BLOOM, Falcon and XGLM.

Without options it is Llama: RMSNorm before each part of a block, rotary positions, gated feed-forward, no biases. A
configuration says what differs. Papers: https://arxiv.org/abs/2302.13971 (Llama), https://arxiv.org/abs/2310.06825
(Mistral), https://arxiv.org/abs/2505.09388 (Qwen 3), https://arxiv.org/abs/2501.00656 (OLMo 2),
https://arxiv.org/abs/2408.00118 (Gemma 2), https://arxiv.org/abs/2204.06745 (GPT-NeoX)

Shapes: B batch · L length · D embedding width · K head width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import ClassVar, Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from pydantic import model_validator

from jaxpt.config import Fraction, Layers, PositiveFloat, Size
from jaxpt.models import adapters
from jaxpt.models.attention import Attention, AttentionBlock
from jaxpt.models.base import UntiedHead, check_heads, compute_dtype
from jaxpt.models.cache import Step, stored
from jaxpt.models.decoder import Decoder
from jaxpt.models.layers import Activation, Dropout, Embed, FeedForward, HeadsRMSNorm, LayerNorm, RMSNorm, constrain
from jaxpt.models.mask import Mask
from jaxpt.models.moe import MixtureConfig, MoE, feed
from jaxpt.models.output import Output, Past, Projection
from jaxpt.models.position_terms import Alibi, alibi_of_keys
from jaxpt.models.positions import Rope, Rotation, positions_from, sinusoids_in_halves
from jaxpt.models.stack import Segment, Shared, Stack, repeated

INIT = nn.initializers.normal(0.02)
FIRST_SINUSOID = 2
"""Of position 0 (XGLM)."""
LayerKind = Literal["main", "other"]
SCALED_BY = {
    "rope_low_frequency": ("llama3",), "rope_high_frequency": ("llama3",),
    "rope_original_positions": ("llama3", "yarn", "longrope"), "rope_slow_turns": ("yarn",),
    "rope_fast_turns": ("yarn",), "rope_whole_pairs": ("yarn",), "rope_short_factors": ("longrope",),
    "rope_long_factors": ("longrope",), "rope_amplitude": ("yarn", "longrope"),
}  # fmt: skip
"""{field: kinds of `rope_scaling` that read it}."""


class DecoderOnlyConfig(MixtureConfig):
    """Configuration of a decoder; the defaults are Llama's."""

    family: ClassVar[str] = "decoder"
    text_layout: ClassVar[str] = "decoder"

    kind: Literal["decoder_only"] = "decoder_only"
    layers: Layers
    embed_dim: Size
    heads: Size
    """Number of query heads."""
    kv_heads: Size | None = None
    """Number of key and value heads, a divisor of `heads`; default `heads`, 1 is multi-query attention."""
    head_dim: Size | None = None
    """Width of a head; embed_dim / heads by default."""
    mlp_dim: Size
    """Hidden width of the feed-forward blocks."""
    max_positions: Size = 2048
    """Maximum sequence length."""
    window: Size | None = None
    """Sliding window: each token attends to itself and window − 1 earlier tokens; None: to all earlier tokens."""
    positions: Literal["rotary", "alibi", "alibi_bfloat16", "sinusoids"] = "rotary"
    """Rotary positions, ALiBi, ALiBi as Falcon rounds it, or sines and cosines that are added to the embeddings."""
    rope_theta: PositiveFloat = 10_000.0
    """θ: pair i of a head's coordinates is rotated by θ^(−2i/K) per position."""
    rope_scaling: Literal["none", "linear", "llama3", "yarn", "longrope"] = "none"
    """`linear` divides all frequencies by `rope_factor`, `llama3` and `yarn` only low frequencies, `longrope` each by
    its own factor."""
    rope_factor: PositiveFloat = 1.0
    rope_low_frequency: PositiveFloat = 1.0
    """llama3: pairs with fewer rotations over `rope_original_positions` are scaled by the full factor."""
    rope_high_frequency: PositiveFloat = 4.0
    """llama3: pairs with more rotations are not scaled."""
    rope_original_positions: Size = 8192
    rope_slow_turns: PositiveFloat = 1.0
    """yarn: pairs with fewer rotations over `rope_original_positions` are scaled by the full factor."""
    rope_fast_turns: PositiveFloat = 32.0
    """yarn: pairs with more rotations are not scaled."""
    rope_whole_pairs: bool = True
    """yarn: the range between the two is rounded to whole pairs."""
    rope_short_factors: tuple[PositiveFloat, ...] = ()
    """longrope: divisor of each frequency in a text of up to `rope_original_positions` tokens."""
    rope_long_factors: tuple[PositiveFloat, ...] = ()
    """longrope: divisor of each frequency in a longer text."""
    rope_amplitude: PositiveFloat | None = None
    """yarn, longrope: factor of cosines and sines; by default what the papers take."""
    rotary_share: Fraction = 1.0
    """Share of a head's coordinates that is rotated."""
    pattern: tuple[LayerKind, ...] = ("main",)
    """Kinds of the layers, repeated from the first to the last. Other layers differ by the keys `other_…`."""
    other_window: Size | None = None
    """Window of other layers; by default that of the main ones."""
    other_rope: Literal["same", "unscaled", "none"] = "same"
    """Rotary positions of other layers: those of the main ones, the same without scaling, or none."""
    other_rope_theta: PositiveFloat | None = None
    """θ of other layers; by default that of the main ones."""
    norm: Literal["rms", "rms_plus_one", "layer"] = "rms"
    """RMSNorm, RMSNorm with the factor 1 + scale, or LayerNorm."""
    norm_position: Literal["before", "after", "both"] = "before"
    """x + f(norm(x)), x + norm(f(x)), or x + norm(f(norm(x)))."""
    parallel: Literal["no", "one_norm", "two_norms"] = "no"
    """Attention and feed-forward read the same x, after one norm or each after its own."""
    qk_norm: Literal["none", "head", "per_head", "heads"] = "none"
    """Norm of queries and keys, without bias: of each head by itself, with one scale for all heads or one for each, or
    of all heads of a token together."""
    clip_qkv: PositiveFloat | None = None
    """c: queries, keys and values are clipped to −c … c, after their norms (OLMoE)."""
    activation: Activation = "silu"
    gated: bool = True
    """The feed-forward has a gate."""
    attention_bias: bool = False
    qkv_bias: bool | None = None
    """Bias of queries, keys and values; as `attention_bias` by default."""
    mlp_bias: bool = False
    score_width: Size | None = None
    """Attention scores are divided by its root; the width of a head by default."""
    score_cap: PositiveFloat | None = None
    """c: attention scores z become c · tanh(z / c), by XLA or on TPUs by `splash`; other kernels have no cap."""
    logit_cap: PositiveFloat | None = None
    """c: logits z become c · tanh(z / c)."""
    embed_norm: bool = False
    """Norm of the token embeddings."""
    scale_embeddings: bool = False
    """Token embeddings are multiplied by √embed_dim."""
    tie_embeddings: bool = False
    """Use the token embeddings as the output projection."""
    epsilon: PositiveFloat = 1e-5
    """ε of the norms."""
    dropout: Fraction = 0.0
    """Dropout rate on attention weights and block outputs, and on embeddings with `positions: sinusoids` (XGLM)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.head_dim is None:
            check_heads(self.embed_dim, self.heads, hint="; set head_dim")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads: {self.kv_heads} does not divide heads {self.heads}")
        if self.positions == "rotary":
            self._check_rope()
        if self.positions == "sinusoids" and (self.embed_dim % 2 or self.embed_dim < 4):
            raise ValueError(f"embed_dim: {self.embed_dim} is no even width of 4 or more, which sinusoids need")
        if (self.qk_norm, self.norm) in (("per_head", "rms"), ("per_head", "rms_plus_one"), ("heads", "layer")):
            raise ValueError(f"qk_norm: {self.qk_norm} is not there for norm {self.norm}")
        if not self.pattern:
            raise ValueError("pattern: wants at least one kind of layer")
        if self.window is not None and (self.other_window or 0) > self.window:
            raise ValueError(f"other_window: {self.other_window} is wider than window {self.window}; swap the two")
        if self.positions.startswith("alibi") and (self.window or self.other_window):
            raise ValueError(f"positions: {self.positions} goes with no window; remove window and other_window")
        if self.parallel != "no" and self.norm_position != "before":
            raise ValueError(f"parallel: {self.parallel} wants norm_position before")
        if self.mlp_bias and all(map(self.is_sparse, range(self.layers))):
            raise ValueError("mlp_bias: experts have no biases, and no layer is dense; remove it")
        return self

    def _check_rope(self) -> None:
        if self.width % 2:
            raise ValueError(f"head_dim: {self.width} is odd, but rotary positions need an even width")
        rotated = int(self.width * self.rotary_share)
        if rotated % 2 or not rotated:
            raise ValueError(f"rotary_share: {self.rotary_share} of head_dim {self.width} is not an even width")
        if self.rope_scaling == "none" and self.rope_factor != 1:
            raise ValueError(f"rope_factor: {self.rope_factor} is not used with rope_scaling none; set rope_scaling")
        for name in ("rope_short_factors", "rope_long_factors"):
            count = len(getattr(self, name))
            if self.rope_scaling == "longrope" and count != rotated // 2:
                raise ValueError(f"{name}: wants {rotated // 2} numbers, one for each pair of coordinates, got {count}")

    def idle_settings(self) -> tuple[str, ...]:
        others, unscaled = ("other_window", "other_rope", "other_rope_theta"), f"rope_scaling: {self.rope_scaling}"
        idle = self._idle((x for x, kinds in SCALED_BY.items() if self.rope_scaling not in kinds), f"with {unscaled}")
        if self.positions != "rotary":
            rope = ("rope_theta", "rope_scaling", "rope_factor", *SCALED_BY, "rotary_share", *others[1:])
            idle = self._idle(rope, f"with positions: {self.positions}")
        elif self.rope_scaling in ("linear", "llama3", "yarn") and self.rope_factor == 1 and not self.rope_amplitude:
            idle += (f"model.{unscaled} has no effect with rope_factor: 1; set model.rope_factor",)
        if "other" not in self.pattern:
            idle += self._idle(others, "without an other layer in pattern")
        elif self.other_rope == "none":
            idle += self._idle(("other_rope_theta",), "with other_rope: none")
        return (*super().idle_settings(), *idle)

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.embed_dim // self.heads

    @property
    def position_switch(self) -> int | None:
        """With longrope the length of the original training."""
        is_longrope = self.positions == "rotary" and self.rope_scaling == "longrope"
        return self.rope_original_positions if is_longrope else None

    @property
    def counts_in_row(self) -> bool:
        """True if attention depends on distances in the row, not on positions alone."""
        return self.positions == "alibi" or any((self.window, self.other_window))

    def window_of(self, kind: LayerKind) -> int | None:
        """The window of a kind of layer."""
        return self.window if kind == "main" else self.other_window or self.window

    def rope_of(self, kind: LayerKind) -> Rope | None:
        """The rotary positions of a kind of layer, None if it has none."""
        if self.positions != "rotary" or (kind == "other" and self.other_rope == "none"):
            return None
        rope = Rope(
            self.rope_theta, self.rope_scaling, self.rope_factor, self.rope_low_frequency, self.rope_high_frequency,
            self.rope_original_positions, self.rope_slow_turns, self.rope_fast_turns, self.rope_whole_pairs,
            self.rope_short_factors, self.rope_long_factors, self.rope_amplitude, self.rotary_share,
        )  # fmt: skip
        if kind == "main":
            return rope
        rope = rope._replace(theta=self.other_rope_theta or self.rope_theta)
        return rope if self.other_rope == "same" else rope._replace(scaling="none")

    def rotations(self, positions: jax.Array, segment_ids: jax.Array | None = None) -> dict[LayerKind, Rotation | None]:
        """The rotary positions of each kind of layer, for positions [B, L] or [1, L] of texts with these ids."""
        ropes = {kind: self.rope_of(kind) for kind in dict.fromkeys(self.layer_kinds())}
        return {kind: rope and rope.rotation(positions, self.width, segment_ids) for kind, rope in ropes.items()}

    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        return tuple(itertools.islice(itertools.cycle(self.pattern), self.layers))

    def numbers(self, stack: str = "decoder") -> tuple[tuple[range, ...], ...]:
        """Layer numbers of each block of each segment: `numbers()[segment][block]`.

        Example: a pattern of 3 in 8 layers: two repetitions of (0, 1, 2), then (6) and (7) once. A pattern as long as
        the model is a segment for each run of equal layers. Sparse layers and dense ones differ, too.
        """
        kinds = [*zip(self.layer_kinds(), map(self.is_sparse, range(self.layers)))]
        period = self.sparse_period and math.lcm(len(self.pattern), self.sparse_period)
        return repeated(kinds, period)

    def segments(self) -> tuple[Segment, ...]:
        """The layers. A subclass may take another block."""
        kinds = self.layer_kinds()

        def block(first: int) -> Callable[..., nn.Module]:
            return functools.partial(Block, self, kinds[first], self.is_sparse(first))

        return tuple(
            Segment(tuple(block(of_block[0]) for of_block in blocks), len(blocks[0])) for blocks in self.numbers()
        )

    def build(self) -> DecoderOnly:
        """Builds the model."""
        return DecoderOnly(self)


def norm_of(config: DecoderOnlyConfig) -> Callable[..., nn.Module]:
    """What makes a norm of a name."""
    dtype = compute_dtype(config)
    if config.norm == "layer":
        return functools.partial(LayerNorm, config.epsilon, dtype)
    return functools.partial(RMSNorm, config.epsilon, dtype, plus_one=config.norm == "rms_plus_one")


class Block(AttentionBlock):
    """Attention and feed-forward, one after the other or side by side."""

    config: DecoderOnlyConfig
    kind: LayerKind = "main"
    is_sparse: bool = False
    """The feed-forward is a mixture of experts."""

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, past: Past, shared: Shared) -> Output:
        c, (attention, feed_forward, norm) = self.config, self.parts()
        before, after = c.norm_position != "after", c.norm_position != "before"
        mask = shared.mask.replace(window=c.window_of(self.kind))

        y = normed = norm(name="attention_norm")(x_BxLxD) if before else x_BxLxD
        rotation, bias = shared.positional[self.kind], shared.bias_HxLxS
        y, kv = attention(y, mask, bias_HxLxS=bias, positional=rotation, past=past.of("attention"))
        y = norm(name="attention_output_norm")(y) if after else y
        attended = adapters.after(c, "attention")(Dropout(c.dropout)(y))
        x_BxLxD = x_BxLxD if c.parallel == "two_norms" else x_BxLxD + attended

        y = normed if c.parallel == "one_norm" else x_BxLxD
        y = norm(name="feed_forward_norm")(y) if before and c.parallel != "one_norm" else y
        y, routing = feed(feed_forward, y, past, shared)
        y = norm(name="feed_forward_output_norm")(y) if after else y
        x_BxLxD = x_BxLxD + attended if c.parallel == "two_norms" else x_BxLxD
        x_BxLxD += adapters.after(c, "feed_forward")(Dropout(c.dropout)(y))
        return Output(constrain(x_BxLxD, "act_embed"), cache=stored(attention=kv), routing=routing)

    @nn.nowrap
    def parts(self) -> tuple[Attention, FeedForward | MoE, Callable[..., nn.Module]]:
        """Attention, feed-forward, and what makes a norm of a name."""
        c, dtype, norm = self.config, compute_dtype(self.config), norm_of(self.config)
        # Scaled by 2 · layers residual sums, so the variance of the output does not grow with depth.
        residual = nn.initializers.normal(0.02 / math.sqrt(2 * c.layers))
        by_head = functools.partial(norm, use_bias=False) if c.norm == "layer" else norm
        qk_norms = {
            "head": by_head, "per_head": functools.partial(by_head, per_head=True),
            "heads": functools.partial(HeadsRMSNorm, c.epsilon, dtype),
        }  # fmt: skip
        attention = self.attention_class(
            c.heads, c.width, dtype, INIT, residual, output_bias=c.attention_bias,
            use_bias=c.attention_bias if c.qkv_bias is None else c.qkv_bias, dropout=c.dropout, kv_heads=c.kv_heads,
            scale=None if c.score_width is None else c.score_width**-0.5, soft_cap=c.score_cap,
            clip=c.clip_qkv, qk_norm=qk_norms.get(c.qk_norm), implementation=c.attention, name="attention",
        )  # fmt: skip
        if self.is_sparse:
            return attention, MoE(c, c.activation, INIT, residual, dtype, gated=c.gated, name="feed_forward"), norm
        feed_forward = FeedForward(
            c.mlp_dim, c.activation, INIT, residual, dtype, gated=c.gated, use_bias=c.mlp_bias, name="feed_forward"
        )
        return attention, feed_forward, norm


class DecoderOnly(Decoder):
    """The decoder."""

    config: DecoderOnlyConfig

    def setup(self) -> None:
        c, dtype = self.config, compute_dtype(self.config)
        self.token_embed = Embed(c.vocab_size, c.embed_dim, INIT, dtype, c.tie_embeddings)
        self.embed_norm = norm_of(c)() if c.embed_norm else None
        self.embed_dropout = Dropout(c.dropout if c.positions == "sinusoids" else 0.0)
        self.decoder = Stack(c.segments(), c.remat, c.unroll)
        self.final_norm = norm_of(c)()
        self.head = None if c.tie_embeddings else UntiedHead(c.vocab_size, c.embed_dim, INIT, dtype)

    def embed(self, tokens_BxL: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Token embeddings; their scale is rounded as they are."""
        x_BxLxD, c = self.token_embed(tokens_BxL), self.config
        x_BxLxD = x_BxLxD * jnp.asarray(math.sqrt(c.embed_dim), x_BxLxD.dtype) if c.scale_embeddings else x_BxLxD
        if c.positions == "sinusoids":
            positions = positions_from(tokens_BxL.shape[1]) if positions is None else positions
            x_BxLxD += sinusoids_in_halves(positions + FIRST_SINUSOID, c.embed_dim).astype(x_BxLxD.dtype)
        return self.embed_dropout(x_BxLxD if self.embed_norm is None else self.embed_norm(x_BxLxD))

    def shared(self, step: Step, prefix: jax.Array | None) -> Shared:
        """The mask, the rotary positions of each kind of layer, and ALiBi's bias."""
        positions, mask = step.positions, step.mask(prefix)
        positions = positions_from(step.length) if positions is None else positions
        rotations = self.config.rotations(positions, step.segment_ids)
        return Shared(mask, self._alibi(mask, positions), positional=rotations)

    def _alibi(self, mask: Mask, positions_BxL: jax.Array) -> Alibi | jax.Array | None:
        """ALiBi's bias, if any; as an array with a cache."""
        c, length, index_S = self.config, positions_BxL.shape[1], mask.key_index_S
        if c.positions == "alibi":
            alibi = Alibi(c.heads)
            return alibi if index_S is None else alibi.materialise(length, len(index_S), mask.offset, index_S)
        if c.positions != "alibi_bfloat16":
            return None
        if index_S is not None:  # the newest token has the last index
            positions_BxL = positions_BxL[:, -1:] - (mask.offset + length - 1 - index_S)
        return alibi_of_keys(c.heads, positions_BxL) * (c.score_width or c.width) ** -0.5

    def output_projection(self) -> Projection:
        """The projection from hidden states to logits, with their cap."""
        return super().output_projection().replace(soft_cap=self.config.logit_cap)
