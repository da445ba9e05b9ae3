"""What can be asked of any model: its parameters, their shapes, logical axes and number.

A model is an `nn.Module` with the field `config`, and its `__call__(tokens_BxL)` touches every parameter.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxpt.config import ModelConfig
from jaxpt.parallel import compiler


def compute_dtype(config: ModelConfig) -> DTypeLike:
    """Type of the computation: float32 or bfloat16; `auto` is bfloat16 where there is an accelerator."""
    if config.dtype == "auto":
        return jnp.float32 if compiler.platform() == "cpu" else jnp.bfloat16
    return jnp.dtype(config.dtype)


def check_heads(embed_dim: int, heads: int, name: str = "heads", hint: str = "") -> None:
    """Raises ValueError where a width does not split evenly into heads.

    Args:
      embed_dim: width of the hidden states.
      heads: number of heads.
      name: key of the configuration that holds it.
      hint: what else could be done.
    """
    if embed_dim % heads:
        raise ValueError(f"{name}: {heads} does not divide embed_dim {embed_dim}{hint}")


@dataclasses.dataclass(frozen=True)
class Bound:
    """A model with its parameters and random keys: has the model's methods, see `bind`."""

    model: nn.Module
    params: Any
    rngs: Mapping[str, jax.Array]

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self.model.config

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(type(self.model), name, None)):
            raise AttributeError(f"{type(self.model).__name__} has no method {name!r}")
        return functools.partial(self.model.apply, {"params": self.params}, rngs=self.rngs, method=name)


def bind(model: nn.Module, params: Any, rngs: Mapping[str, jax.Array] | None = None) -> Bound:
    """Binds a model to parameters and random keys; then `bound.encode(tokens)`, `bound.logits(x)` and so on.

    A call depends on nothing but its arguments: of the same keys it draws the same, whatever was called before.

    Args:
      model: a module of `jaxpt.models`.
      params: its parameters.
      rngs: random keys by purpose; there is dropout where "dropout" is among them.

    Returns:
      An object with the model's methods.
    """
    return Bound(model, params, dict(rngs or {}))


def init(model: nn.Module, key: jax.Array) -> dict[str, Any]:
    """Makes a model's parameters; works under `jax.jit`.

    Args:
      model: a module of `jaxpt.models`.
      key: random key.

    Returns:
      A plain nested dict of float32 arrays; those of a stack's layers have a leading layers axis.
    """
    return _unbox(_boxed_init(model, key))


@functools.lru_cache(64)  # a start of a run asks several times, and each tracing takes a few tenths of a second
def abstract(model: nn.Module) -> dict[str, Any]:
    """Shapes and logical axes of a model's parameters; nothing is computed.

    Args:
      model: a module of `jaxpt.models`.

    Returns:
      The tree of parameters, each leaf an `nn.LogicallyPartitioned`: `value` is a `jax.ShapeDtypeStruct`, `names`
      has a logical name for each axis. It is shared by all who ask: not to be changed.
    """
    return jax.eval_shape(lambda: _boxed_init(model, jax.random.key(0)))


def shapes(model: nn.Module) -> dict[str, Any]:
    """The tree of parameters with `jax.ShapeDtypeStruct` leaves."""
    return _unbox(abstract(model))


def logical_axes(model: nn.Module) -> dict[str, Any]:
    """Logical axis names of a model's parameters.

    Args:
      model: a module of `jaxpt.models`.

    Returns:
      The tree of parameters, each leaf a tuple of names, such as ("layers", "embed", "heads").
    """
    return jax.tree.map(lambda box: box.names, abstract(model), is_leaf=_is_box)


def count_params(model: nn.Module, exclude: Iterable[str] = ()) -> int:
    """Number of parameters; rows that only pad the vocabulary in storage are not counted.

    Args:
      model: a module of `jaxpt.models`.
      exclude: top-level parts that are left out, such as BERT's ("mlm_head", "next_sentence_head").

    Returns:
      The number of trainable scalars.
    """
    kept = {name: part for name, part in abstract(model).items() if name not in set(exclude)}

    def count(box: nn.LogicallyPartitioned) -> int:
        axes = zip(box.names, box.value.shape, strict=True)
        return math.prod(model.config.vocab_size if name == "vocab" else size for name, size in axes)

    return sum(map(count, jax.tree.leaves(kept, is_leaf=_is_box)))


def unstack(layers: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits the parameters of a stack's segment into one tree per repetition.

    Args:
      layers: a tree whose leaves have a leading layers axis, such as `params["encoder"]["segment_0"]`.

    Returns:
      As many trees, without that axis.
    """
    repeats = jax.tree.leaves(layers)[0].shape[0]
    return [jax.tree.map(lambda x, i=i: x[i], layers) for i in range(repeats)]


def _boxed_init(model: nn.Module, key: jax.Array) -> dict[str, Any]:
    with nn.logical_axis_rules(()):  # a batch of one does not divide over a mesh, nor need it
        return model.init(key, jnp.zeros((1, 1), jnp.int32))["params"]


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.meta.AxisMetadata)


def _unbox(tree: Any) -> Any:
    # Not nn.unbox: on a mesh that one puts sharding constraints on values, which shapes do not take.
    return jax.tree.map(lambda box: box.value, tree, is_leaf=_is_box)
