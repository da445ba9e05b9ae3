"""A backbone with the heads of a task: what is initialised, trained, saved and exported as one tree.

    {"model": the backbone's parameters, "heads": {name: a head's}}          without heads: {"model": …} alone

A head is any `nn.Module`; or a whole network, such as ELECTRA's generator, which may share parts of the backbone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.frozen_dict import FrozenDict
from flax.core.scope import LazyRng

from jaxpt.config import ModelConfig
from jaxpt.models import base
from jaxpt.models.base import Bound

Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Head:
    """A module, and the shapes of what it is called with: its parameters' shapes follow from them."""

    module: nn.Module
    inputs: tuple[jax.ShapeDtypeStruct, ...] | None = None
    """By default the hidden states of one token, [1, 1, embed_dim]."""

    def _boxed(self, key: jax.Array, path: Path, config: ModelConfig) -> dict[str, Any]:
        inputs = self.inputs or (jax.ShapeDtypeStruct((1, 1, config.embed_dim), jnp.float32),)
        return base.boxed_init(self.module, LazyRng(key, path), *(jnp.zeros(x.shape, x.dtype) for x in inputs))

    def _bound(self, params: Any, rngs: Mapping[str, jax.Array], path: Path, outer: Any) -> Bound:
        return Bound(self.module, params, _folded(rngs, path))


@dataclasses.dataclass(frozen=True)
class Network:
    """A backbone and its heads. Hashable; holds no arrays."""

    model: nn.Module
    """A module of `jaxpt.models`."""
    heads: Mapping[str, Head | Network] = FrozenDict()
    shared: tuple[str, ...] = ()
    """Of a network that is another one's head: parts of its model's tree that are the other one's."""
    deltas: Mapping[str, str] = FrozenDict()
    """{part of the model's tree: name of a head}: the part is a difference to the head's, which no gradient of the sum
    reaches. It starts at zero."""

    def __post_init__(self) -> None:
        for name in ("heads", "deltas"):  # hashable
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))

    @property
    def config(self) -> ModelConfig:
        """The backbone's."""
        return self.model.config

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Makes the parameters; works under `jax.jit`.

        Args:
          key: random key.

        Returns:
          A plain nested dict of float32 arrays; those of a stack's layers have a leading layers axis.
        """
        return base.unboxed(self._boxed(key))

    def abstract(self) -> dict[str, Any]:
        """Shapes and logical axes of the parameters: each leaf an `nn.LogicallyPartitioned`, as `base.abstract`."""
        return _abstract(self)

    def shapes(self) -> dict[str, Any]:
        """The tree of parameters with `jax.ShapeDtypeStruct` leaves."""
        return base.unboxed(self.abstract())

    def logical_axes(self) -> dict[str, Any]:
        """The tree of parameters, each leaf a tuple of logical names, such as ("layers", "embed", "heads")."""
        return base.axes_of(self.abstract())

    def count_params(self) -> int:
        """Number of parameters; rows that only pad the vocabulary in storage are not counted."""
        return base.count(self.abstract(), self.config.vocab_size)

    def bind(self, params: Any, rngs: Mapping[str, jax.Array] | None = None) -> Bound:
        """Binds backbone and heads to parameters and random keys.

        Args:
          params: the tree that `init` makes.
          rngs: random keys by purpose; there is dropout where "dropout" is among them.

        Returns:
          An object with the backbone's methods; `bound.heads[name]` is a head, bound likewise.
        """
        return self._bound(params, dict(rngs or {}), (), {})

    def with_model(self, **fields: Any) -> Network:
        """The same network with other fields of the backbone's configuration, such as `dtype`."""
        return dataclasses.replace(self, model=self.config.model_copy(update=fields).build())

    def _boxed(self, key: jax.Array, path: Path = (), config: ModelConfig | None = None) -> dict[str, Any]:
        model = base.boxed_init(self.model, LazyRng(key, path) if path else key)
        model = {name: part for name, part in model.items() if name not in self.shared}
        for name in self.deltas:
            model[name] = jax.tree.map(jnp.zeros_like, model[name])
        heads = {name: head._boxed(key, (*path, name), self.config) for name, head in self.heads.items()}
        return {"model": model, "heads": heads} if heads else {"model": model}

    def _bound(self, params: Any, rngs: Mapping[str, jax.Array], path: Path, outer: Any) -> Bound:
        own = {**params["model"], **{name: outer[name] for name in self.shared}}
        for name, head in self.deltas.items():
            theirs = jax.lax.stop_gradient(params["heads"][head]["model"][name])
            own[name] = jax.tree.map(jnp.add, own[name], theirs)
        heads = {
            name: head._bound(params["heads"][name], rngs, (*path, name), own) for name, head in self.heads.items()
        }
        return Bound(self.model, own, _folded(rngs, path), heads)


@functools.lru_cache(64)  # a start of a run asks several times, and each tracing takes a few tenths of a second
def _abstract(network: Network) -> dict[str, Any]:
    return jax.eval_shape(lambda: network._boxed(jax.random.key(0)))


def _folded(rngs: Mapping[str, jax.Array], path: Path) -> Mapping[str, Any]:
    """Random keys of a part of the tree: two parts never draw alike."""
    return {purpose: LazyRng(key, path) for purpose, key in rngs.items()} if path else rngs
