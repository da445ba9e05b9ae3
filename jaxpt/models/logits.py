"""Functions of the logits of many positions, a chunk of the length at a time, and the gradient of their sums.

B batch, T target positions, C positions of a chunk, N chunks, D width of the model, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpt.models.layers import dividing_axes, mesh_axes
from jaxpt.parallel import compiler, staged

if TYPE_CHECKING:
    from jaxpt.models.output import Projection

# A chunk of n tokens reads the projection's table twice (4·V·D bytes in bf16) and adds to its gradient (8·V·D bytes in
# f32), for 6·n·V·D FLOPs: the products take longer than that from n = 2 · FLOP/s / (bytes/s) on (v5e: 480, tpu7x: 630,
# L4: 810, v6e: 1,120). 1,024 are enough on every chip of `jaxpt.parallel.chips` but a v6e, whose memory then takes 9 %
# longer than its products; more tokens would take more memory on all chips.
CHUNK_TOKENS = 1024
"""Tokens of a chunk on a device, at least."""
CHUNK_BYTES = 64 * 2**20
"""Size up to which the float32 logits of more tokens are one chunk; that of small vocabularies."""
LARGEST_CHUNK = 2**30
"""Size of a chunk's float32 logits on a device, at most."""

Score = Callable[..., tuple[jax.Array, jax.Array]]
"""(logits, constants, *arrays of the chunk) → (sums [S], ∂ sums[0] / ∂ logits), both float32."""


def map_logits(
    function: Callable[..., Any],
    hidden_BxTxD: jax.Array,
    projection: Projection,
    *arrays_BxT: jax.Array,
    chunk: int = 0,
    vocab_axis: Literal[0, -1] = -1,
) -> Any:
    """`function` of the logits of each position, projected in chunks of the length.

    Args:
      function: from logits float32 [B, C, V], or [V, B, C] with `vocab_axis` 0, and the arrays' chunks to a tree of
        arrays [B, C, ...].
      hidden_BxTxD: hidden states.
      projection: from hidden states to logits.
      *arrays_BxT: arrays [B or 1, T, ...], cut into the same chunks.
      chunk: positions per chunk; 0: see `chunk_length`.
      vocab_axis: where the vocabulary stands in the logits.

    Returns:
      A tree of arrays [B, T, ...].

    Example:
      >>> from jaxpt.models.output import Projection
      >>> map_logits(lambda logits: logits.max(-1), jnp.array([[[1.0, 2.0]] * 3]), Projection(jnp.eye(2)), chunk=2)
      Array([[2., 2., 2.]], dtype=float32)
    """
    length = hidden_BxTxD.shape[1]
    chunks = math.ceil(length / (chunk or chunk_length(hidden_BxTxD.shape[0], projection)))
    if chunks <= 1:
        return function(projection(hidden_BxTxD, vocab_axis=vocab_axis), *arrays_BxT)
    arrays_NxBxC = tuple(_cut(x, chunks) for x in (hidden_BxTxD, *arrays_BxT))
    mapped_NxBxC = jax.lax.map(lambda xs: function(projection(xs[0], vocab_axis=vocab_axis), *xs[1:]), arrays_NxBxC)
    return jax.tree.map(lambda x_NxBxC: _joined(x_NxBxC, length), mapped_NxBxC)


def sum_logits(
    score: Score,
    hidden_BxTxD: jax.Array,
    projection: Projection,
    *arrays_BxT: jax.Array,
    constants: Any = None,
    chunk: int = 0,
) -> jax.Array:
    """Σ of `score` over chunks of the length. Only the first sum has a gradient: to hidden states and projection.

    A loss is linear in its cotangent, so the forward pass computes the gradient of each chunk from the logits at hand,
    and the backward pass multiplies it by the cotangent: logits are computed once, not again in the backward pass. The
    table's gradient is summed up in float32 over the chunks. Without differentiation none of it is computed.

    On a mesh (with the logical axes "batch" and "length" mapped to it) the table is gathered once, in the dtype of the
    product, and its gradient is reduced once, not per chunk.

    Args:
      score: from logits [B, C, V] ([V, B, C] of a tied table) to sums and the gradient of the first one; a function of
        a module or a `functools.partial` of one, without arrays.
      hidden_BxTxD: hidden states.
      projection: from hidden states to logits.
      *arrays_BxT: arrays [B, T, ...] for `score`, zero (such as weights) in the padding of the last chunk.
      constants: a tree of arrays for `score` that all chunks share.
      chunk: positions per chunk; 0: see `chunk_length`.

    Returns:
      The sums, float32 [S].

    Example:
      >>> from jaxpt.models.output import Projection
      >>> def total(logits, constants, weights):
      ...     return (logits * weights[..., None]).sum()[None], jnp.broadcast_to(weights[..., None], logits.shape)
      >>> sums = lambda x: sum_logits(total, x, Projection(jnp.eye(2)), jnp.array([[1.0, 2.0]]), chunk=1)[0]
      >>> jax.grad(sums)(jnp.ones((1, 2, 2)))[0].tolist()
      [[1.0, 1.0], [2.0, 2.0]]
    """
    inputs = projection, hidden_BxTxD
    dtypes = tuple(x.dtype for x in jax.tree.leaves(inputs))
    with jax.named_scope("loss"):  # for profiles
        return _sums(score, chunk, dtypes, inputs, (constants, arrays_BxT))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _sums(score: Score, chunk: int, dtypes: tuple[Any, ...], inputs: tuple[Projection, jax.Array], others: Any) -> Any:
    return _over_shards(score, chunk, False, *inputs, *others)[0]


