"""A backbone with the heads of a task: initialised, trained, saved and exported as one tree.

    {"model": backbone parameters, "heads": {name: head parameters}}          without heads: {"model": …}

A head is an `nn.Module`, or a network such as ELECTRA's generator, which may share modules with the backbone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.frozen_dict import FrozenDict
from flax.core.scope import LazyRng

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError
from jaxpt.models import base
from jaxpt.models.base import Bound

Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Head:
    """A head module and the shapes of its inputs, from which its parameters are initialised."""

    module: nn.Module
    inputs: tuple[jax.ShapeDtypeStruct, ...] | None = None
    """Default: the hidden states of one token, [1, 1, embed_dim]."""

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
    """For a network that is a head: names of modules whose parameters are the backbone's."""
    deltas: Mapping[str, str] = FrozenDict()
    """{embedding of the model: name of a head}: the parameters are a difference, initially zero, that is added to the
    head's; the gradient to the latter is stopped."""

    def __post_init__(self) -> None:
        for name in ("heads", "deltas"):  # hashable
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))

    @property
    def config(self) -> ModelConfig:
        """The backbone's configuration."""
        return self.model.config

    @property
    def has_cache(self) -> bool:
        """True if the backbone's `decode` takes a cache."""
        return "cache" in inspect.signature(type(self.model).decode).parameters

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Initialises the parameters; works under `jax.jit`.

        Args:
          key: random key.

        Returns:
          A plain nested dict of float32 arrays; parameters of a stack have a leading layers axis.
        """
        return base.unboxed(self._made(key))

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
        """Number of parameters; padding rows of the vocabulary are not counted."""
        return base.count(self.abstract(), self.config.vocab_size)

    def bind(self, params: Any, rngs: Mapping[str, jax.Array] | None = None) -> Bound:
        """Binds backbone and heads to parameters and random keys.

        Args:
          params: a tree as from `init`.
          rngs: random keys by name; dropout is on if there is a key "dropout".

        Returns:
          An object with the backbone's methods; `bound.heads[name]` is a bound head.
        """
        return self._bound(params, dict(rngs or {}), (), {})

    def with_model(self, **fields: Any) -> Network:
        """A copy with other configuration fields of all backbones, such as `attention`."""
        heads = {n: head.with_model(**fields) if isinstance(head, Network) else head for n, head in self.heads.items()}
        return dataclasses.replace(self, model=self.config.model_copy(update=fields).build(), heads=heads)

    def _made(self, key: jax.Array) -> dict[str, Any]:
        """As of any implementation of attention: one that is asked for may not take one token, nor be here."""
        return self.with_model(attention="auto")._boxed(key)

    def _boxed(self, key: jax.Array, path: Path = (), config: ModelConfig | None = None) -> dict[str, Any]:
        model = base.boxed_init(self.model, LazyRng(key, path) if path else key)
        model = {name: part for name, part in model.items() if name not in self.shared}
        for name in self.deltas:
            model[name] = jax.tree.map(jnp.zeros_like, model[name])
        heads = {name: head._boxed(key, (*path, name), self.config) for name, head in self.heads.items()}
        return {"model": model, "heads": heads} if heads else {"model": model}

    def _bound(self, params: Any, rngs: Mapping[str, jax.Array], path: Path, outer: Any) -> Bound:
        model_params = {**params["model"], **{name: outer[name] for name in self.shared}}
        heads = _Heads(
            (name, head._bound(params["heads"][name], rngs, (*path, name), model_params))
            for name, head in self.heads.items()
        )
        added = next((heads[name] for name in self.deltas.values()), None)
        return Bound(self.model, model_params, _folded(rngs, path), heads, added)


class _Heads(dict[str, Bound]):
    """Bound heads by name."""

    def __missing__(self, name: str) -> Bound:
        raise UserError(f"model.heads: the network has no head {name!r}, only {', '.join(map(repr, self)) or 'none'}; "
                        "Loss.heads declares them")  # fmt: skip


@functools.lru_cache(64)  # called several times at the start of a run; each tracing takes a few tenths of a second
def _abstract(network: Network) -> dict[str, Any]:
    return jax.eval_shape(lambda: network._made(jax.random.key(0)))


def _folded(rngs: Mapping[str, jax.Array], path: Path) -> Mapping[str, Any]:
    """Random keys of a subtree: different subtrees have different keys."""
    return {purpose: LazyRng(key, path) for purpose, key in rngs.items()} if path else rngs
