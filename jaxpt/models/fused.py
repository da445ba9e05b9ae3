"""Attention as one TPU kernel: T5's bias, cross-attention, dropout, any length.

A program holds a block of queries and all keys of its heads, so that a row of scores is whole: softmax and its gradient
need neither a second pass nor saved statistics, and nothing of size L × S leaves the chip. The backward kernel computes
the scores again and gives all gradients at once.

    bias       b(j − i), one number for each head and distance: its row is laid out once and sheared on the chip;
               its gradient is the sum along diagonals
    dropout    a weight is kept where a hash of (seed of the row and head, i, j) is large enough, which is the same in
               both passes, in every tiling and on every device
    heads      of 64 lie two by two in the 128 lanes of a register; lanes of the other head are zeros in a product

Shapes: B batch · L query length · S key length · H heads · K head width · D = H · K · N = L + S distances
        C queries of a block · G heads of a register · W = C + S · R = G · K lanes
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxpt.models.mask import MASKED

LANES = 128
TILE = 512 * 512
"""Most scores of one head in a block, if it has more than 128 queries: four bytes each, and about eight such arrays."""


@dataclasses.dataclass(frozen=True)
class Form:
    """What is known at compilation."""

    heads: int
    causal: bool = False
    window: int | None = None
    """A query sees keys at a distance below this."""
    dropout: float = 0.0
    """Rate on the attention weights."""
    strided: bool = True
    """The device can turn each row of a register one lane further than the row above (TPU v4 cannot)."""
    interpret: bool = False
    """Run by JAX, on any device."""


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
    """softmax(q·kᵀ + b) · v for each head, differentiable in q, k, v and the bias.

    Args:
      form: what is static.
      q_BxLxD: queries, already scaled; heads lie side by side.
      k_BxSxD: keys.
      v_BxSxD: values.
      query_ids_BxL: segment of each query.
      key_ids_BxS: segment of each key; 0 is padding, which nothing attends to.
      bias_HxN: float32, the bias of distance j − i at column j − i + L; N = L + S.
      seeds_BxH: int32, random bits of each row and head, for `form.dropout`.

    Returns:
      [B, L, D] in v's dtype; rows of queries without visible keys are finite but meaningless.
    """
    length, keys = q_BxLxD.shape[1], k_BxSxD.shape[1]
    before, after = -length % LANES, -keys % LANES
    q, k, v = (
        jnp.pad(x, ((0, 0), (0, more), (0, 0))) for x, more in ((q_BxLxD, before), (k_BxSxD, after), (v_BxSxD, after))
    )
    # Queries beyond the end belong to no segment; keys beyond it are padding.
    query_ids = jnp.pad(query_ids_BxL, ((0, 0), (0, before)), constant_values=-1)[:, None]
    key_ids = jnp.pad(key_ids_BxS, ((0, 0), (0, after)))[:, None]
    bias = bias_HxN
    if bias is not None:
        heads = _group(form, q)
        bias = jnp.pad(bias, ((0, 0), (before, after))).reshape(-1, heads, length + keys + before + after)
    y = _attend(form, q, k, v, query_ids.astype(jnp.int32), key_ids.astype(jnp.int32), bias, seeds_BxH)
    return y[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: Form, q: jax.Array, *others: Any) -> jax.Array:
    return _forward(form, q, *others)[0]


def _forward(
    form: Form, q: jax.Array, k: jax.Array, v: jax.Array, query_ids: jax.Array, key_ids: jax.Array,
    bias: jax.Array | None, seeds: jax.Array | None,
) -> tuple[jax.Array, tuple[Any, ...]]:  # fmt: skip
    at = _Blocks(form, q, k)
    given = (q, k, v, query_ids, key_ids, bias, seeds)
    run = pl.pallas_call(
        functools.partial(_forward_kernel, form, at, bias is not None),
        grid=at.grid,
        in_specs=at.inputs(bias, seeds),
        out_specs=at.queries,
        out_shape=jax.ShapeDtypeStruct(q.shape, v.dtype),
        compiler_params=at.parameters,
        interpret=form.interpret,
        name="fused_attention",
    )
    return run(*[x for x in given if x is not None]), given


def _backward(form: Form, given: tuple[Any, ...], dy: jax.Array) -> tuple[Any, ...]:
    q, k, v, *_, bias, seeds = given
    at = _Blocks(form, q, k)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)]
    specs = [at.queries, at.keys, at.keys]
    if bias is not None:
        shapes.append(jax.ShapeDtypeStruct(bias.shape, jnp.float32))
        specs.append(pl.BlockSpec((1, *bias.shape[1:]), lambda g, b, i: (g, 0, 0)))
    run = pl.pallas_call(
        functools.partial(_backward_kernel, form, at, bias is not None),
        grid=at.grid,
        in_specs=[*at.inputs(bias, seeds), at.queries],
        out_specs=specs,
        out_shape=shapes,
        scratch_shapes=[pltpu.VMEM((k.shape[1], at.lanes), jnp.float32)] * 2,
        compiler_params=at.parameters,
        interpret=form.interpret,
        name="fused_attention_backward",
    )
    dq, dk, dv, *dbias = run(*[x for x in given if x is not None], dy)
    return dq, dk, dv, None, None, (dbias or [None])[0], None


_attend.defvjp(_forward, _backward)


def _group(form: Form, q_BxLxD: jax.Array) -> int:
    """Heads that lie in one register."""
    return max(LANES // (q_BxLxD.shape[-1] // form.heads), 1)


class _Blocks:
    """How the arrays are cut: the grid is (groups of heads, rows, blocks of queries), the last one innermost."""

    def __init__(self, form: Form, q_BxLxD: jax.Array, k_BxSxD: jax.Array) -> None:
        (rows, length, width), self.key_count = q_BxLxD.shape, k_BxSxD.shape[1]
        self.head_dim, self.heads = width // form.heads, _group(form, q_BxLxD)
        self.lanes = self.heads * self.head_dim
        self.length = length
        sizes = [size for size in (512, 256, LANES) if length % size == 0 and size * self.key_count <= TILE]
        self.block = sizes[0] if sizes else LANES
        self.grid = (width // self.lanes, rows, length // self.block)
        self.queries = pl.BlockSpec((1, self.block, self.lanes), lambda g, b, i: (b, i, g))
        self.keys = pl.BlockSpec((1, self.key_count, self.lanes), lambda g, b, i: (b, 0, g))
        self.parameters = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))

    def inputs(self, bias: jax.Array | None, seeds: jax.Array | None) -> list[pl.BlockSpec]:
        """Of q, k, v, ids of queries and keys, and of bias and seeds where there are."""
        specs = [
            self.queries, self.keys, self.keys,
            pl.BlockSpec((1, 1, self.block), lambda g, b, i: (b, 0, i)),
            pl.BlockSpec((1, 1, self.key_count), lambda g, b, i: (b, 0, 0)),
        ]  # fmt: skip
        if bias is not None:
            specs.append(pl.BlockSpec((1, *bias.shape[1:]), lambda g, b, i: (g, 0, 0)))
        if seeds is not None:
            specs.append(pl.BlockSpec(memory_space=pltpu.SMEM))
        return specs


def _forward_kernel(form: Form, at: _Blocks, has_bias: bool, q_ref: Any, k_ref: Any, v_ref: Any, *refs: Any) -> None:
    *others, y_ref = refs
    weights = _Weights(form, at, has_bias, *others)
    q, k, v = q_ref[0], k_ref[0], v_ref[0]
    y = jnp.zeros(q.shape, jnp.float32)
    for head in range(at.heads):
        kept = weights.dropped(weights.softmax(head, _only(q, head, at), k), head)
        y = jnp.where(_lanes(head, at), _dot(kept.astype(v.dtype), v), y)
    y_ref[0] = y.astype(y_ref.dtype)


def _backward_kernel(form: Form, at: _Blocks, has_bias: bool, q_ref: Any, k_ref: Any, v_ref: Any, *refs: Any) -> None:
    count = 2 + has_bias + (form.dropout > 0)
    others, dy_ref, (dq_ref, dk_ref, dv_ref, *dbias_ref), (dk_sum, dv_sum) = (
        refs[:count], refs[count], refs[count + 1 : -2], refs[-2:],
    )  # fmt: skip
    weights = _Weights(form, at, has_bias, *others)
    row, place = pl.program_id(1), pl.program_id(2)

    @pl.when(place == 0)
    def _() -> None:
        dk_sum[...], dv_sum[...] = jnp.zeros_like(dk_sum), jnp.zeros_like(dv_sum)

    if has_bias:

        @pl.when((place == 0) & (row == 0))
        def _() -> None:
            dbias_ref[0][...] = jnp.zeros_like(dbias_ref[0])

    q, k, v, dy = q_ref[0], k_ref[0], v_ref[0], dy_ref[0]
    dq = jnp.zeros(q.shape, jnp.float32)
    for head in range(at.heads):
        own_q, own_dy = _only(q, head, at), _only(dy, head, at)
        p = weights.softmax(head, own_q, k)
        dv_sum[...] += _dot(weights.dropped(p, head).astype(dy.dtype), own_dy, 0, 0)
        dp = weights.dropped(_dot(own_dy, v, 1, 1), head)
        ds = p * (dp - (p * dp).sum(1, keepdims=True))
        small = ds.astype(k.dtype)
        dq = jnp.where(_lanes(head, at), _dot(small, k), dq)
        dk_sum[...] += _dot(small, own_q, 0, 0)
        if has_bias:
            _add_diagonals(dbias_ref[0], ds, head, weights.first_distance)
    dq_ref[0] = dq.astype(dq_ref.dtype)

    @pl.when(place == pl.num_programs(2) - 1)
    def _() -> None:
        dk_ref[0], dv_ref[0] = dk_sum[...].astype(dk_ref.dtype), dv_sum[...].astype(dv_ref.dtype)


class _Weights:
    """The attention weights of a block, [C, S] for each head."""

    def __init__(self, form: Form, at: _Blocks, has_bias: bool, query_ref: Any, key_ref: Any, *rest: Any) -> None:
        self._form, self._at = form, at
        self._bias_ref = rest[0] if has_bias else None
        self._seeds_ref = rest[-1] if form.dropout else None
        start, shape = pl.program_id(2) * at.block, (at.block, at.key_count)
        self._query = start + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        self._key = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        ids = jnp.broadcast_to(query_ref[0], (LANES, at.block)).T[:, :1]  # from a row of lanes to a column
        allowed = (ids == key_ref[0]) & (key_ref[0] != 0)
        if form.causal:
            allowed &= self._key <= self._query
        if form.window is not None:
            allowed &= jnp.abs(self._key - self._query) < form.window
        self._allowed = allowed
        self.first_distance = pl.multiple_of(at.length - start - at.block, LANES)
        """Column of the bias in which the block's window begins: its last query's key 0."""

    def softmax(self, head: int, q_CxR: jax.Array, k_SxR: jax.Array) -> jax.Array:
        """float32 [C, S]; in `q` the lanes of other heads are 0."""
        scores = _dot(q_CxR, k_SxR, 1, 1)
        if self._bias_ref is not None:
            scores += self._bias(head)
        scores = jnp.where(self._allowed, scores, MASKED)
        p = jnp.exp(scores - scores.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def _bias(self, head: int) -> jax.Array:
        """[C, S]: row r is the window [W] of distances that begins at its first one, C − r columns in."""
        block, keys = self._at.block, self._at.key_count
        window = self._bias_ref[0, pl.ds(head, 1), pl.ds(self.first_distance, block + keys)]
        rows = jnp.broadcast_to(window, (block, block + keys))
        if self._form.strided:
            return pltpu.roll(rows, keys, 1, stride=1, stride_axis=0)[:, :keys]
        rows, number = pltpu.roll(rows, keys, 1), jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0)
        for bit in range(block.bit_length() - 1):
            rows = jnp.where(number >> bit & 1 == 1, pltpu.roll(rows, 1 << bit, 1), rows)
        return rows[:, :keys]

    def dropped(self, x_CxS: jax.Array, head: int) -> jax.Array:
        """What is kept of the weights, or of their gradient, divided by the share that is kept."""
        rate = self._form.dropout
        if not rate:
            return x_CxS
        seed = self._seeds_ref[pl.program_id(1), pl.program_id(0) * self._at.heads + head]
        bits = hashed((self._query << 16 | self._key) ^ seed)
        return jnp.where(jax.lax.shift_right_logical(bits, 8) >= round(rate * (1 << 24)), x_CxS / (1 - rate), 0.0)


def hashed(x: jax.Array) -> jax.Array:
    """32 bits that look random, of 32 bits: an int32 array of x's shape.

    Two multiplications between shifted differences, after https://github.com/skeeto/hash-prospector (its constants).
    """
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = (x ^ jax.lax.shift_right_logical(x, shift)) * jnp.int32(factor)
    return x ^ jax.lax.shift_right_logical(x, 15)


def _add_diagonals(sums_ref: Any, ds_CxS: jax.Array, head: int, first: jax.Array) -> None:
    """Adds a block's diagonals: distance d of query r stands in column d − first + r after the block is shifted by C.

    Halves of the rows are laid on each other, the lower one shifted to where its distances are, until one is left.
    """
    rows = len(ds_CxS)
    x = jnp.concatenate([jnp.zeros((rows, rows), jnp.float32), ds_CxS], axis=1)
    while rows > 1:
        rows //= 2
        x = x[:rows] + pltpu.roll(x[rows:], x.shape[1] - rows, 1)
    sums_ref[0, pl.ds(head, 1), pl.ds(first, x.shape[1])] += x


def _lanes(head: int, at: _Blocks) -> jax.Array:
    """True at the lanes of a head: [1, R]."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, at.lanes), 1)
    return (lane >= head * at.head_dim) & (lane < (head + 1) * at.head_dim)


def _only(x_CxR: jax.Array, head: int, at: _Blocks) -> jax.Array:
    """x with zeros in the lanes of other heads."""
    return x_CxR if at.heads == 1 else jnp.where(_lanes(head, at), x_CxR, jnp.zeros_like(x_CxR))


def _dot(a: jax.Array, b: jax.Array, axis_a: int = 1, axis_b: int = 0) -> jax.Array:
    dimensions = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)