def _forward(
    score: Score, chunk: int, dtypes: tuple[Any, ...], inputs: tuple[Projection, jax.Array], others: Any
) -> tuple[jax.Array, Any]:
    return _over_shards(score, chunk, True, *inputs, *others)


def _backward(score: Score, chunk: int, dtypes: tuple[Any, ...], gradients: Any, slope: jax.Array) -> tuple[Any, None]:
    # In float32 up to here: rounded once, after the product with the cotangent. Partial sums are added up after it, so
    # that the compiler can add the lookups' own to them before it reduces all of these.
    table, hidden_BxTxD = jax.tree.map(lambda x: x * slope[0], gradients)
    if table.kernel.ndim == 3:
        table = table.replace(kernel=table.kernel.sum(0))
    leaves, tree = jax.tree.flatten((table, hidden_BxTxD))
    return tree.unflatten([x.astype(dtype) for x, dtype in zip(leaves, dtypes, strict=True)]), None


_sums.defvjp(_forward, _backward)


def _over_shards(
    score: Score,
    chunk: int,
    gradient: bool,
    projection: Projection,
    hidden_BxTxD: jax.Array,
    constants: Any,
    arrays_BxT: tuple[jax.Array, ...],
) -> tuple[jax.Array, Any]:
    """`_scan` on every shard of the batch and of the length, summed up.

    Tables enter the manual region whole, so they are gathered once, at its boundary, and their gradients leave it once.
    Otherwise the compiler gathers and reduces in every iteration of the inner loop.

    The gradient of a table of its own is reduced here, and only its shard is kept until the optimizer wants it. That of
    a tied one leaves as partial sums [shards, Vp, D]: the lookups' gradients are added before one reduction of both.
    """
    if not projection.tied:  # cast before it is gathered; a tied one is gathered once, for the lookups and for this
        projection = projection.replace(kernel=projection.cast_kernel)
    rows, places = (dividing_axes(name, size) for name, size in zip(("batch", "length"), hidden_BxTxD.shape))
    if not (axes := rows + places):
        return _scan(score, chunk, gradient, projection, hidden_BxTxD, constants, arrays_BxT)

    width = tuple(axis for axis in dividing_axes("embed", hidden_BxTxD.shape[-1]) if axis in axes)
    rest = tuple(axis for axis in axes if axis not in width)
    in_stages = staged.stages(width) > 1 and not projection.tied and not dividing_axes("act_vocab", projection.columns)
    rules = dict(nn.get_logical_axis_rules())
    inside = tuple((name, None if set(axes) & set(mesh_axes(name)) else to) for name, to in rules.items())

    def shard(projection: Projection, constants: Any, *arrays: jax.Array) -> tuple[jax.Array, Any]:
        if in_stages:
            projection = projection.replace(kernel=staged.all_gather(projection.kernel, width, 0))
        with nn.logical_axis_rules(inside):  # constraints must not use the mesh axes of the batch
            sums, gradients = _scan(score, chunk, gradient, projection, arrays[0], constants, arrays[1:])
        sums = jax.lax.psum(sums, axes)
        if not gradient:
            return sums, None
        table, hidden = gradients
        kernel, bias = table.kernel, jax.lax.psum(table.bias, axes)
        if projection.tied:
            return sums, (table.replace(kernel=kernel[None], bias=bias), hidden)
        kernel = staged.reduce_scatter(kernel, width, 0) if width else kernel
        # Whole tables go before the layers' backward pass begins: the compiler would reduce them when it ends.
        kernel, hidden = jax.lax.optimization_barrier((jax.lax.psum(kernel, rest) if rest else kernel, hidden))
        return sums, (table.replace(kernel=kernel, bias=bias), hidden)

    of_rows, of_kernel = PartitionSpec(rows or None, places or None), PartitionSpec(axes if projection.tied else width)
    of_table = jax.tree.map(lambda x: of_kernel if x.ndim > 1 else PartitionSpec(), projection)
    in_specs = (of_table if in_stages else PartitionSpec()), PartitionSpec(), *[of_rows] * (1 + len(arrays_BxT))
    out_specs = PartitionSpec(), ((of_table, of_rows) if gradient else None)
    mapped = jax.shard_map(shard, in_specs=in_specs, out_specs=out_specs, axis_names=set(axes), check_vma=False)
    return mapped(projection, constants, hidden_BxTxD, *arrays_BxT)


