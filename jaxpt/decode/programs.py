"""The compiled programs of `decoding`, one set for each shape of a batch, on one device or a mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxpt.decode import beam, decoding
from jaxpt.decode.decoding import Decoder, Prompts, State
from jaxpt.models import parts, pipeline
from jaxpt.models.base import compute_dtype
from jaxpt.models.network import Network
from jaxpt.parallel import compiler, rules
from jaxpt.parallel import mesh as meshes

SEED = jax.ShapeDtypeStruct((), jnp.uint32)
COUNT = jax.ShapeDtypeStruct((), jnp.int32)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where parameters, caches and rows are: on a mesh, or on the default device."""

    mesh: Mesh | None = None
    table: tuple[tuple[str, tuple[str, ...]], ...] = tuple(rules.DEFAULT.items())
    """The table of logical axes, as pairs."""

    def use(self) -> AbstractContextManager[None]:
        """Makes mesh and table current."""
        return contextlib.nullcontext() if self.mesh is None else meshes.use(self.mesh, dict(self.table))

    def sharding(self, axes: tuple[str | None, ...], shape: tuple[int, ...]) -> Sharding:
        """The sharding of one array; an axis that its mesh axes do not divide is replicated."""
        if self.mesh is None:
            return SingleDeviceSharding(jax.devices()[0])
        table = dict(self.table)

        def ways(name: str | None) -> int:
            return math.prod(self.mesh.shape[a] for a in table[name] if a in self.mesh.shape) if name else 1

        axes = tuple(name if size % ways(name) == 0 else None for name, size in zip(axes, shape, strict=True))
        return NamedSharding(self.mesh, rules.spec(axes, shape, self.mesh, table=table))

    def rows(self, tree: Any) -> Any:
        """Shardings of arrays [B, …]."""
        return jax.tree.map(lambda x: self.sharding(("batch", *[None] * (len(x.shape) - 1)), x.shape), tree)

    @property
    def everywhere(self) -> Sharding:
        """A replicated array."""
        return self.sharding((), ()) if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    @property
    def row_multiple(self) -> int:
        """A batch of a multiple of so many rows is sharded."""
        return 1 if self.mesh is None else math.prod(self.mesh.shape[a] for a in rules.BATCH if a in self.mesh.shape)

    def put(self, tree: Any) -> Any:
        """Arrays [B, …] on the devices; every process must have the same."""
        return jax.tree.map(jax.device_put, tree, self.rows(tree))


def layer_parts(network: Network) -> parts.Parts:
    """The parts in which decoding keeps the decoder's layers, on the devices in use: one for each on a CPU.

    There a loop over stacked layers copies the weights of each out of the stack before it uses them. Accelerators read
    them in place. An encoder runs once, over many tokens: it would gain little and take as long again to compile.
    """
    if compiler.platform() != "cpu" or pipeline.stages() > 1:
        return {}
    all_parts = parts.one_by_one(network.shapes(), network.logical_axes())
    return {path: layers for path, layers in all_parts.items() if "/decoder/" in path} or all_parts  # shared


def stored(network: Network) -> tuple[Any, Any]:
    """Shapes with dtypes, and logical axes, of the parameters as decoding keeps them, on the devices in use.

    Matrices are in the compute dtype. The model casts these before each use, so results do not change, but a step reads
    half of the bytes. Those with an axis of classes stay in float32, in which routers and heads compute.
    """
    dtype, split = compute_dtype(network.config), layer_parts(network)

    def one(box: Any) -> Any:
        names = [name for name in box.names if name != "layers"]
        is_matrix = len(names) > 1 and not {"buckets", "classes", "norm"} & set(names)
        return jax.ShapeDtypeStruct(box.value.shape, dtype if is_matrix else box.value.dtype)

    shapes = jax.tree.map(one, network.abstract(), is_leaf=lambda x: hasattr(x, "names"))
    return parts.split(shapes, split), parts.split(network.logical_axes(), split)


