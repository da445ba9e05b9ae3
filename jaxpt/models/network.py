"""A backbone with the heads of a task: initialised, trained, saved and exported as one tree.

    {"model": backbone parameters, "heads": {name: head parameters}}          without heads: {"model": …}

A head is an `nn.Module`, or a network such as ELECTRA's generator, which may share modules with the backbone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.frozen_dict import FrozenDict
from flax.core.scope import LazyRng

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.output import Output

Rngs = Mapping[str, Any]
"""Random keys by name; dropout is on if there is a key "dropout"."""


@dataclasses.dataclass(frozen=True)
class Head:
    """A head module and the shapes of its inputs, from which its parameters are initialised."""

    module: nn.Module
    inputs: tuple[jax.ShapeDtypeStruct, ...] | None = None
    """Default: the hidden states of one token, [1, 1, embed_dim]."""

    def bind(self, params: Any, rngs: Rngs, backbone: Any) -> Bound:
        """Binds the module to parameters and random keys; it uses none of the backbone's."""
        return Bound(self.module, params, rngs)

    def _boxed(self, key: LazyRng, config: ModelConfig) -> dict[str, Any]:
        inputs = self.inputs or (jax.ShapeDtypeStruct((1, 1, config.embed_dim), jnp.float32),)
        return _boxed(self.module, key, *inputs)


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
        return _unboxed(_initialised(self, key))

    def abstract(self) -> dict[str, Any]:
        """Shapes and logical axes of the parameters; nothing is computed.

        Returns:
          The tree of parameters, each leaf an `nn.LogicallyPartitioned`: `value` is a `jax.ShapeDtypeStruct`, `names`
          has a logical name for each axis. The tree is cached: do not modify it.
        """
        return _abstract(self)

    def shapes(self) -> dict[str, Any]:
        """The tree of parameters with `jax.ShapeDtypeStruct` leaves."""
        return _unboxed(self.abstract())

    def logical_axes(self) -> dict[str, Any]:
        """The tree of parameters, each leaf a tuple of logical names, such as ("layers", "embed", "heads")."""
        return jax.tree.map(lambda box: box.names, self.abstract(), is_leaf=_is_box)

    def count_params(self) -> int:
        """Number of parameters; padding rows of the vocabulary and what is no weight (`fixed_params`) do not count."""
        return sum(self._size(*leaf) for leaf in self._leaves())

    def count_active_params(self) -> int:
        """Number of parameters that a token uses: of a mixture's experts those that it is sent to."""

        def size(path: Any, box: nn.LogicallyPartitioned) -> int:
            if "expert" not in box.names[:-1]:  # a router has all experts as its last axis
                return self._size(path, box)
            return self._size(path, box) * self.config.experts_per_token // self.config.experts

        return sum(size(*leaf) for leaf in self._leaves())

    def _leaves(self) -> list[tuple[Any, nn.LogicallyPartitioned]]:
        """(path, its shape and axes) of each parameter."""
        return jax.tree_util.tree_leaves_with_path(self.abstract(), is_leaf=_is_box)

    def _size(self, path: Any, box: nn.LogicallyPartitioned) -> int:
        if jax.tree_util.keystr(path, simple=True, separator="/") in self.config.fixed_params:
            return 0
        axes = zip(box.names, box.value.shape, strict=True)
        return math.prod(self.config.vocab_size if name == "vocab" else size for name, size in axes)

    def bind(self, params: Any, rngs: Rngs | None = None, backbone: Any = None) -> Bound:
        """Binds backbone and heads to parameters and random keys.

        Args:
          params: a tree as from `init`.
          rngs: random keys by name; dropout is on if there is a key "dropout".
          backbone: for a network that is a head: parameters of its backbone.

        Returns:
          An object with the backbone's methods; `bound.heads[name]` is a bound head.
        """
        rngs, heads = dict(rngs or {}), _Heads()
        model_params = {**params["model"], **{name: backbone[name] for name in self.shared}}
        for name, head in self.heads.items():
            head_rngs = {purpose: LazyRng.create(key, name) for purpose, key in rngs.items()}
            heads[name] = head.bind(params["heads"][name], head_rngs, model_params)
        bound = self.model, model_params, rngs, heads
        return _Summed(*bound, added=heads[next(iter(self.deltas.values()))]) if self.deltas else Bound(*bound)

    def with_model(self, **fields: Any) -> Network:
        """A copy with other configuration fields of all backbones, such as `attention`."""
        heads = {n: head.with_model(**fields) if isinstance(head, Network) else head for n, head in self.heads.items()}
        return dataclasses.replace(self, model=self.config.model_copy(update=fields).build(), heads=heads)

    def _boxed(self, key: Any, config: ModelConfig | None = None) -> dict[str, Any]:
        """The initialised parameters with their logical axes."""
        model = _boxed(self.model, key, jax.ShapeDtypeStruct((1, 1), jnp.int32))
        model = {name: part for name, part in model.items() if name not in self.shared}
        for name in self.deltas:
            model[name] = jax.tree.map(jnp.zeros_like, model[name])
        heads = {name: head._boxed(LazyRng.create(key, name), self.config) for name, head in self.heads.items()}
        return {"model": model, "heads": heads} if heads else {"model": model}


@dataclasses.dataclass(frozen=True)
class _Summed(Bound):
    """A backbone whose embeddings are differences from those of a head (`Network.deltas`)."""

    added: Bound | None = None
    """The head; the gradient to its embeddings is stopped."""

    def encode(self, tokens_BxL: jax.Array, **options: Any) -> Output:
        """The module's `encode`, of the sum of both models' embeddings.

        Summing the tables instead would read and write all of their rows.
        """
        inputs = {name: options.get(name) for name in ("token_types", "positions")}
        added = jax.lax.stop_gradient(self.added.embed(tokens_BxL, **inputs))
        return self._method("encode")(tokens_BxL, embedded=self.embed(tokens_BxL, **inputs) + added, **options)


class _Heads(dict[str, Bound]):
    """Bound heads by name."""

    def __missing__(self, name: str) -> Bound:
        raise UserError(f"model.heads: the network has no head {name!r}, only {', '.join(map(repr, self)) or 'none'}; "
                        "Objective.heads declares them")  # fmt: skip


def _initialised(network: Network, key: jax.Array) -> dict[str, Any]:
    """As of any attention: the requested implementation may not take one token, or not run on this device."""
    params = network.with_model(attention="auto")._boxed(key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_box):
        if not _is_box(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                f"parameter {name} has no logical axes; make it with jaxpt.models.layers.param or "
                "jaxpt.models.layers.Dense, not with flax.linen alone"
            )
    return params


@functools.lru_cache(64)  # called several times at the start of a run; each tracing takes a few tenths of a second
def _abstract(network: Network) -> dict[str, Any]:
    return jax.eval_shape(lambda: _initialised(network, jax.random.key(0)))


def _boxed(module: nn.Module, key: Any, *inputs: jax.ShapeDtypeStruct) -> dict[str, Any]:
    """The initialised parameters of a module that is called with `inputs`, with their logical axes."""
    with nn.logical_axis_rules(()):  # a batch of one cannot be sharded
        return module.init({"params": key}, *(jnp.zeros(x.shape, x.dtype) for x in inputs)).get("params", {})


def _unboxed(tree: Any) -> Any:
    """The arrays of a tree of boxes."""
    # Not nn.unbox: on a mesh it adds sharding constraints, which shapes do not support.
    return jax.tree.map(lambda box: box.value, tree, is_leaf=_is_box)


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.meta.AxisMetadata)
