"""Rows go to the devices that have their experts, and what these return comes back.

Each device has sorted the choices of its tokens by expert. It sends to every other device the rows of that one's
experts, and gets those of its own. Rows arrive in the order of experts, each expert's in the order of their senders, so
that they are multiplied as they are.

    device 0   a a a c d        experts a, b on device 0, c, d on device 1        device 0   a a a|a b b
    device 1   a b b d d                                                          device 1   c|d|d d

Which rows go where is known from the counts [W, E] of all devices, which are gathered first. However uneven the
routing, nothing is dropped and memory is the same: a device takes R rows at a time, and all take as many turns as the
fullest one wants. The backward pass sends the rows again, and their gradients both ways.

Each row of a token's choices is sent once: k · (W − 1) / W rows a token, where gathering all tokens sends W − 1.

Shapes: W devices · M = T · k rows of a device, sorted by expert · R rows of a turn · D embedding width ·
  F hidden width of an expert · E experts, E / W of a device
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxpt.parallel import compiler


class Plan(NamedTuple):
    """Where all rows are, before and after; the same on every device."""

    counts_WxE: jax.Array
    """Rows of each device for each expert."""
    starts_WxE: jax.Array
    """First of them among the rows of that device."""
    places_WxE: jax.Array
    """First of them among all rows that come to the expert's device."""
    turns: jax.Array


