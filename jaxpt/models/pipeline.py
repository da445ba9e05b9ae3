"""Pipeline parallelism: layers are split into stages on different devices, which process different microbatches.

At step t, stage s processes microbatch t − s: its input is the output of stage s − 1 at step t − 1. M microbatches take
T = M + S − 1 steps. Each stage is idle in S − 1 of them (it computes unused results), so the bubble is (S − 1) / T of
the time; more microbatches make it smaller.

Shapes: M microbatches · S stages · R layers of a stage · T steps

Paper: GPipe, https://arxiv.org/abs/1811.06965
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpt.models.layers import mesh_axes

Layer = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(x, (parameters, keys, past), shared) → (x, output), see `jaxpt.models.stack`."""


def stages() -> int:
    """Number of pipeline stages; 1 without pipelining."""
    return mesh_axes("layers").get("pipeline", 1)


def run(
    layer: Layer, params: Any, own: Any, x: Any, shared: Any, scan: Callable[..., Any] = jax.lax.scan
) -> tuple[Any, Any]:
    """Runs layers sequentially; under `jax.vmap` over microbatches, as a pipeline.

    Args:
      layer: a layer as a function.
      params: of all layers, leaves [layers, …], sharded over stages along that axis.
      own: (random keys, past) of all layers, leaves [layers, …].
      x: input of the first layer.
      shared: inputs common to all layers.
      scan: runs the layers of a stage, `jax.lax.scan` with options.

    Returns:
      (output of the last layer, outputs of all layers [layers, …]).
    """

    def chain(params: Any, own: Any, x: Any, shared: Any) -> tuple[Any, Any]:
        return scan(lambda x, xs: layer(x, (xs[0], *xs[1]), shared), x, (params, own))

    run = jax.custom_batching.custom_vmap(chain)

    @run.def_vmap
    def staged(count: int, mapped: Any, params: Any, own: Any, x: Any, shared: Any) -> Any:
        if any(jax.tree.leaves(mapped[0])):
            raise NotImplementedError("pipeline stages need microbatches of one model: parameters must not be mapped")

        def of_each(is_mapped: bool, x: jax.Array) -> jax.Array:
            return x if is_mapped else jnp.broadcast_to(x, (count, *x.shape))

        own, x = jax.tree.map(of_each, tuple(mapped[1:3]), (own, x))
        out = _staged(chain, count, params, own, x, shared, mapped[3])
        return out, jax.tree.map(lambda _: True, out)

    return run(params, own, x, shared)


def _staged(
    chain: Callable[..., Any], M: int, params: Any, keys_and_past_MxL: Any, x_M: Any, shared: Any, mapped: Any
) -> tuple[Any, Any]:
    S = stages()
    T = M + S - 1
    stage_S = jnp.arange(S)
    # The microbatch of each stage at each step; an idle stage gets another one, whose results are unused.
    micro_SxT = jnp.clip(jnp.arange(T) - stage_S[:, None], 0, M - 1)

    def skewed(x_M: Any, axis: int | None = None) -> Any:
        """[M, …], or with an axis of stages, → [T, S, …]: the input of each stage at each step."""
        taken = jax.vmap(lambda x, micro: x[micro], (axis, 0), spmd_axis_name="pipeline")
        return jax.tree.map(lambda x: _on_stages(taken(x, micro_SxT)).swapaxes(0, 1), x_M)

    def straight(y_TxS: Any) -> Any:
        """[T, S, …] → [M, S, …]: undoes `skewed`."""
        taken = jax.vmap(lambda y_T, s: jax.lax.dynamic_slice_in_dim(y_T, s, M), (1, 0), 1, spmd_axis_name="pipeline")
        return jax.tree.map(lambda y: taken(y, stage_S), y_TxS)

    def spread(x: jax.Array) -> jax.Array:
        return _on_stages(jnp.broadcast_to(x, (S, *x.shape)))

    def at(stage: int, a: Any, b: Any) -> Any:
        """`a` at stage `stage`, `b` at the others."""
        return jax.tree.map(lambda a, b: jnp.where(stage_S.reshape(S, *[1] * (a.ndim - 1)) == stage, a, b), a, b)

    params_SxR = jax.tree.map(lambda x: _on_stages(x.reshape(S, -1, *x.shape[1:])), params)
    keys_and_past_TxSxR = skewed(jax.tree.map(lambda x: x.reshape(M, S, -1, *x.shape[2:]), keys_and_past_MxL), axis=1)
    # Each stage gets a copy of inputs common to all microbatches, so their gradients are summed once, after the loop.
    everyones_S = jax.tree.map(lambda is_mapped, x: None if is_mapped else spread(x), mapped, shared)
    micros_TxS = jax.tree.map(lambda is_mapped, x: skewed(x) if is_mapped else None, mapped, shared)

    def turn(x_S: Any, xs: Any) -> tuple[Any, Any]:
        fed_S, keys_and_past_SxR, micros_S = xs
        shared_S = jax.tree.map(lambda a, b: b if a is None else a, everyones_S, micros_S, is_leaf=lambda x: x is None)
        x_S = at(0, fed_S, jax.tree.map(lambda x: jnp.roll(x, 1, axis=0), x_S))
        x_S, outputs_SxR = jax.vmap(chain, spmd_axis_name="pipeline")(
            params_SxR, keys_and_past_SxR, _on_stages(x_S), shared_S
        )
        return x_S, (x_S, outputs_SxR)

    fed_TxS = skewed(x_M)
    nothing = jax.tree.map(lambda x: jnp.zeros_like(x[0]), fed_TxS)
    _, (x_TxS, outputs_TxSxR) = jax.lax.scan(turn, nothing, (fed_TxS, keys_and_past_TxSxR, micros_TxS))
    # Broadcast the last stage's results: a sum in which those of the others are zero.
    out_M = jax.tree.map(lambda x: jax.vmap(lambda x: at(S - 1, x, jnp.zeros_like(x)).sum(0))(straight(x)), x_TxS)
    return out_M, jax.tree.map(lambda y: y.reshape(M, -1, *y.shape[3:]), straight(outputs_TxSxR))


def _on_stages(x_S: Any) -> Any:
    """Constrains the first axis to the stages; the other axes are unconstrained."""

    def one(x: jax.Array) -> jax.Array:
        open_ = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
        return jax.lax.with_sharding_constraint(x, PartitionSpec("pipeline", *open_))

    return jax.tree.map(one, x_S)
