"""Sends tokens to their experts and adds up what these return, on one device or on a mesh with an axis `expert`.

Every device sorts its tokens by expert and multiplies the rows of each expert with its weights. The devices along the
mesh axis `expert` have different experts and different rows of the batch. There are two ways:

    gathered   the tokens of these devices are gathered, each device computes what its experts make of all of them, and
               the sums go back to where the tokens came from
    ragged     each row goes to the device of its expert and comes back (`jaxpt.models.exchange`)

Both are exact for any routing, and take the same memory for any: a device works on R rows at a time, as many as are its
own if all devices have the same number. With more it takes another turn. Kernels are gathered along `fsdp`, and split
along their hidden width over `tensor`.

Shapes: B batch · L length · T tokens of a device · M = T · k rows, sorted by expert · R rows of a turn ·
  D embedding width · F hidden width of an expert · E experts · k experts of a token
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpt.models import exchange, grouped, threefry
from jaxpt.models.layers import ACTIVATIONS, Activation, dividing_axes, from_inputs, mesh_axes
from jaxpt.parallel import staged

Way = Literal["auto", "gathered", "ragged"]
SCOPE = "dispatch"
"""Name under which plans and profiles show how tokens are sent."""


def experts(
    x_BxLxD: jax.Array,
    ids_BxLxk: jax.Array,
    weights_BxLxk: jax.Array,
    kernels: Mapping[str, jax.Array],
    activation: Activation,
    implementation: grouped.Implementation = "auto",
    *,
    way: Way = "auto",
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
      way: how tokens are sent; `auto` is `gathered`.
      dropout: rate on the hidden activations.
      dropout_key: random key; None for no dropout.

    Returns:
      [B, L, D].
    """
    keep_BxLxkxF = None
    if dropout_key is not None and dropout > 0:  # drawn for all devices: it depends on no mesh
        keep_BxLxkxF = threefry.bernoulli(dropout_key, 1 - dropout, (*ids_BxLxk.shape, kernels["up"].shape[2]))
        keep_BxLxkxF = keep_BxLxkxF.astype(x_BxLxD.dtype) / (1 - dropout)
    run = functools.partial(_run, activation=activation, implementation=implementation)
    rows, length = dividing_axes("batch", x_BxLxD.shape[0]), dividing_axes("length", x_BxLxD.shape[1])
    expert, width, hidden = (tuple(mesh_axes(name)) for name in ("expert", "expert_embed", "mlp"))
    manual = dict.fromkeys((*rows, *length, *expert, *width, *hidden))
    if not manual:
        return run(x_BxLxD, ids_BxLxk, weights_BxLxk, kernels, keep_BxLxkxF)
    of_tokens = PartitionSpec(rows or None, length or None)
    of_kernels = {name: PartitionSpec(expert or None, width or None, hidden or None) for name in kernels}
    of_kernels["down"] = PartitionSpec(expert or None, hidden or None, width or None)
    shared_rows = tuple(axis for axis in expert if axis in rows)
    if way == "ragged" and shared_rows == expert and len(expert) == 1:
        run = functools.partial(run, sent=expert, width=width, hidden=hidden)
    else:
        run = functools.partial(run, expert=expert, gathered=shared_rows, width=width, hidden=hidden)
    of_keep = PartitionSpec(rows or None, length or None, None, hidden or None)
    in_specs = (of_tokens, of_tokens, of_tokens, of_kernels, None if keep_BxLxkxF is None else of_keep)
    manual |= dict.fromkeys(mesh_axes("layers"))  # stages of a pipeline, over which the arguments are mapped
    mapped = jax.shard_map(run, in_specs=in_specs, out_specs=of_tokens, axis_names={*manual}, check_vma=False)
    return mapped(x_BxLxD, ids_BxLxk, weights_BxLxk, dict(kernels), keep_BxLxkxF)


