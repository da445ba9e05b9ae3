"""Implementations of attention: plain XLA, XLA in chunks of queries, cuDNN and flash on GPUs, fused and splash on TPUs.

All take `Inputs`. `attention.choose` has the conditions of each.

Shapes: B batch · L query length · S key length · H heads · G key heads · R = H / G · K head width · C chunk of queries
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpt.models import pallas_common, threefry
from jaxpt.models.layers import mesh_axes
from jaxpt.models.mask import MASKED, Mask
from jaxpt.models.position_terms import PositionTerms
from jaxpt.models.positions import DistanceBias
from jaxpt.parallel import compiler

CHUNK_SCORES = 2048 * 512
"""Maximum number of scores of one head in memory at a time."""
LANES = 128
NO_STRIDED_ROLL = ("TPU v2", "TPU v3", "TPU v4")
FUSED_KEYS = 2048, 512
"""Maximum number of keys of the fused kernel, which holds a row of scores whole; with `PositionTerms` also a row of
scores by distance."""
BLOCKS = "splash_{}_of_{}_blocks"
"""Scope of the splash kernels, which declare no cost: blocks that the mask leaves, of those of the grid."""


class Inputs(NamedTuple):
    """What attention is computed of."""

    q_BxLxHxK: jax.Array
    k_BxSxGxK: jax.Array
    """G divides H: adjacent heads share keys and values."""
    v_BxSxGxK: jax.Array
    mask: Mask
    bias: jax.Array | DistanceBias | PositionTerms | None = None
    """Added to the scores: [H, L, S], with a leading batch axis if it differs between rows. `fused` and `flash` take
    `DistanceBias`, `fused` takes `PositionTerms`, the others an array; `splash` takes none."""
    scale: float = 1.0
    """Factor of the scores."""
    dropout: float = 0.0
    """Rate on the weights; `cudnn` and `splash` have none."""
    dropout_key: jax.Array | None = None
    soft_cap: float | None = None
    """c, if scores z become c · tanh(z / c): of `plain`, `chunked` and `splash`."""


def plain(inputs: Inputs, start: jax.Array | int = 0) -> jax.Array:
    """All scores at once; `start` is the index of the first query if the queries are a chunk."""
    q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, mask, bias_HxLxS, scale, dropout, dropout_key, soft_cap = inputs
    B, L, H, K = q_BxLxHxK.shape
    S, G = k_BxSxGxK.shape[1:3]
    # Heads before length: several times faster on CPUs than [B, L, H, K].
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q_BxLxHxK, k_BxSxGxK, v_BxSxGxK))
    q = q * scale if scale != 1.0 else q
    if G == H:
        scores_BxHxLxS = jnp.einsum("BHLK,BHSK->BHLS", q, k, preferred_element_type=jnp.float32)
    else:
        q = q.reshape(B, G, H // G, L, K)
        scores = jnp.einsum("BGRLK,BGSK->BGRLS", q, k, preferred_element_type=jnp.float32)
        scores_BxHxLxS = scores.reshape(B, H, L, S)
    if soft_cap is not None:
        scores_BxHxLxS = soft_cap * jnp.tanh(scores_BxHxLxS / soft_cap)
    if bias_HxLxS is not None:
        scores_BxHxLxS += bias_HxLxS
    keep = None
    if dropout > 0:
        first = None if isinstance(start, int) else start + (0 if mask.offset is None else mask.offset)
        keep = _kept(dropout_key, 1 - dropout, scores_BxHxLxS.shape, first)
    return weighted_values(scores_BxHxLxS, v, mask.materialise(L, S, start), keep, dropout).transpose(0, 2, 1, 3)


def _kept(key: jax.Array, rate: float, shape: tuple[int, ...], first: jax.Array | None) -> jax.Array:
    """True at the attention weights [B, H, L, S] that dropout keeps.

    With `first`, each query draws separately by its index, so chunking and sharding do not change the result.
    """
    if first is None:
        return threefry.bernoulli(key, rate, shape)
    B, H, L, S = shape
    keys_L = jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(L))
    return jax.vmap(lambda key: threefry.bernoulli(key, rate, (B, H, S)), out_axes=2)(keys_L)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def weighted_values(
    scores_BxHxLxS: jax.Array,
    v_BxGxSxK: jax.Array,
    allowed_BxLxS: jax.Array | None = None,
    keep_BxHxLxS: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """dropout(softmax(scores)) · v; the backward pass keeps one array of all scores.

    Left to JAX it keeps three: the weights in float32, what dropout leaves of them, and what it chose: 7 bytes for each
    score in bfloat16. Here it is 2 bytes: the sign says what was chosen, and the rest follows from the weights.

        signed = p where a weight is kept, −p where it is dropped
        ds     = p · (dp − Σ p · dp), p = |signed|

    Args:
      scores_BxHxLxS: float32.
      v_BxGxSxK: values; H/G adjacent heads share them.
      allowed_BxLxS: bool, True where a query sees a key; None: everywhere.
      keep_BxHxLxS: bool, True at the weights that dropout keeps; None: all.
      rate: share of the weights that is dropped.

    Returns:
      [B, H, L, K] in v's dtype, in which the weights are kept for the backward pass. Of a query that sees no key it is
      the mean of all values.

    Example:
      >>> scores, v = jnp.zeros((1, 1, 1, 4)), jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4, 1)
      >>> print(weighted_values(scores, v)[0, 0, 0])
      [2.5]
      >>> print(weighted_values(scores, v, keep_BxHxLxS=v.mT > 2, rate=0.5)[0, 0, 0])
      [3.5]
    """
    return _weighted_forward(scores_BxHxLxS, v_BxGxSxK, allowed_BxLxS, keep_BxHxLxS, rate)[0]


def _weighted_forward(
    scores: jax.Array, v: jax.Array, allowed: jax.Array | None, keep: jax.Array | None, rate: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    scores = scores if allowed is None else jnp.where(allowed[:, None], scores, MASKED)
    p = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    weights = p if keep is None else jnp.where(keep, p / (1 - rate), 0)
    y_BxHxLxK = jnp.einsum("BGRLS,BGSK->BGRLK", _grouped(weights, v), v)
    y_BxHxLxK = y_BxHxLxK.reshape(*scores.shape[:3], v.shape[-1])
    return y_BxHxLxK, (p if keep is None else jnp.where(keep, p, -p), v)


def _weighted_backward(
    rate: float, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    """What a mask hides has a weight of 0, and so no gradient."""
    signed, v = saved
    dy_BxGxRxLxK = _grouped(dy, v)
    weights, dp = signed, jnp.einsum("BGRLK,BGSK->BGRLS", dy_BxGxRxLxK, v, preferred_element_type=jnp.float32)
    dp = dp.reshape(signed.shape)
    if rate:
        weights, dp = (jnp.where(signed > 0, x / (1 - rate), 0) for x in (signed, dp))
    dv = jnp.einsum("BGRLS,BGRLK->BGSK", _grouped(weights, v), dy_BxGxRxLxK)
    p = jnp.abs(signed).astype(jnp.float32)
    return p * (dp - (p * dp).sum(axis=-1, keepdims=True)), dv, None, None


weighted_values.defvjp(_weighted_forward, _weighted_backward)


def _grouped(x_BxHx_: jax.Array, v_BxGxSxK: jax.Array) -> jax.Array:
    """[B, G, R, …]: heads by the values that they share."""
    B, G = v_BxGxSxK.shape[:2]
    return x_BxHx_.reshape(B, G, x_BxHx_.shape[1] // G, *x_BxHx_.shape[2:])


def chunked(inputs: Inputs, chunk: int | None = None) -> jax.Array:
    """Loops over chunks of queries and recomputes their scores in the backward pass: memory is linear in L and S.

    If the mesh shards the length, each device processes its queries with all keys.
    """
    axes, L, S = tuple(mesh_axes("length")), inputs.q_BxLxHxK.shape[1], inputs.k_BxSxGxK.shape[1]
    if not axes or L % math.prod(mesh_axes("length").values()):
        return _chunked(inputs, chunk)
    whole, queries, rows, bias_spec = PartitionSpec(), PartitionSpec(None, axes), PartitionSpec(axes), PartitionSpec()
    if (bias := inputs.bias) is not None:
        bias = jnp.broadcast_to(bias, (*bias.shape[:-2], L, S))
        bias_spec = PartitionSpec(*[None] * (bias.ndim - 2), axes)
    mask = inputs.mask.replace(offset=jnp.arange(L))
    mask_spec = mask.replace(
        query_segments_BxL=queries, query_ranks_BxL=queries, query_branches_BxL=queries, offset=rows,
        key_segments_BxS=whole, key_ranks_BxS=whole, key_branches_BxS=whole, prefix_BxS=whole,
    )  # fmt: skip

    def shard(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, bias: Any, dropout_key: Any) -> jax.Array:
        mask = mask.replace(offset=mask.offset[0])
        return _chunked(Inputs(q, k, v, mask, bias, inputs.scale, inputs.dropout, dropout_key, inputs.soft_cap), chunk)

    in_specs = queries, whole, whole, mask_spec, bias_spec, whole
    mapped = jax.shard_map(shard, in_specs=in_specs, out_specs=queries, axis_names=set(axes), check_vma=False)
    return mapped(*inputs[:3], mask, bias, inputs.dropout_key)


def _chunked(inputs: Inputs, chunk: int | None) -> jax.Array:
    B, L, H, K = inputs.q_BxLxHxK.shape
    chunk = chunk or max(CHUNK_SCORES // inputs.k_BxSxGxK.shape[1], 1)
    count = math.ceil(L / min(chunk, L))
    chunk = math.ceil(L / count)
    padding = count * chunk - L

    def padded(x: jax.Array | None, axis: int) -> jax.Array | None:
        return x if x is None or not padding else jnp.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)])

    of_queries = ("query_segments_BxL", "query_ranks_BxL", "query_branches_BxL")
    mask = inputs.mask.replace(**{name: padded(getattr(inputs.mask, name), 1) for name in of_queries})
    q, bias = padded(inputs.q_BxLxHxK, 1), inputs.bias
    if bias is not None:
        bias = padded(jnp.broadcast_to(bias, (*bias.shape[:-2], L, bias.shape[-1])), bias.ndim - 2)

    @jax.checkpoint
    def one(index: jax.Array) -> jax.Array:
        start = index * chunk
        rows = None if bias is None else jax.lax.dynamic_slice_in_dim(bias, start, chunk, bias.ndim - 2)
        queries = jax.lax.dynamic_slice_in_dim(q, start, chunk, 1)
        return plain(inputs._replace(q_BxLxHxK=queries, mask=mask, bias=rows), start)

    y_NxBxCxHxK = jax.lax.map(one, jnp.arange(count))
    return y_NxBxCxHxK.swapaxes(0, 1).reshape(B, count * chunk, H, K)[:, :L]


def cudnn(inputs: Inputs, implementation: Any = "cudnn") -> jax.Array:
    """`jax.nn.dot_product_attention`: causal masks and their windows by option, everything else as a mask array.

    cuDNN counts queries and keys from 0. Those of a cache start elsewhere, so they need the mask array too.
    """
    q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, mask, bias, scale, *_ = inputs
    is_in_order = mask.offset is None and mask.key_index_S is None
    causal = mask.causal and mask.prefix_BxS is None and is_in_order
    rest = mask.replace(causal=False, window=None) if causal else mask  # cuDNN has no window to both sides
    allowed = rest.materialise(q_BxLxHxK.shape[1], k_BxSxGxK.shape[1])
    window = None if mask.window is None or not causal else mask.window - 1
    bias = None if bias is None else bias.reshape(-1, *bias.shape[-3:]).astype(q_BxLxHxK.dtype)
    return jax.nn.dot_product_attention(
        q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, bias, None if allowed is None else allowed[:, None], scale=scale,
        is_causal=causal, local_window_size=window, implementation=implementation,
    )  # fmt: skip


def has_tensor_cores_for_bfloat16(kind: str) -> bool:
    """True of NVIDIA's GPUs since Ampere, by the name that JAX gives a device.

    Example:
      >>> [has_tensor_cores_for_bfloat16(x) for x in ("NVIDIA A100-SXM4-80GB", "NVIDIA H200", "Tesla V100-SXM2-16GB")]
      [True, True, False]
      >>> [has_tensor_cores_for_bfloat16(x) for x in ("NVIDIA GeForce RTX 2080", "AMD Instinct MI300X", "cpu")]
      [False, False, False]
    """
    return kind.startswith("NVIDIA") and not re.search(r"\b(GTX|RTX 20\d\d|Quadro|TITAN|T4|[PV]100)\b", kind)


def fill_registers(heads: int, head_dim: int) -> bool:
    """True if heads of this width, side by side, fill registers of 128 lanes without a cut.

    Example:
      >>> fill_registers(12, 64), fill_registers(3, 64), fill_registers(3, 256), fill_registers(4, 96)
      (True, False, True, False)
    """
    return head_dim % LANES == 0 or (LANES % head_dim == 0 and heads % (LANES // head_dim) == 0)


def fused(inputs: Inputs, interpret: bool = False) -> jax.Array:
    """The TPU kernel of `jaxpt.models.fused`: each device runs its own rows and heads."""
    from jaxpt.models import fused as kernel  # Pallas, on TPUs alone

    rows_NxD = None
    if isinstance(inputs.bias, PositionTerms):
        of_queries, of_keys = inputs.bias.by_distance(inputs.q_BxLxHxK.shape[1], inputs.k_BxSxGxK.shape[1])
        rows_NxD = of_queries, of_keys * inputs.scale
    strided = not interpret and compiler.device_kind() not in NO_STRIDED_ROLL  # interpreted, a roll for each row
    return _side_by_side(kernel.attend, inputs, rows_NxD, interpret=interpret, strided=strided)


def flash(inputs: Inputs, interpret: bool = False) -> jax.Array:
    """The GPU kernels of `jaxpt.models.flash`: each device runs its own rows and heads."""
    from jaxpt.models import flash as kernel  # Pallas, on GPUs alone

    return _side_by_side(kernel.attend, inputs, interpret=interpret)


def _side_by_side(attend: Callable[..., jax.Array], inputs: Inputs, *extra: Any, **options: bool) -> jax.Array:
    """Runs a kernel whose heads lie side by side, [B, L, H·K].

    Args:
      attend: the kernel.
      inputs: what it is computed of.
      *extra: more arguments: rows of distances [N, H·K].
      **options: more fields of its form.
    """
    q_BxLxHxK, k_BxSxHxK, v_BxSxHxK, mask, bias, scale, dropout, dropout_key, _ = inputs
    (B, L, H, _), S = q_BxLxHxK.shape, k_BxSxHxK.shape[1]
    device_heads = H // math.prod(mesh_axes("act_heads").values())
    form = pallas_common.Form(device_heads, mask.causal, mask.window, dropout, **options)
    bias_HxN = bias.by_distance(L, S).astype(jnp.float32) if isinstance(bias, DistanceBias) else None
    seeds_BxH = _seeds(dropout, dropout_key, B, H)
    rows, heads = _shares()
    specs = PartitionSpec(heads), PartitionSpec(rows, heads), *[PartitionSpec(None, heads)] * len(extra)
    run = _on_each_device(functools.partial(attend, form), *specs)
    q, k, v = (x.reshape(*x.shape[:2], -1) for x in (q_BxLxHxK * scale, k_BxSxHxK, v_BxSxHxK))
    return run(q, k, v, *_segments(mask, B, L, S), bias_HxN, seeds_BxH, *extra).reshape(q_BxLxHxK.shape)


def _segments(mask: Mask, rows: int, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
    """Segments of all queries and of all keys; one segment where the mask has none."""

    def ids(x: jax.Array | None, size: int) -> jax.Array:
        return jnp.broadcast_to(jnp.ones((), jnp.int32) if x is None else x.astype(jnp.int32), (rows, size))

    return ids(mask.query_segments_BxL, queries), ids(mask.key_segments_BxS, keys)


def _seeds(dropout: float, key: jax.Array | None, rows: int, heads: int) -> jax.Array | None:
    """Random bits of each row and head, for `pallas_common.kept`."""
    return jax.random.bits(key, (rows, heads), jnp.uint32).astype(jnp.int32) if dropout else None


def _shares() -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """The mesh's axes over which rows and heads are shared out."""
    rows, heads = (tuple(mesh_axes(name)) or None for name in ("batch", "act_heads"))
    return rows, heads