def plan(sizes_E: jax.Array, rows: int, axis: str) -> Plan:
    """Gathers the counts and says where rows go.

    Args:
      sizes_E: int32, this device's rows for each expert.
      rows: R.
      axis: name of the mesh axis.
    """
    counts_WxE = jax.lax.all_gather(sizes_E, axis)
    devices, experts = counts_WxE.shape
    totals_WxO = counts_WxE.sum(0).reshape(devices, experts // devices)
    first_E = (jnp.cumsum(totals_WxO, axis=1) - totals_WxO).reshape(-1)
    return Plan(
        counts_WxE,
        starts_WxE=jnp.cumsum(counts_WxE, axis=1) - counts_WxE,
        places_WxE=first_E + jnp.cumsum(counts_WxE, axis=0) - counts_WxE,
        turns=(totals_WxO.sum(1).max() + rows - 1) // rows,
    )


class Turn(NamedTuple):
    """The pieces of one turn, as `all_to_all` wants them: on the way there, and on the way back."""

    there: tuple[jax.Array, ...]
    back: tuple[jax.Array, ...]
    sizes_O: jax.Array
    """Rows of each expert of this device."""


def turn_of(plan: Plan, number: jax.Array, rows: int, axis: str) -> Turn:
    """What is sent in a turn: of the rows that come to a device those from `number` · R on, at most R.

    Args:
      plan: of all turns.
      number: of the turn.
      rows: R.
      axis: name of the mesh axis.
    """
    devices, experts = plan.counts_WxE.shape
    here = jax.lax.axis_index(axis)
    begins_WxE = plan.places_WxE - number * rows
    edges = (jnp.clip(edge_WxE, 0, rows) for edge_WxE in (begins_WxE, begins_WxE + plan.counts_WxE))
    begins_WxE, ends_WxE = edges
    sizes_WxE = ends_WxE - begins_WxE
    starts_WxE = plan.starts_WxE + jnp.clip(number * rows - plan.places_WxE, 0, plan.counts_WxE)

    def sent(x_WxE: jax.Array) -> jax.Array:
        return x_WxE[here]

    def received(x_WxE: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x_WxE, here * (experts // devices), experts // devices, 1).reshape(-1)

    return Turn(
        there=(sent(starts_WxE), sent(sizes_WxE), sent(begins_WxE), received(sizes_WxE)),
        back=(received(begins_WxE), received(sizes_WxE), received(starts_WxE), sent(sizes_WxE)),
        sizes_O=received(sizes_WxE).reshape(devices, -1).sum(0),
    )


FeedForward = Callable[..., jax.Array]
"""(rows [R, D], kernels, sizes of experts, factors of dropout [R, F] or None) → [R, D]."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def experts(
    feed_forward: FeedForward, axis: str, x_MxD: jax.Array, weights_Mx1: jax.Array, keep_MxF: jax.Array | None,
    kernels: Mapping[str, jax.Array], sizes_E: jax.Array,
) -> jax.Array:  # fmt: skip
    """What each row's expert makes of it, times the row's weight.

    Args:
      feed_forward: of this device's experts.
      axis: name of the mesh axis along which devices have different experts and rows.
      x_MxD: rows in the order of experts.
      weights_Mx1: of the rows.
      keep_MxF: factors of dropout; None for no dropout.
      kernels: of this device's experts.
      sizes_E: int32, rows of each of all experts; rows after the last one's give 0.

    Returns:
      [M, D].
    """
    rows, given = len(x_MxD), tuple(x for x in (x_MxD, weights_Mx1, keep_MxF) if x is not None)
    where = plan(sizes_E, rows, axis)

    def turn(number: jax.Array, y_MxD: jax.Array) -> jax.Array:
        now = turn_of(where, number, rows, axis)
        x_RxD, weights_Rx1, *keep = (_sent(x, now.there, axis) for x in given)
        y_RxD = feed_forward(x_RxD, kernels, now.sizes_O, *keep or (None,)) * weights_Rx1
        return all_to_all(y_RxD, y_MxD, *now.back, axis)

    return jax.lax.fori_loop(0, where.turns, turn, jnp.zeros_like(x_MxD))


def _sent(x_MxD: jax.Array, pieces: tuple[jax.Array, ...], axis: str) -> jax.Array:
    """The rows [R, D] that come to this device in a turn, zeros after them; R is M."""
    return all_to_all(x_MxD, jnp.zeros_like(x_MxD), *pieces, axis)


def _forward(feed_forward: FeedForward, axis: str, *inputs: jax.Array) -> tuple[jax.Array, tuple]:
    return experts(feed_forward, axis, *inputs), inputs


def _backward(feed_forward: FeedForward, axis: str, inputs: tuple, dy_MxD: jax.Array) -> tuple:
    x_MxD, weights_Mx1, keep_MxF, kernels, sizes_E = inputs
    rows, given = len(x_MxD), tuple(x for x in (x_MxD, weights_Mx1, dy_MxD, keep_MxF) if x is not None)
    where = plan(sizes_E, rows, axis)

    def turn(number: jax.Array, sums: tuple) -> tuple:
        now = turn_of(where, number, rows, axis)
        x_RxD, weights_Rx1, dy_RxD, *keep = (_sent(x, now.there, axis) for x in given)

        def of_rows(x_RxD: jax.Array, weights_Rx1: jax.Array, kernels: Mapping[str, jax.Array]) -> jax.Array:
            return feed_forward(x_RxD, kernels, now.sizes_O, *keep or (None,)) * weights_Rx1

        dx_RxD, dweights_Rx1, dkernels = jax.vjp(of_rows, x_RxD, weights_Rx1, kernels)[1](dy_RxD)
        dx_MxD, dweights_Mx1, sum_of_kernels = sums
        return (
            all_to_all(dx_RxD, dx_MxD, *now.back, axis),
            all_to_all(dweights_Rx1, dweights_Mx1, *now.back, axis),
            jax.tree.map(jnp.add, sum_of_kernels, dkernels),
        )

    zeros = jax.tree.map(jnp.zeros_like, (x_MxD, weights_Mx1, kernels))
    dx_MxD, dweights_Mx1, dkernels = jax.lax.fori_loop(0, where.turns, turn, zeros)
    return dx_MxD, dweights_Mx1, None, dkernels, None


experts.defvjp(_forward, _backward)


def all_to_all(
    x_MxD: jax.Array, into_RxD: jax.Array, starts_N: jax.Array, sizes_N: jax.Array, places_N: jax.Array,
    received_N: jax.Array, axis: str,
) -> jax.Array:  # fmt: skip
    """Sends pieces of an array to the devices along a mesh axis, which write them into theirs.

    XLA has `ragged-all-to-all` for TPUs and GPUs, and for no CPU. There every device gathers the arrays of all and
    takes its pieces, so that what is built on it is tested where no accelerator is. There are N pieces, N / W of them
    for each device.

    Args:
      x_MxD: rows to send.
      into_RxD: what the received rows are written into.
      starts_N: int32, first row of each piece in `x_MxD`; the first N / W pieces go to device 0, and so on.
      sizes_N: rows of each piece.
      places_N: first row of each piece in the receiver's `into_RxD`; pieces do not overlap there.
      received_N: rows of each piece that this device gets, the first N / W of them from device 0, and so on.
      axis: name of the mesh axis.

    Returns:
      [R, D].
    """
    if compiler.platform() == "cpu":
        return _gathered(x_MxD, into_RxD, starts_N, sizes_N, places_N, axis)
    return jax.lax.ragged_all_to_all(x_MxD, into_RxD, starts_N, sizes_N, places_N, received_N, axis_name=axis)


def _gathered(
    x_MxD: jax.Array, into_RxD: jax.Array, starts_N: jax.Array, sizes_N: jax.Array, places_N: jax.Array, axis: str
) -> jax.Array:
    devices, M = jax.lax.axis_size(axis), len(x_MxD)
    pieces = jnp.stack([starts_N, sizes_N, places_N]).reshape(3, devices, -1)
    # [3, W · N/W]: of all devices the pieces for this one
    pieces = jax.lax.all_to_all(pieces, axis, split_axis=1, concat_axis=1, tiled=True)
    starts_N, sizes_N, places_N = pieces.reshape(3, -1)
    starts_N += M * (jnp.arange(len(starts_N)) // (len(starts_N) // devices))
    row_Rx1 = jnp.arange(len(into_RxD))[:, None]
    is_of_RxN = (row_Rx1 >= places_N) & (row_Rx1 < places_N + sizes_N)
    source_R = jnp.where(is_of_RxN, starts_N + row_Rx1 - places_N, 0).sum(1)
    received_RxD = jax.lax.all_gather(x_MxD, axis, tiled=True)[source_R]
    return jnp.where(is_of_RxN.any(1)[:, None], received_RxD, into_RxD)