def _run(
    x_BxLxD: jax.Array, ids_BxLxk: jax.Array, weights_BxLxk: jax.Array, kernels: Mapping[str, jax.Array],
    keep_BxLxkxF: jax.Array | None, *, activation: Activation, implementation: grouped.Implementation,
    expert: tuple[str, ...] = (), gathered: tuple[str, ...] = (), sent: tuple[str, ...] = (),
    width: tuple[str, ...] = (), hidden: tuple[str, ...] = (),
) -> jax.Array:  # fmt: skip
    """What one device does.

    Args:
      x_BxLxD: its tokens.
      ids_BxLxk: numbers among all experts.
      weights_BxLxk: of its tokens.
      kernels: its parts of its experts'.
      keep_BxLxkxF: factors of dropout, of its tokens; None for no dropout.
      activation: of the hidden states.
      implementation: of products.
      expert: mesh axes along which devices have different experts.
      gathered: those of `expert` along which they have different tokens, too.
      sent: instead of both, the axis along which rows are sent.
      width: mesh axes along which they have other parts of the embedding width of kernels.
      hidden: mesh axes along which they have different hidden units.
    """
    shape, k = x_BxLxD.shape, ids_BxLxk.shape[2]
    tokens = [x.reshape(-1, x.shape[-1]) for x in (x_BxLxD, ids_BxLxk, weights_BxLxk)]
    if keep_BxLxkxF is not None:
        tokens.append(keep_BxLxkxF.reshape(-1, k, keep_BxLxkxF.shape[3]))
    if gathered:
        with jax.named_scope(SCOPE):
            tokens = [jax.lax.all_gather(x, gathered, tiled=True) for x in tokens]
    if width:
        kernels = {name: _whole(kernel, width, 2 if name == "down" else 1) for name, kernel in kernels.items()}
    x_TxD, ids_Txk, weights_Txk, *keep = tokens
    keep_TxkxF = keep[0] if keep else None
    if expert:
        count = kernels["up"].shape[0]
        ids_Txk = ids_Txk - jax.lax.axis_index(expert) * count
        ids_Txk = jnp.where((ids_Txk >= 0) & (ids_Txk < count), ids_Txk, count)
    feed_forward = functools.partial(_feed_forward, activation, implementation)
    if sent:
        y_TxD = _exchanged(feed_forward, *sent, x_TxD, ids_Txk, weights_Txk, kernels, keep_TxkxF)
    elif expert:
        y_TxD = _in_turns(feed_forward, jax.lax.axis_size(expert), x_TxD, ids_Txk, weights_Txk, kernels, keep_TxkxF)
    else:
        y_TxD = _at_once(feed_forward, x_TxD, ids_Txk, weights_Txk, kernels, keep_TxkxF)
    summed = (*(axis for axis in expert if axis not in gathered), *hidden)
    with jax.named_scope(SCOPE):
        y_TxD = jax.lax.psum_scatter(y_TxD, gathered, tiled=True) if gathered else y_TxD
        return (jax.lax.psum(y_TxD, summed) if summed else y_TxD).reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _whole(kernel: jax.Array, axes: tuple[str, ...], dimension: int) -> jax.Array:
    """A kernel of three axes, gathered along one; its gradient is scattered along that, where need be in stages."""
    return staged.all_gather(kernel, axes, dimension)


def _scattered(axes: tuple[str, ...], dimension: int, _: None, dy: jax.Array) -> tuple[jax.Array]:
    rows = jnp.moveaxis(dy, dimension, 0)
    part = staged.reduce_scatter(rows.reshape(len(rows), -1), axes, 0)
    return (jnp.moveaxis(part.reshape(-1, *rows.shape[1:]), 0, dimension),)


_whole.defvjp(lambda kernel, axes, dimension: (_whole(kernel, axes, dimension), None), _scattered)


