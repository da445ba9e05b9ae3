"""Functions for any model: initialise and bind parameters; their shapes, logical axes and number.

A model is an `nn.Module` with the field `config` whose `__call__(tokens_BxL)` uses every parameter.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.models.output import Projection
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


@dataclasses.dataclass(frozen=True)
class Bound:
    """A module bound to parameters, random keys and heads. It has the module's methods; see `bind`."""

    model: nn.Module
    params: Any
    rngs: Mapping[str, Any]
    heads: Mapping[str, Bound] = dataclasses.field(default_factory=dict)
    """The bound heads, by name."""
    added: Bound | None = None
    """A model whose embeddings are added to this one's in `encode`, with a stopped gradient (`Network.deltas`)."""

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.model.config

    def lm_states(self, x: jax.Array) -> jax.Array:
        """Input of `output_projection`: hidden states [..., D], transformed by the masked-LM head if there is one."""
        return self.heads["masked_lm"](x) if "masked_lm" in self.heads else x

    def output_projection(self) -> Projection:
        """The projection from `lm_states` to logits: the model's, with the masked-LM head's bias."""
        projection = self._apply("output_projection")
        if "masked_lm" not in self.heads:
            return projection
        return projection.replace(bias=self.heads["masked_lm"].projection_bias())

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
        return self._apply("__call__", *args, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(type(self.model), name, None)):
            raise AttributeError(f"{type(self.model).__name__} has no method {name!r}")
        return functools.partial(self._apply, name)

    def _embedded(self, tokens_BxL: jax.Array, **options: Any) -> jax.Array:
        """The sum of both models' embeddings. Summing the tables instead would read and write all of their rows."""
        embed_options = {name: options.get(name) for name in ("token_types", "positions")}
        return self.embed(tokens_BxL, **embed_options) + jax.lax.stop_gradient(
            self.added.embed(tokens_BxL, **embed_options)
        )

    def _apply(self, method: str, *args: Any, **options: Any) -> Any:
        if method == "encode" and self.added is not None:
            options["embedded"] = self._embedded(*args, **options)
        return self.model.apply({"params": self.params}, *args, rngs=self.rngs, method=method, **options)


def bind(model: nn.Module, params: Any, rngs: Mapping[str, Any] | None = None) -> Bound:
    """Binds a module to parameters and random keys, for calls such as `bound.encode(tokens)` or `bound.logits(x)`.

    Calls are pure functions: the same keys give the same draws, independent of earlier calls. For a model with heads
    use `jaxpt.models.network.Network.bind`.

    Args:
      model: a module of `jaxpt.models`.
      params: its parameters.
      rngs: random keys by name; dropout is on if there is a key "dropout".

    Returns:
      An object with the module's methods.
    """
    return Bound(model, params, dict(rngs or {}))


def init(model: nn.Module, key: jax.Array) -> dict[str, Any]:
    """Initialises a model's parameters; works under `jax.jit`.

    Args:
      model: a module of `jaxpt.models`.
      key: random key.

    Returns:
      A plain nested dict of float32 arrays; parameters of a stack have a leading layers axis.
    """
    return unboxed(boxed_init(model, key))


@functools.lru_cache(64)  # called several times at the start of a run; each tracing takes a few tenths of a second
def abstract(model: nn.Module) -> dict[str, Any]:
    """Shapes and logical axes of a model's parameters; nothing is computed.

    Args:
      model: a module of `jaxpt.models`.

    Returns:
      The tree of parameters, each leaf an `nn.LogicallyPartitioned`: `value` is a `jax.ShapeDtypeStruct`, `names`
      has a logical name for each axis. The tree is cached: do not modify it.
    """
    return jax.eval_shape(lambda: boxed_init(model, jax.random.key(0)))


def shapes(model: nn.Module) -> dict[str, Any]:
    """The tree of parameters with `jax.ShapeDtypeStruct` leaves."""
    return unboxed(abstract(model))


def logical_axes(model: nn.Module) -> dict[str, Any]:
    """Logical axis names of a model's parameters.

    Args:
      model: a module of `jaxpt.models`.

    Returns:
      The tree of parameters, each leaf a tuple of names, such as ("layers", "embed", "heads").
    """
    return axes_of(abstract(model))


def count_params(model: nn.Module) -> int:
    """Number of parameters; padding rows of the vocabulary are not counted."""
    return count(abstract(model), model.config.vocab_size)


def unstack(layers: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits the parameters of a stack's segment into one tree per repetition.

    Args:
      layers: a tree whose leaves have a leading layers axis, such as `params["encoder"]["segment_0"]`.

    Returns:
      As many trees, without that axis.
    """
    repeats = jax.tree.leaves(layers)[0].shape[0]
    return [jax.tree.map(lambda x, i=i: x[i], layers) for i in range(repeats)]


# ---- trees of boxes: arrays with logical axis names ------------------------------------------------------------


def boxed_init(module: nn.Module, key: Any, *inputs: jax.Array) -> dict[str, Any]:
    """Initialises a module's parameters with their logical axis names.

    Args:
      module: a Flax module.
      key: random key, or a `LazyRng`.
      *inputs: arguments of the call; by default one token.
    """
    inputs = inputs or (jnp.zeros((1, 1), jnp.int32),)
    with nn.logical_axis_rules(()):  # a batch of one cannot be sharded
        return module.init({"params": key}, *inputs).get("params", {})


def unboxed(tree: Any) -> Any:
    """The arrays of a tree of boxes."""
    # Not nn.unbox: on a mesh it adds sharding constraints, which shapes do not support.
    return jax.tree.map(lambda box: box.value, tree, is_leaf=_is_box)


def axes_of(tree: Any) -> Any:
    """The logical axis names of a tree of boxes."""
    return jax.tree.map(lambda box: box.names, tree, is_leaf=_is_box)


def count(tree: Any, vocab_size: int) -> int:
    """Number of scalars of a tree of boxes, without padding rows of the vocabulary."""

    def one(box: nn.LogicallyPartitioned) -> int:
        axes = zip(box.names, box.value.shape, strict=True)
        return math.prod(vocab_size if name == "vocab" else size for name, size in axes)

    return sum(map(one, jax.tree.leaves(tree, is_leaf=_is_box)))


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.meta.AxisMetadata)