def _scan(
    score: Score,
    chunk: int,
    gradient: bool,
    projection: Projection,
    hidden_BxTxD: jax.Array,
    constants: Any,
    arrays_BxT: tuple[jax.Array, ...],
) -> tuple[jax.Array, Any]:
    """(sums, (gradient to the projection, to the hidden states) or None), in a loop where there are several chunks."""
    rows, length, _ = hidden_BxTxD.shape
    chunks = math.ceil(length / (chunk or chunk_length(rows, projection)))
    projection = projection.replace(kernel=projection.cast_kernel)  # once, not for each chunk
    score_chunk = functools.partial(_one, score, gradient, projection, constants)
    if chunks <= 1:
        sums, table, hidden_BxTxD = score_chunk(hidden_BxTxD, *arrays_BxT)
        return sums, (table, hidden_BxTxD) if gradient else None

    def body(totals: Any, xs: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        sums, table, hidden_BxCxD = score_chunk(*xs)
        return jax.tree.map(jnp.add, totals, (sums, table)), hidden_BxCxD

    xs_NxBxC = tuple(_cut(x, chunks) for x in (hidden_BxTxD, *arrays_BxT))
    sums, table, _ = jax.eval_shape(score_chunk, *[x[0] for x in xs_NxBxC])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (sums, table))
    (sums, table), hidden_NxBxCxD = jax.lax.scan(body, zeros, xs_NxBxC)
    return sums, (table, _joined(hidden_NxBxCxD, length)) if gradient else None


def _one(
    score: Score,
    gradient: bool,
    projection: Projection,
    constants: Any,
    hidden_BxCxD: jax.Array,
    *arrays_BxC: jax.Array,
) -> tuple[jax.Array, Any, Any]:
    """(sums, gradient to the projection, to the hidden states) of a chunk, the gradients in float32, None without."""
    axis = vocab_axis(projection)
    products = projection.products(hidden_BxCxD, axis)
    logits, pullback = jax.vjp(lambda z, bias: projection.logits(z, bias, axis), products, projection.bias)
    sums, slope = score(logits, constants, *arrays_BxC)
    if not gradient:
        return sums, None, None
    slope, bias = pullback(slope)
    rows = hidden_BxCxD
    if compiler.platform() == "cpu":  # which would write the slopes a second time, transposed: rows get one axis
        slope = slope.reshape((len(slope), -1) if axis == 0 else (-1, slope.shape[-1]))
        rows = rows.reshape(-1, rows.shape[-1])
    else:  # a TPU's products round float32 as well, and a GPU's take three times as long
        slope = slope.astype(projection.kernel.dtype)
    kernel, to_rows = projection.transposed(slope, rows, axis)
    return sums, projection.replace(kernel=kernel, bias=bias), to_rows.reshape(hidden_BxCxD.shape)


def vocab_axis(projection: Projection) -> Literal[0, -1]:
    """Where the vocabulary stands in logits that need no transposed table, which a CPU would make for each chunk."""
    return 0 if projection.tied else -1


def chunk_length(rows: int, projection: Projection) -> int:
    """Positions of a chunk of the length: `CHUNK_TOKENS` tokens on each device.

    More of a small vocabulary, up to `CHUNK_BYTES` of logits; fewer where these would take more than `LARGEST_CHUNK`.

    Args:
      rows: of the batch.
      projection: gives the number of logits.

    Returns:
      The number of positions, at least 1.

    Example:
      >>> from jaxpt.models.output import Projection
      >>> [chunk_length(8, Projection(jnp.zeros((1, vocabulary)))) for vocabulary in (512, 32_128, 524_288)]
      [4096, 128, 64]
    """
    token = 4 * math.ceil(projection.columns / math.prod(mesh_axes("act_vocab").values()))
    tokens = min(max(CHUNK_TOKENS, CHUNK_BYTES // token), LARGEST_CHUNK // token)
    shards = math.prod(mesh_axes("batch").values()) if dividing_axes("batch", rows) else 1
    return max(1, tokens // math.ceil(rows / shards))


def _cut(x_BxT: jax.Array, chunks: int) -> jax.Array:
    """[B, T, ...] → [N, B, C, ...], padded with zeros (zero weight) at the end."""
    size = math.ceil(x_BxT.shape[1] / chunks)
    padding = [(0, 0), (0, chunks * size - x_BxT.shape[1])] + [(0, 0)] * (x_BxT.ndim - 2)
    x_BxT = jnp.pad(x_BxT, padding)
    return jnp.moveaxis(x_BxT.reshape(x_BxT.shape[0], chunks, size, *x_BxT.shape[2:]), 1, 0)


def _joined(x_NxBxC: jax.Array, length: int) -> jax.Array:
    """[N, B, C, ...] → [B, T, ...]: undoes `_cut`."""
    x_BxNxC = jnp.moveaxis(x_NxBxC, 0, 1)
    return x_BxNxC.reshape(x_BxNxC.shape[0], -1, *x_BxNxC.shape[3:])[:, :length]
