"""Attention as GPU kernels: T5's bias, cross-attention, dropout, packed rows, windows, any length.

A program holds a block of queries and goes over the blocks of keys that its mask leaves. Of a row of scores it keeps
the maximum and the sum, and corrects both with each block, so that nothing of size L × S is written. The backward pass
computes the scores again: one kernel for the gradient of queries, one for that of keys and values, and where there is a
bias one for its own, which adds up all rows of a batch before it writes. No kernel adds to what another program writes:
results are the same bits in each run.

    bias     b(j − i), one number for each head and distance, read where a score is made; its gradient is the sum along
             diagonals
    dropout  by a hash, as on TPUs (`jaxpt.models.pallas_common`)

Paper: https://arxiv.org/abs/2307.08691 (FlashAttention-2)

Shapes: B batch · L query length · S key length · H heads · K head width · D = H · K · N = L + S distances
        C queries of a block · T keys of a block, both BLOCK
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from jaxpt.models.mask import MASKED
from jaxpt.models.pallas_common import Form, kept

SHIFT = 6
BLOCK = 1 << SHIFT


def attend(
    form: Form,
    q_BxLxD: jax.Array,
    k_BxSxD: jax.Array,
    v_BxSxD: jax.Array,
    query_ids_BxL: jax.Array,
    key_ids_BxS: jax.Array,
    bias_HxN: jax.Array | None = None,
    seeds_BxH: jax.Array | None = None,
) -> jax.Array:
    """softmax(q·kᵀ + bias) · v, with the softmax in float32.

    Args:
      form: heads, mask and dropout.
      q_BxLxD: queries, scaled; heads side by side.
      k_BxSxD: keys.
      v_BxSxD: values.
      query_ids_BxL: segment of each query.
      key_ids_BxS: segment of each key; 0 is padding, which nothing attends to.
      bias_HxN: float32, the bias of distance j − i at column j − i + L; N = L + S.
      seeds_BxH: int32, random bits of each row and head, for `form.dropout`.

    Returns:
      [B, L, D] in v's dtype; rows of queries without visible keys are finite but meaningless.
    """
    (rows, length, embed), keys = q_BxLxD.shape, k_BxSxD.shape[1]
    before, after, width = -length % BLOCK, -keys % BLOCK, embed // form.heads
    wider = max(pl.next_power_of_2(width), 16) - width

    def padded(x: jax.Array, more: int) -> jax.Array:
        x = x.reshape(*x.shape[:2], form.heads, width) if wider else x
        x = jnp.pad(x, ((0, 0), (0, more), *[(0, 0)] * (x.ndim - 3), (0, wider)))
        return x.reshape(*x.shape[:2], -1)

    # Queries beyond the end belong to no segment; keys beyond it are padding.
    query_ids = jnp.pad(query_ids_BxL, ((0, 0), (0, before)), constant_values=-1)
    key_ids = jnp.pad(key_ids_BxS, ((0, 0), (0, after)))
    arrays = {"q": padded(q_BxLxD, before), "k": padded(k_BxSxD, after), "v": padded(v_BxSxD, after)}
    arrays |= {"query_ids": query_ids.astype(jnp.int32), "key_ids": key_ids.astype(jnp.int32)}
    arrays |= {} if bias_HxN is None else {"bias": jnp.pad(bias_HxN, ((0, 0), (before, after)))}
    arrays |= {} if seeds_BxH is None else {"seeds": seeds_BxH}
    y = _attend(form, arrays)[:, :length]
    return y.reshape(rows, length, form.heads, -1)[..., :width].reshape(rows, length, embed) if wider else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: Form, arrays: dict[str, jax.Array]) -> jax.Array:
    return _forward(form, arrays)[0]


def _forward(form: Form, arrays: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    q, v = arrays["q"], arrays["v"]
    (B, L, _), H = q.shape, form.heads
    outputs = {"y": jax.ShapeDtypeStruct(q.shape, v.dtype), "logs": jax.ShapeDtypeStruct((B, H, L), jnp.float32)}
    output_arrays = _run(_forward_kernel, form, (L >> SHIFT, B, H), arrays, outputs, products=2)
    return output_arrays["y"], arrays | output_arrays


def _backward(form: Form, saved: dict[str, jax.Array], dy: jax.Array) -> tuple[dict[str, jax.Array | None]]:
    (B, L, _), S, H = dy.shape, saved["k"].shape[1], form.heads
    dy_BxLxHxK, y_BxLxHxK = (x.reshape(B, L, H, -1) for x in (dy, saved["y"]))
    means_BxHxL = jnp.einsum("BLHK,BLHK->BHL", dy_BxLxHxK, y_BxLxHxK, preferred_element_type=jnp.float32)
    arrays = {name: x for name, x in saved.items() if name != "y"} | {"dy": dy, "means": means_BxHxL}
    like = {f"d{name}": jax.ShapeDtypeStruct(saved[name].shape, saved[name].dtype) for name in ("q", "k", "v")}
    of_queries, of_keys = {"dq": like["dq"]}, {"dk": like["dk"], "dv": like["dv"]}
    dqkv = _run(_query_kernel, form, (L >> SHIFT, B, H), arrays, of_queries, products=3)
    dqkv |= _run(_key_kernel, form, (S >> SHIFT, B, H), arrays, of_keys, products=4)
    gradients = dict.fromkeys(name for name in saved if name not in ("y", "logs"))
    gradients |= {name: dqkv[f"d{name}"] for name in ("q", "k", "v")}
    if (bias := saved.get("bias")) is not None:
        scores = {"ds": jax.ShapeDtypeStruct((H, L, S), jnp.float32)}
        ds_HxLxS = _run(_bias_kernel, form, (L >> SHIFT, S >> SHIFT, H), arrays, scores, products=2)["ds"]
        (gradients["bias"],) = jax.linear_transpose(functools.partial(_by_place, L, S), bias)(ds_HxLxS)
    return (gradients,)


_attend.defvjp(_forward, _backward)


def _by_place(length: int, keys: int, bias_HxN: jax.Array) -> jax.Array:
    """[H, L, S] of what stands at column j − i + L: each row of the square is the one above, shifted by one."""
    n = length + keys
    rows = jnp.tile(jnp.roll(bias_HxN, -length, 1), (1, length))[:, : length * (n - 1)]
    return rows.reshape(-1, length, n - 1)[:, :, :keys]


def _run(
    kernel: Callable[..., None], form: Form, grid: tuple[int, int, int], arrays: dict[str, jax.Array],
    outputs: dict[str, jax.ShapeDtypeStruct], products: int,
) -> dict[str, jax.Array]:  # fmt: skip
    """Runs a kernel, which takes the form and {name: reference}, each to a whole array.

    Args:
      kernel: what a program does.
      form: what is known at compilation.
      grid: the programs.
      arrays: what is read.
      outputs: what is written.
      products: of matrices, for each block of scores.

    Returns:
      The outputs by name.
    """
    names, all_arrays = (*arrays, *outputs), [*arrays.values(), *outputs.values()]
    (B, L, D), S = arrays["q"].shape, arrays["k"].shape[1]
    width = D // form.heads
    scores = B * form.heads * _blocks(form, L >> SHIFT, S >> SHIFT) * BLOCK**2
    output_arrays = pl.pallas_call(
        lambda *refs: kernel(form, dict(zip(names, refs))),
        grid=grid,
        out_shape=list(outputs.values()),
        # With 4 warps wide heads do not fit into the registers: the compiler says what it spills.
        compiler_params=triton.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=2),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * scores * width,
            transcendentals=scores,
            bytes_accessed=sum(math.prod(x.shape) * x.dtype.itemsize for x in all_arrays),
        ),
        interpret=form.interpret,
        name=f"flash_attention{kernel.__name__.removesuffix('_kernel')}",
    )(*arrays.values())
    return dict(zip(outputs, output_arrays))


def _blocks(form: Form, queries: int, keys: int) -> int:
    """Blocks of scores of which the mask leaves something.

    Example:
      >>> _blocks(Form(1), 4, 4), _blocks(Form(1, causal=True), 4, 4), _blocks(Form(1, causal=True, window=65), 4, 4)
      (16, 10, 7)
    """
    first, stop = _visible(form, np.arange(queries), keys, "query", np)
    return int(np.maximum(stop - first, 0).sum())


def _visible(form: Form, block: Any, others: int, side: str, xp: Any = jnp) -> tuple[Any, Any]:
    """The blocks (first, last + 1) of keys that a block of queries sees, or of queries that see a block of keys."""
    far = None if form.window is None else form.window - 1
    before, after = (far, 0 if form.causal else far) if side == "query" else (0 if form.causal else far, far)
    begin = block << SHIFT
    first = xp.zeros_like(block) if before is None else xp.maximum(begin - before, 0) >> SHIFT
    stop = others + xp.zeros_like(block) if after is None else ((begin + BLOCK - 1 + after) >> SHIFT) + 1
    return first, xp.minimum(stop, others)


def _forward_kernel(form: Form, ref: dict[str, Any]) -> None:
    i, head = pl.program_id(0), _Head(form, ref, pl.program_id(1), pl.program_id(2))
    q = head.vectors("q", i)

    def step(j: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        y, top, total = carry
        v, scores = head.vectors("v", j), head.scores(i, j, q, head.vectors("k", j))
        higher = jnp.maximum(top, scores.max(1))
        less, p = jnp.exp(top - higher), jnp.exp(scores - higher[:, None])
        y = y * less[:, None] + _dot(head.dropped(i, j, p).astype(v.dtype), v)
        return y, higher, total * less + p.sum(1)

    empty = jnp.zeros(q.shape, jnp.float32), jnp.full(BLOCK, MASKED, jnp.float32), jnp.zeros(BLOCK, jnp.float32)
    y, top, total = jax.lax.fori_loop(*_visible(form, i, head.keys, "query"), step, empty)
    total = jnp.where(total == 0, 1, total)  # of queries that see no block at all
    head.write("y", i, y / total[:, None])
    ref["logs"][head.row, head.head, _at(i)] = top + jnp.log(total)


def _query_kernel(form: Form, ref: dict[str, Any]) -> None:
    i, head = pl.program_id(0), _Head(form, ref, pl.program_id(1), pl.program_id(2))
    query_block = head.of_queries(i)

    def step(j: jax.Array, dq: jax.Array) -> jax.Array:
        k = head.vectors("k", j)
        _, ds = head.gradient(i, j, query_block, k, head.vectors("v", j))
        return dq + _dot(ds.astype(k.dtype), k)

    zeros = jnp.zeros(query_block[0].shape, jnp.float32)
    head.write("dq", i, jax.lax.fori_loop(*_visible(form, i, head.keys, "query"), step, zeros))


def _key_kernel(form: Form, ref: dict[str, Any]) -> None:
    j, head = pl.program_id(0), _Head(form, ref, pl.program_id(1), pl.program_id(2))
    k, v = head.vectors("k", j), head.vectors("v", j)

    def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dk, dv = carry
        q, dy, *_ = query_block = head.of_queries(i)
        weights, ds = head.gradient(i, j, query_block, k, v)
        return dk + _dot(ds.astype(q.dtype), q, 0, 0), dv + _dot(weights.astype(dy.dtype), dy, 0, 0)

    zeros = jnp.zeros(k.shape, jnp.float32)
    dk, dv = jax.lax.fori_loop(*_visible(form, j, head.queries, "key"), step, (zeros, zeros))
    head.write("dk", j, dk)
    head.write("dv", j, dv)


def _bias_kernel(form: Form, ref: dict[str, Any]) -> None:
    """The gradient of a block of scores, summed over the batch."""
    i, j, number = (pl.program_id(axis) for axis in range(3))

    def step(row: jax.Array, total: jax.Array) -> jax.Array:
        head = _Head(form, ref, row, number)
        return total + head.gradient(i, j, head.of_queries(i), head.vectors("k", j), head.vectors("v", j))[1]

    total = jax.lax.fori_loop(0, ref["q"].shape[0], step, jnp.zeros((BLOCK, BLOCK), jnp.float32))
    ref["ds"][number, _at(i), _at(j)] = total


class _Head:
    """One head of a row of the batch; i and j are numbers of blocks of queries and of keys."""

    def __init__(self, form: Form, ref: dict[str, Any], row: jax.Array, head: jax.Array) -> None:
        self.form, self.ref, self.row, self.head = form, ref, row, head
        self.length = ref["q"].shape[1]
        self.queries, self.keys = self.length >> SHIFT, ref["k"].shape[1] >> SHIFT
        width = ref["q"].shape[2] // form.heads
        self.columns = pl.ds(head * width, width)

    def vectors(self, name: str, block: jax.Array) -> jax.Array:
        return self.ref[name][self.row, _at(block), self.columns]

    def write(self, name: str, block: jax.Array, x: jax.Array) -> None:
        self.ref[name][self.row, _at(block), self.columns] = x.astype(self.ref[name].dtype)

    def of_queries(self, i: jax.Array) -> tuple[jax.Array, ...]:
        """q and dy [C, K], the logarithms of the softmax's sums and the mean gradients of its scores [C]."""
        numbers = (self.ref[name][self.row, self.head, _at(i)] for name in ("logs", "means"))
        return self.vectors("q", i), self.vectors("dy", i), *numbers

    def scores(self, i: jax.Array, j: jax.Array, q_CxK: jax.Array, k_TxK: jax.Array) -> jax.Array:
        """float32 [C, T], with the bias, masked."""
        (query, key), ref, form = _places(i, j), self.ref, self.form
        scores = _dot(q_CxK, k_TxK, 1, 1)
        if "bias" in ref:
            scores += ref["bias"][self.head, key - query + self.length]
        query_ids, key_ids = ref["query_ids"][self.row, _at(i)], ref["key_ids"][self.row, _at(j)]
        allowed = (query_ids[:, None] == key_ids[None]) & (key_ids != 0)[None]
        if form.causal:
            allowed &= key <= query
        if form.window is not None:
            allowed &= jnp.abs(key - query) < form.window
        return jnp.where(allowed, scores, MASKED)

    def dropped(self, i: jax.Array, j: jax.Array, x_CxT: jax.Array) -> jax.Array:
        """What is kept of the weights, or of their gradient, divided by the share that is kept."""
        rate = self.form.dropout
        if not rate:
            return x_CxT
        seed = self.ref["seeds"][self.row, self.head]
        return jnp.where(kept(seed, *_places(i, j), rate), x_CxT / (1 - rate), 0.0)

    def gradient(
        self, i: jax.Array, j: jax.Array, own: tuple[jax.Array, ...], k: jax.Array, v: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """(the weights that are kept, the gradient of the scores), float32 [C, T]."""
        q, dy, logs, means = own
        p = jnp.exp(self.scores(i, j, q, k) - logs[:, None])
        dp = self.dropped(i, j, _dot(dy, v, 1, 1))
        return self.dropped(i, j, p), p * (dp - means[:, None])


def _at(block: jax.Array) -> Any:
    return pl.ds(block * BLOCK, BLOCK)


def _places(i: jax.Array, j: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Indices in the row of a block's queries [C, 1] and keys [1, T]."""
    return i * BLOCK + jnp.arange(BLOCK)[:, None], j * BLOCK + jnp.arange(BLOCK)[None]


def _dot(a: jax.Array, b: jax.Array, axis_a: int = 1, axis_b: int = 0) -> jax.Array:
    # float32 would else be cut to TF32.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dimensions = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, precision, preferred_element_type=jnp.float32)