def _on_each_device(run: Callable[..., jax.Array], *extra: PartitionSpec) -> Callable[..., jax.Array]:
    """Kernels cannot be partitioned: each device runs its own rows and heads of q, k, v, their segments and `extra`."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return run
    rows, heads = _shares()
    vectors, ids = PartitionSpec(rows, None, heads), PartitionSpec(rows)
    specs = (vectors, vectors, vectors, ids, ids, *extra)
    return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=vectors, check_vma=False)


def splash(inputs: Inputs, interpret: bool = False) -> jax.Array:
    """The TPU kernel: causal masks, windows and segments without a mask array, caps; padding is a segment."""
    q_BxLxHxK, k_BxSxGxK, v_BxSxGxK, mask, *_ = inputs
    (B, L), S = q_BxLxHxK.shape[:2], k_BxSxGxK.shape[1]
    options = {"causal": mask.causal, "window": mask.window, "soft_cap": inputs.soft_cap, "interpret": interpret}
    attend = functools.partial(_splash, **options)
    return _on_each_device(attend)(q_BxLxHxK * inputs.scale, k_BxSxGxK, v_BxSxGxK, *_segments(mask, B, L, S))


def _splash(
    q_BxLxHxK: jax.Array, k_BxLxGxK: jax.Array, v_BxLxGxK: jax.Array, *segments_BxL: jax.Array,
    causal: bool, window: int | None, soft_cap: float | None, interpret: bool,
) -> jax.Array:  # fmt: skip
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, L, H, _ = q_BxLxHxK.shape
    shape = (L, L)
    whole: Any = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    if window is not None:
        whole = masks.LocalMask(shape, (window - 1, 0 if causal else window - 1), 0)
    block = max(size for size in (512, 384, 256, 128) if L % size == 0)
    sizes = kernel.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
        block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip
    attend = kernel.make_splash_mha(
        masks.MultiHeadMask([whole] * H), head_shards=1, q_seq_shards=1, block_sizes=sizes, interpret=interpret,
        attn_logits_soft_cap=soft_cap,
    )  # fmt: skip

    def one(q_HxLxK: jax.Array, k_GxLxK: jax.Array, v_GxLxK: jax.Array, *segments_L: jax.Array) -> jax.Array:
        with jax.named_scope(BLOCKS.format(*_blocks(L // block, block, causal, window))):
            return attend(q_HxLxK, k_GxLxK, v_GxLxK, kernel.SegmentIds(*segments_L))

    q_k_v = (x.transpose(0, 2, 1, 3) for x in (q_BxLxHxK, k_BxLxGxK, v_BxLxGxK))
    return jax.vmap(one)(*q_k_v, *segments_BxL).transpose(0, 2, 1, 3)


def _blocks(count: int, block: int, causal: bool, window: int | None) -> tuple[int, int]:
    """(blocks in which a mask of count x count blocks hides not all, those of the kernel's grid), of a head.

    The grid is as wide as the row that has most; of what else it holds, all products are left out.

    Example:
      >>> _blocks(8, 512, True, None), _blocks(8, 512, True, 512), _blocks(8, 512, False, 512)
      ((36, 64), (15, 16), (22, 24))
    """
    back = (count * block if window is None else window) - 1
    below, above = (min(count - 1, (far + block - 1) // block) for far in (back, 0 if causal else back))
    run = sum(count - abs(distance) for distance in range(-above, below + 1))
    return run, count * min(count, below + 1 + above)