class Programs:
    """Compiled programs for batches of one shape.

    On a TPU the compiler chooses the layouts of parameters and cache for the loop, and the other programs follow:
    otherwise each call would copy them.

    Attributes:
      decoder: what they are compiled for.
    """

    def __init__(self, decoder: Decoder, place: Place, params: Any, prompts: Any) -> None:
        """Nothing is compiled yet.

        Args:
          decoder: static.
          place: devices.
          params: shapes and shardings of the parameters, or the parameters.
          prompts: shapes of a whole batch of prompts.
        """
        self.decoder, self._place, self._prompts = decoder, place, _shapes(prompts)
        self._params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
        self._replacements: dict[Any, Callable[..., State]] = {}

    @functools.cached_property
    def state(self) -> State:
        """Shapes and shardings of the state."""
        with self._place.use():
            prefill = functools.partial(decoding.prefill, self.decoder)
            state = jax.eval_shape(prefill, self._params, self._prompts, SEED)

        def of_cache(x: jax.ShapeDtypeStruct) -> Sharding:
            return self._place.sharding((None, "batch", "act_heads", None, None), x.shape)

        cache = state.cache
        placed = self._place.rows(state.replace(cache=cache.replace(layers=None, written=None)))
        layers = jax.tree.map(of_cache, cache.layers)
        placed = placed.replace(cache=placed.cache.replace(layers=layers, written=self._place.everywhere))
        return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, placed)

    @functools.cached_property
    def run(self) -> Callable[..., State]:
        """`decoding.run`; the state is donated."""
        with self._place.use():
            return self.traced_run.lower().compile()

    @functools.cached_property
    def traced_run(self) -> Any:
        """`run` before it is compiled."""
        state, params, count = self.state, self._params, self._place.everywhere
        in_state, in_params = _shardings(state), _shardings(params)
        if self.chooses_layouts:
            auto = functools.partial(Format, Layout.AUTO)
            in_params = jax.tree.map(auto, in_params)
            layers = jax.tree.map(auto, in_state.cache.layers)
            in_state = in_state.replace(cache=in_state.cache.replace(layers=layers))
        return self._trace(
            functools.partial(decoding.run, self.decoder), (_shapes(params), _shapes(state), COUNT, COUNT),
            in_shardings=(in_params, in_state, count, count), out_shardings=in_state, donate_argnums=1,
        )  # fmt: skip

    @property
    def chooses_layouts(self) -> bool:
        """True if the compiler chooses the layouts of parameters and cache."""
        with self._place.use():
            return compiler.platform() == "tpu"

    def _formats(self) -> tuple[Any, Any]:
        """Formats of parameters and state: those of the loop."""
        if not self.chooses_layouts:
            return _shardings(self._params), _shardings(self.state)
        (params, state, *_), _ = self.run.input_formats
        return params, state

    @functools.cached_property
    def prefill(self) -> Callable[..., State]:
        """`decoding.prefill` of a whole batch."""
        params, state = self._formats()
        return self._compile(
            functools.partial(decoding.prefill, self.decoder), (_shapes(self._params), self._prompts, SEED),
            in_shardings=(params, self._place.rows(self._prompts), self._place.everywhere), out_shardings=state,
        )  # fmt: skip

    def replace(self, state: State, params: Any, index_R: np.ndarray, prompts: Prompts, seed: Any) -> State:
        """`decoding.replace`; compiled once for each shape of the new prompts."""
        key = index, shapes = _shapes(index_R), _shapes(prompts)
        if key not in self._replacements:
            self._replacements[key] = self._replace(index, shapes)
        return self._replacements[key](params, state, index_R, prompts, seed)

    def _replace(self, index: Any, prompts: Any) -> Callable[..., State]:
        params, state = self._formats()
        everywhere = self._place.everywhere
        return self._compile(
            functools.partial(decoding.replace, self.decoder),
            (_shapes(self._params), _shapes(self.state), index, prompts, SEED),
            in_shardings=(params, state, everywhere, jax.tree.map(lambda _: everywhere, prompts), everywhere),
            out_shardings=state, donate_argnums=1,
        )  # fmt: skip

    @functools.cached_property
    def search(self) -> Callable[..., beam.Hypotheses]:
        """`decoding.search` of a whole batch."""
        params, prompts = _shardings(self._params), self._place.rows(self._prompts)
        if self.chooses_layouts:
            params = jax.tree.map(functools.partial(Format, Layout.AUTO), params)
        return self._compile(
            functools.partial(decoding.search, self.decoder), (_shapes(self._params), self._prompts),
            in_shardings=(params, prompts),
        )  # fmt: skip

    def _compile(self, function: Any, arguments: Any, **options: Any) -> Any:
        with self._place.use():
            return self._trace(function, arguments, **options).lower().compile()

    def _trace(self, function: Any, arguments: Any, **options: Any) -> Any:
        with self._place.use():
            return compiler.jit(function, **options).trace(*arguments)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.sharding, tree)
