"""All-to-all of pieces of different lengths: XLA's on TPUs and GPUs, the same by gathering everything on a CPU.

XLA has `ragged-all-to-all` for no CPU. There every device gathers the arrays of all and takes its pieces, so that what
is built on it is tested where no accelerator is.

Shapes: W devices of the mesh axis · N pieces, N / W of them for each device · M rows to send · R rows to receive
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxpt.parallel import compiler


def all_to_all(
    x_MxD: jax.Array, into_RxD: jax.Array, starts_N: jax.Array, sizes_N: jax.Array, places_N: jax.Array,
    received_N: jax.Array, axis: str,
) -> jax.Array:  # fmt: skip
    """Sends pieces of an array to the devices along a mesh axis, which write them into theirs.

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
