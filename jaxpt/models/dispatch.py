"""Sends tokens to their experts and adds up what these return, on one device or on a mesh with an axis `expert`.

Every device sorts its tokens by expert and multiplies the rows of each expert with its weights. The devices along the
mesh axis `expert` have different experts and different rows of the batch. So the tokens of these devices are gathered,
each device computes what its experts make of all of them, and the sums go back to where the tokens came from. That is
exact for any routing: no buffer can overflow. Kernels are gathered along `fsdp`, and split along their hidden width
over `tensor`.

Shapes: B batch · L length · T tokens of a device · M = T · k rows, sorted by expert · D embedding width ·
  F hidden width of an expert · E experts · k experts of a token
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpt.models import grouped
from jaxpt.models.layers import ACTIVATIONS, Activation, from_inputs, mesh_axes


def experts(
    x_BxLxD: jax.Array,
    ids_BxLxk: jax.Array,
    weights_BxLxk: jax.Array,
    kernels: Mapping[str, jax.Array],
    activation: Activation,
    implementation: grouped.Implementation = "auto",
    *,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """y = Σ_k weight_k · f_{id_k}(x), for every token.

    Args:
      x_BxLxD: hidden states.
      ids_BxLxk: int32, the experts of each token; E where a choice is none.
      weights_BxLxk: their weights, of the dtype of `x`.
      kernels: "up" [E, D, F], "down" [E, F, D] and of gated experts "gate" [E, D, F], of the dtype of `x`.
      activation: of the hidden states.
      implementation: see `jaxpt.models.grouped.product`.
      dropout: rate on the hidden activations.
      dropout_key: random key; None for no dropout.

    Returns:
      [B, L, D].
    """
    keep_BxLxkxF = None
    if dropout_key is not None and dropout > 0:  # drawn for all devices: it depends on no mesh
        keep_BxLxkxF = jax.random.bernoulli(dropout_key, 1 - dropout, (*ids_BxLxk.shape, kernels["up"].shape[2]))
        keep_BxLxkxF = keep_BxLxkxF.astype(x_BxLxD.dtype) / (1 - dropout)
    run = functools.partial(_run, activation=activation, implementation=implementation)
    rows, length = _dividing("batch", x_BxLxD.shape[0]), _dividing("length", x_BxLxD.shape[1])
    expert, hidden = tuple(mesh_axes("expert")), tuple(mesh_axes("mlp"))
    manual = dict.fromkeys((*rows, *length, *expert, *hidden))
    if not manual:
        return run(x_BxLxD, ids_BxLxk, weights_BxLxk, kernels, keep_BxLxkxF)
    of_tokens = PartitionSpec(rows or None, length or None)
    of_kernels = {name: PartitionSpec(expert or None, None, hidden or None) for name in kernels}
    of_kernels["down"] = PartitionSpec(expert or None, hidden or None)
    shared_rows = tuple(axis for axis in expert if axis in rows)
    run = functools.partial(run, expert=expert, gathered=shared_rows, hidden=hidden)
    of_keep = PartitionSpec(rows or None, length or None, None, hidden or None)
    in_specs = (of_tokens, of_tokens, of_tokens, of_kernels, None if keep_BxLxkxF is None else of_keep)
    manual |= dict.fromkeys(mesh_axes("layers"))  # stages of a pipeline, over which the arguments are mapped
    mapped = jax.shard_map(run, in_specs=in_specs, out_specs=of_tokens, axis_names={*manual}, check_vma=False)
    return mapped(x_BxLxD, ids_BxLxk, weights_BxLxk, dict(kernels), keep_BxLxkxF)


def _dividing(name: str, size: int) -> tuple[str, ...]:
    """The mesh axes of a logical axis, none if they do not divide its size: then all devices have all of it."""
    axes = mesh_axes(name)
    return () if size % math.prod(axes.values()) else tuple(axes)


def _run(
    x_BxLxD: jax.Array, ids_BxLxk: jax.Array, weights_BxLxk: jax.Array, kernels: Mapping[str, jax.Array],
    keep_BxLxkxF: jax.Array | None, *, activation: Activation, implementation: grouped.Implementation,
    expert: tuple[str, ...] = (), gathered: tuple[str, ...] = (), hidden: tuple[str, ...] = (),
) -> jax.Array:  # fmt: skip
    """What one device does.

    Args:
      x_BxLxD: its tokens.
      ids_BxLxk: numbers among all experts.
      weights_BxLxk: of its tokens.
      kernels: of its experts.
      keep_BxLxkxF: factors of dropout, of its tokens; None for no dropout.
      activation: of the hidden states.
      implementation: of products.
      expert: mesh axes along which devices have different experts.
      gathered: those of `expert` along which they have different tokens, too.
      hidden: mesh axes along which they have different hidden units.
    """
    shape, k = x_BxLxD.shape, ids_BxLxk.shape[2]
    tokens = [x.reshape(-1, x.shape[-1]) for x in (x_BxLxD, ids_BxLxk, weights_BxLxk)]
    if keep_BxLxkxF is not None:
        tokens.append(keep_BxLxkxF.reshape(-1, k, keep_BxLxkxF.shape[3]))
    if gathered:
        tokens = [jax.lax.all_gather(x, gathered, tiled=True) for x in tokens]
    x_TxD, ids_Txk, weights_Txk, *keep = tokens
    if expert:
        count = kernels["up"].shape[0]
        ids_Txk = ids_Txk - jax.lax.axis_index(expert) * count
        ids_Txk = jnp.where((ids_Txk >= 0) & (ids_Txk < count), ids_Txk, count)
    y_TxD = _of_own_experts(x_TxD, ids_Txk, weights_Txk, kernels, activation, implementation, *keep)
    if gathered:
        y_TxD = jax.lax.psum_scatter(y_TxD, gathered, tiled=True)
    summed = (*(axis for axis in expert if axis not in gathered), *hidden)
    return (jax.lax.psum(y_TxD, summed) if summed else y_TxD).reshape(shape)


def _of_own_experts(
    x_TxD: jax.Array, ids_Txk: jax.Array, weights_Txk: jax.Array, kernels: Mapping[str, jax.Array],
    activation: Activation, implementation: grouped.Implementation, keep_TxkxF: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """Sorts by expert, multiplies, and undoes the sorting; an id beyond the experts gives nothing."""
    count, k = kernels["up"].shape[0], ids_Txk.shape[1]
    ids_M = ids_Txk.reshape(-1)
    order_M = jnp.argsort(ids_M, stable=True)
    inverse_M = jnp.argsort(order_M)
    sizes_E = (ids_M[:, None] == jnp.arange(count)).sum(0, dtype=jnp.int32)
    product = functools.partial(grouped.product, sizes_G=sizes_E, implementation=implementation)

    x_MxD = grouped.permute(jnp.repeat(x_TxD, k, axis=0), order_M, inverse_M)
    activate = ACTIVATIONS[activation]
    if "gate" in kernels:
        glu = from_inputs(lambda gate, up: activate(gate) * up)
        h_MxF = glu(product(x_MxD, kernels["gate"]), product(x_MxD, kernels["up"]))
    else:
        h_MxF = activate(product(x_MxD, kernels["up"]))
    if keep_TxkxF is not None:
        h_MxF *= jnp.take(keep_TxkxF.reshape(-1, h_MxF.shape[1]), order_M, axis=0)
    y_MxD = grouped.permute(product(h_MxF, kernels["down"]), inverse_M, order_M)
    return (y_MxD.reshape(-1, k, y_MxD.shape[1]) * weights_Txk[..., None]).sum(1)
