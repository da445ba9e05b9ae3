"""What architectures have in common: the base of their modules, and a module bound to its parameters.

A model is an `nn.Module` with the field `config` whose `__call__(tokens_BxL)` uses every parameter.

Shapes: B batch · L length · D embedding width · V vocabulary (Vp: its rows in storage)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.models.layers import Initializer, param, stored_rows
from jaxpt.models.output import Output, Projection
from jaxpt.parallel import compiler


def compute_dtype(config: ModelConfig) -> DTypeLike:
    """Compute dtype: float32 or bfloat16; `auto` is bfloat16 on accelerators."""
    if config.dtype == "auto":
        return jnp.float32 if compiler.platform() == "cpu" else jnp.bfloat16
    return jnp.dtype(config.dtype)


def check_heads(embed_dim: int, heads: int, name: str = "heads", hint: str = "") -> None:
    """Raises ValueError if the width is not a multiple of the number of heads.

    Args:
      embed_dim: width of the hidden states.
      heads: number of heads.
      name: configuration key of `heads`.
      hint: advice to append to the message.
    """
    if embed_dim % heads:
        raise ValueError(f"{name}: {heads} does not divide embed_dim {embed_dim}{hint}")


class LanguageModel(nn.Module):
    """Base of models with vocabulary logits: x · Eᵀ with the token embeddings E, or x · W if untied.

    `setup` creates `token_embed`, and `head` if untied. A masked-LM head is not part of the model: `Bound` combines
    both.
    """

    config: ModelConfig

    def output_projection(self) -> Projection:
        """The projection from hidden states to logits; losses apply it to chunks of positions."""
        if getattr(self, "head", None) is not None:
            return self.head.projection()
        embed = self.token_embed
        return Projection(embed.table, vocab_size=self.config.vocab_size, tied=True, dtype=embed.dtype)

    def lm_states(self, x: jax.Array) -> jax.Array:
        """Input of `output_projection`: the hidden states themselves, unless a model has a layer in between."""
        return x

    def logits(self, x: jax.Array) -> jax.Array:
        """Logits of the model without a head: hidden states [..., D] → float32 [..., V]; see `Bound.logits`."""
        return self.output_projection()(self.lm_states(x), padded=False)

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        """An encoder's hidden states [B, L, D], a decoder's next-token logits [B, L, V]: uses every parameter.

        An encoder-decoder reads the same tokens with both stacks.
        """
        if self.config.family == "encoder":
            return self.encode(tokens_BxL).hidden
        encoded = () if self.config.family == "decoder" else (self.encode(tokens_BxL).hidden,)
        return self.logits(self.decode(tokens_BxL, *encoded).hidden)


class Encoder(LanguageModel):
    """Base of bidirectional encoders. `encode` of a subclass may take more than these arguments."""

    def encode(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        layers: bool = False,
    ) -> Output:
        """Hidden states of the last layer, after the final norm if there is one.

        Args:
          tokens_BxL: token ids.
          token_types: [B, L], 0 in the first text and 1 in the second, if the model has token types; all 0 by default.
          segment_ids: [B, L], 0 on padding, packed sequences numbered from 1; one segment by default.
          positions: [B, L], 0 … L-1 by default.
          layers: also return the hidden states of all layers.

        Returns:
          Hidden states [B, L, D] in the compute dtype.
        """
        raise NotImplementedError


class UntiedHead(nn.Module):
    """x · W with an untied W [D, Vp] (T5 1.1)."""

    vocab_size: int
    width: int
    """D."""
    kernel_init: Initializer
    dtype: DTypeLike

    def setup(self) -> None:
        shape = (self.width, stored_rows(self.vocab_size))
        self.kernel = param(self, "kernel", self.kernel_init, shape, ("embed", "vocab"))

    def projection(self) -> Projection:
        """x · W."""
        return Projection(self.kernel, vocab_size=self.vocab_size, dtype=self.dtype)


@dataclasses.dataclass(frozen=True)
class Bound:
    """A module bound to parameters, random keys and heads: it has the module's methods.

    Calls are pure functions: the same keys give the same draws, independent of earlier calls.
    """

    model: nn.Module
    params: Any
    rngs: Mapping[str, Any]
    """Random keys by name; dropout is on if there is a key "dropout"."""
    heads: Mapping[str, Bound] = dataclasses.field(default_factory=dict)
    """The bound heads, by name."""
    intermediates: dict[str, Any] | None = None
    """Where given, it is filled with what the module sows into Flax's collection "intermediates"."""

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.model.config

    def lm_states(self, x: jax.Array) -> jax.Array:
        """Input of `output_projection`: hidden states [..., D], transformed by the masked-LM head if there is one."""
        return self.heads["masked_lm"](x) if "masked_lm" in self.heads else self._method("lm_states")(x)

    def output_projection(self) -> Projection:
        """The projection from `lm_states` to logits: the model's, or that of the masked-LM head."""
        projection = self._method("output_projection")()
        return self.heads["masked_lm"].projection(projection) if "masked_lm" in self.heads else projection

    def logits(self, x: jax.Array, padded: bool = False) -> jax.Array:
        """Logits over the vocabulary.

        Args:
          x: hidden states [..., D].
          padded: keep the columns of padding rows, with a large negative logit.

        Returns:
          float32 [..., V], or [..., Vp] if `padded`.
        """
        return self.output_projection()(self.lm_states(x), padded)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the module."""
        return self._method("__call__")(*args, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._method(name)

    def _method(self, name: str) -> Callable[..., Any]:
        """A method of the module as a function of its arguments."""
        if not callable(getattr(type(self.model), name, None)):
            raise AttributeError(f"{type(self.model).__name__} has no method {name!r}")
        apply = functools.partial(self.model.apply, {"params": self.params}, rngs=self.rngs, method=name)
        return apply if self.intermediates is None else functools.partial(self._with_intermediates, apply)

    def _with_intermediates(self, apply: Callable[..., Any], *args: Any, **options: Any) -> Any:
        output, variables = apply(*args, **options, mutable=["intermediates"])
        self.intermediates.update(variables.get("intermediates", {}))
        return output
