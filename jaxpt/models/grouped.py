"""Products of rows with the weights of a group each, such as tokens with those of their expert.

    rows   a a a b c c      sizes 3 1 2      out = a·W_0, a·W_0, a·W_0, b·W_1, c·W_2, c·W_2

Two implementations: `ragged`, XLA's `ragged_dot`, which TPUs have kernels for; and `blocks`, a loop over blocks of rows
of one group. Without kernels XLA multiplies all rows with all groups' weights, so a CPU takes `blocks`.

Shapes: M rows · G groups · D input width · F output width · b rows of a block
"""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from jaxpt.parallel import compiler

Implementation = Literal["auto", "ragged", "blocks"]
LARGEST_BLOCK, SMALLEST_BLOCK = 256, 8


def product(
    x_MxD: jax.Array, kernel_GxDxF: jax.Array, sizes_G: jax.Array, implementation: Implementation = "auto"
) -> jax.Array:
    """out[i] = x[i] · W[g] for the group g of row i; rows come in the order of groups.

    Args:
      x_MxD: the rows of group 0, then those of group 1, …; rows after the last group's give zeros.
      kernel_GxDxF: W, of the same dtype.
      sizes_G: int32, rows of each group; their sum is at most M.
      implementation: "ragged" or "blocks"; `auto` is `blocks` on a CPU.

    Returns:
      [M, F].

    Example:
      >>> print(product(jnp.ones((3, 1)), jnp.array([[[2.0]], [[5.0]]]), jnp.array([1, 1]))[:, 0])
      [2. 5. 0.]
    """
    if implementation == "auto":
        implementation = "blocks" if compiler.platform() == "cpu" else "ragged"
    if implementation == "blocks":
        return _blocks(x_MxD, kernel_GxDxF, sizes_G)
    # What a kernel leaves in rows of no group is not defined, nor is their gradient.
    is_real_Mx1 = (jnp.arange(len(x_MxD)) < sizes_G.sum())[:, None]
    return jnp.where(is_real_Mx1, jax.lax.ragged_dot(jnp.where(is_real_Mx1, x_MxD, 0), kernel_GxDxF, sizes_G), 0)


def rows_of_block(rows: int, groups: int) -> int:
    """b: a power of two near the rows of a group, so that few blocks are partly empty.

    Example:
      >>> rows_of_block(4096, 8), rows_of_block(64, 64)
      (256, 8)
    """
    size = SMALLEST_BLOCK
    while 2 * size <= min(rows // groups, LARGEST_BLOCK):
        size *= 2
    return size


def _schedule(rows: int, sizes_G: jax.Array) -> tuple[int, jax.Array, jax.Array, jax.Array, jax.Array]:
    """(b, number of blocks, and of each block its group, its first row and its rows): blocks in the order of rows."""
    groups = len(sizes_G)
    size = rows_of_block(rows, groups)
    blocks_G = (sizes_G + size - 1) // size
    ends_G = jnp.cumsum(blocks_G)
    block_N = jnp.arange(rows // size + groups)  # as many as there can be
    group_N = jnp.minimum(jnp.searchsorted(ends_G, block_N, side="right"), groups - 1)
    within_N = block_N - (ends_G - blocks_G)[group_N]
    first_N = (jnp.cumsum(sizes_G) - sizes_G)[group_N] + within_N * size
    rows_N = jnp.clip(sizes_G[group_N] - within_N * size, 0, size)
    return size, ends_G[-1], group_N, first_N, rows_N


@jax.custom_vjp
def _blocks(x_MxD: jax.Array, kernel_GxDxF: jax.Array, sizes_G: jax.Array) -> jax.Array:
    return _times(x_MxD, kernel_GxDxF, sizes_G, contract=0)


def _times(x_MxD: jax.Array, kernel_GxDxF: jax.Array, sizes_G: jax.Array, contract: Literal[0, 1]) -> jax.Array:
    """x · W, or x · Wᵀ where `contract` is 1: block by block, each written in place."""
    M, width = len(x_MxD), kernel_GxDxF.shape[2 - contract]
    size, count, group_N, first_N, _ = _schedule(M, sizes_G)
    x_MxD = jnp.pad(x_MxD, ((0, size), (0, 0)))

    def block(n: jax.Array, y_MxF: jax.Array) -> jax.Array:
        x_bxD = jax.lax.dynamic_slice_in_dim(x_MxD, first_N[n], size)
        kernel = jax.lax.dynamic_index_in_dim(kernel_GxDxF, group_N[n], keepdims=False)
        y_bxF = jax.lax.dot_general(x_bxD, kernel, (((1,), (contract,)), ((), ())))
        # Rows beyond the block's own are the next block's, which overwrites them.
        return jax.lax.dynamic_update_slice_in_dim(y_MxF, y_bxF, first_N[n], 0)

    y_MxF = jax.lax.fori_loop(0, count, block, jnp.zeros((M + size, width), x_MxD.dtype))[:M]
    return jnp.where((jnp.arange(M) < sizes_G.sum())[:, None], y_MxF, 0)


def _forward(x_MxD: jax.Array, kernel_GxDxF: jax.Array, sizes_G: jax.Array) -> tuple[jax.Array, tuple]:
    return _blocks(x_MxD, kernel_GxDxF, sizes_G), (x_MxD, kernel_GxDxF, sizes_G)


def _backward(residuals: tuple, dy_MxF: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x_MxD, kernel_GxDxF, sizes_G = residuals
    dx_MxD = _times(dy_MxF, kernel_GxDxF, sizes_G, contract=1)
    size, count, group_N, first_N, rows_N = _schedule(len(x_MxD), sizes_G)
    padded_x, padded_dy = (jnp.pad(array, ((0, size), (0, 0))) for array in (x_MxD, dy_MxF))

    def block(n: jax.Array, sum_GxDxF: jax.Array) -> jax.Array:
        cut = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=first_N[n], slice_size=size)
        x_bxD = jnp.where((jnp.arange(size) < rows_N[n])[:, None], cut(padded_x), 0)
        dkernel = jnp.matmul(x_bxD.T, cut(padded_dy), preferred_element_type=jnp.float32)
        return sum_GxDxF.at[group_N[n]].add(dkernel)

    zeros_GxDxF = jnp.zeros(kernel_GxDxF.shape, jnp.float32)  # sums over many blocks lose digits in bfloat16
    dkernel_GxDxF = jax.lax.fori_loop(0, count, block, zeros_GxDxF)
    return dx_MxD, dkernel_GxDxF.astype(kernel_GxDxF.dtype), None


_blocks.defvjp(_forward, _backward)


@jax.custom_vjp
def permute(x_MxD: jax.Array, order_M: jax.Array, inverse_M: jax.Array) -> jax.Array:
    """x[order], for a permutation and its inverse: the gradient is a gather too, not a sum of scattered rows.

    Example:
      >>> print(permute(jnp.array([[5.0], [7.0], [9.0]]), jnp.array([2, 0, 1]), jnp.array([1, 2, 0]))[:, 0])
      [9. 5. 7.]
    """
    return jnp.take(x_MxD, order_M, axis=0)


permute.defvjp(
    lambda x_MxD, order_M, inverse_M: (permute(x_MxD, order_M, inverse_M), inverse_M),
    lambda inverse_M, dy_MxD: (jnp.take(dy_MxD, inverse_M, axis=0), None, None),
)