def _feed_forward(
    activation: Activation, implementation: grouped.Implementation, x_MxD: jax.Array, kernels: Mapping[str, jax.Array],
    sizes_E: jax.Array, keep_MxF: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """What each row's expert makes of it; rows come in the order of experts, those after the last expert's give 0."""
    product = functools.partial(grouped.product, sizes_G=sizes_E, implementation=implementation)
    activate = ACTIVATIONS[activation]
    if "gate" in kernels:
        glu = from_inputs(lambda gate, up: activate(gate) * up)
        h_MxF = glu(product(x_MxD, kernels["gate"]), product(x_MxD, kernels["up"]))
    else:
        h_MxF = activate(product(x_MxD, kernels["up"]))
    return product(h_MxF if keep_MxF is None else h_MxF * keep_MxF, kernels["down"])


def _sorted(ids_Txk: jax.Array, experts: int) -> tuple[jax.Array, jax.Array]:
    """(the choices in the order of experts [M], choices of each [E]); an id beyond the experts comes last."""
    ids_M = ids_Txk.reshape(-1)
    return jnp.argsort(ids_M, stable=True), (ids_M[:, None] == jnp.arange(experts)).sum(0, dtype=jnp.int32)


def _at_once(
    feed_forward: Callable[..., jax.Array], x_TxD: jax.Array, ids_Txk: jax.Array, weights_Txk: jax.Array,
    kernels: Mapping[str, jax.Array], keep_TxkxF: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """Sorts by expert, multiplies, and undoes the sorting; an id beyond the experts gives nothing."""
    k = ids_Txk.shape[1]
    order_M, sizes_E = _sorted(ids_Txk, kernels["up"].shape[0])
    inverse_M = jnp.argsort(order_M)
    x_MxD = grouped.permute(jnp.repeat(x_TxD, k, axis=0), order_M, inverse_M)
    y_MxD = feed_forward(x_MxD, kernels, sizes_E, _of_choices(keep_TxkxF, order_M))
    y_MxD = grouped.permute(y_MxD, inverse_M, order_M)
    return (y_MxD.reshape(-1, k, y_MxD.shape[1]) * weights_Txk[..., None]).sum(1)


def _exchanged(
    feed_forward: Callable[..., jax.Array], axis: str, x_TxD: jax.Array, ids_Txk: jax.Array, weights_Txk: jax.Array,
    kernels: Mapping[str, jax.Array], keep_TxkxF: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """As `_at_once`, where the rows of each expert are sent to its device."""
    k = ids_Txk.shape[1]
    order_M, sizes_E = _sorted(ids_Txk, kernels["up"].shape[0] * jax.lax.axis_size(axis))
    inverse_M = jnp.argsort(order_M)
    x_MxD = grouped.permute(jnp.repeat(x_TxD, k, axis=0), order_M, inverse_M)
    weights_Mx1 = grouped.permute(weights_Txk.reshape(-1, 1), order_M, inverse_M)
    with jax.named_scope(SCOPE):
        keep_MxF = _of_choices(keep_TxkxF, order_M)
        y_MxD = exchange.experts(feed_forward, axis, x_MxD, weights_Mx1, keep_MxF, kernels, sizes_E)
    return grouped.permute(y_MxD, inverse_M, order_M).reshape(-1, k, x_TxD.shape[1]).sum(1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _in_turns(
    feed_forward: Callable[..., jax.Array], ways: int, x_TxD: jax.Array, ids_Txk: jax.Array, weights_Txk: jax.Array,
    kernels: Mapping[str, jax.Array], keep_TxkxF: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """As `_at_once`, for rows of which about one of `ways` is of these experts: R = M / ways of them at a time.

    The number of turns is known at run time alone. Nothing of them is kept: the backward pass computes them again.
    """
    count, rows_of = _turns(ways, ids_Txk, kernels)

    def turn(n: jax.Array, y_TxD: jax.Array) -> jax.Array:
        token_R, choice_R, sizes_E = rows_of(n)
        y_RxD = feed_forward(x_TxD[token_R], kernels, sizes_E, _of_choices(keep_TxkxF, choice_R))
        return y_TxD.at[token_R].add(y_RxD * weights_Txk.reshape(-1)[choice_R, None])

    return jax.lax.fori_loop(0, count, turn, jnp.zeros_like(x_TxD))


def _of_choices(x_TxkxF: jax.Array | None, choice_R: jax.Array) -> jax.Array | None:
    return None if x_TxkxF is None else x_TxkxF.reshape(-1, x_TxkxF.shape[2])[choice_R]


def _turns(
    ways: int, ids_Txk: jax.Array, kernels: Mapping[str, jax.Array]
) -> tuple[jax.Array, Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]]:
    """(number of turns, from a turn to the tokens of its rows [R], their choices among T · k [R], sizes [E])."""
    order_M, sizes_E = _sorted(ids_Txk, kernels["up"].shape[0])
    size = math.ceil(len(order_M) / ways)
    order_M, ends_E = jnp.pad(order_M, (0, ways * size - len(order_M))), jnp.cumsum(sizes_E)

    def rows(n: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        choice_R = jax.lax.dynamic_slice_in_dim(order_M, n * size, size)
        first_E, last_E = (jnp.clip(edge_E - n * size, 0, size) for edge_E in (ends_E - sizes_E, ends_E))
        return choice_R // ids_Txk.shape[1], choice_R, last_E - first_E

    return (ends_E[-1] + size - 1) // size, rows


def _forward(
    feed_forward: Callable[..., jax.Array], ways: int, *inputs: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _in_turns(feed_forward, ways, *inputs), inputs


def _backward(feed_forward: Callable[..., jax.Array], ways: int, inputs: tuple, dy_TxD: jax.Array) -> tuple:
    x_TxD, ids_Txk, weights_Txk, kernels, keep_TxkxF = inputs
    count, rows_of = _turns(ways, ids_Txk, kernels)

    def turn(n: jax.Array, sums: tuple) -> tuple:
        token_R, choice_R, sizes_E = rows_of(n)
        keep_RxF = _of_choices(keep_TxkxF, choice_R)

        def of_rows(x_RxD: jax.Array, weights_R: jax.Array, kernels: Mapping[str, jax.Array]) -> jax.Array:
            return feed_forward(x_RxD, kernels, sizes_E, keep_RxF) * weights_R[:, None]

        given = x_TxD[token_R], weights_Txk.reshape(-1)[choice_R], kernels
        dx_RxD, dweights_R, dkernels = jax.vjp(of_rows, *given)[1](dy_TxD[token_R])
        dx_TxD, dweights_M, sum_of_kernels = sums
        dkernels = jax.tree.map(jnp.add, sum_of_kernels, dkernels)
        return dx_TxD.at[token_R].add(dx_RxD), dweights_M.at[choice_R].add(dweights_R), dkernels

    zeros = jax.tree.map(jnp.zeros_like, (x_TxD, weights_Txk.reshape(-1), kernels))
    dx_TxD, dweights_M, dkernels = jax.lax.fori_loop(0, count, turn, zeros)
    return dx_TxD, None, dweights_M.reshape(weights_Txk.shape), dkernels, None


_in_turns.defvjp(_forward, _backward)
