"""Attention as one TPU kernel: T5's bias, DeBERTa's position terms, cross-attention, dropout, any length.

A program holds a block of queries and all keys of its heads, so that a row of scores is whole: softmax and its gradient
need neither a second pass nor saved statistics, and nothing of size L × S leaves the chip. The backward kernel computes
the scores again and gives all gradients at once.

    bias       b(j − i), one number for each head and distance: its row is laid out once and sheared on the chip;
               its gradient is the sum along diagonals
    positions  DeBERTa's terms, q·R(j − i) and k·Q(i − j): products with the rows of the block's distances, sheared
    dropout    a weight is kept where a hash of (seed of the row and head, i, j) is large enough, which is the same in
               both passes, in every tiling and on every device
    heads      of 64 lie two by two in the 128 lanes of a register; lanes of the other head are zeros in a product

Shapes: B batch · L query length · S key length · H heads · K head width · D = H · K · N = L + S distances
        C queries of a block · G heads of a register · W = C + S · R = G · K lanes
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxpt.models.mask import MASKED
from jaxpt.models.pallas_common import Form, kept

LANES = 128
TILE = 512 * 512
"""Maximum number of scores of one head in a block, if it has more than 128 queries. There are about eight such arrays,
of four bytes a score."""


def attend(
    form: Form,
    q_BxLxD: jax.Array,
    k_BxSxD: jax.Array,
    v_BxSxD: jax.Array,
    query_ids_BxL: jax.Array,
    key_ids_BxS: jax.Array,
    bias_HxN: jax.Array | None = None,
    seeds_BxH: jax.Array | None = None,
    rows_NxD: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """softmax(q·kᵀ + b) · v for each head, differentiable in q, k, v, the bias and the rows of positions.

    Args:
      form: what is static.
      q_BxLxD: queries, already scaled; heads lie side by side.
      k_BxSxD: keys.
      v_BxSxD: values.
      query_ids_BxL: segment of each query.
      key_ids_BxS: segment of each key; 0 is padding, which nothing attends to.
      bias_HxN: float32, the bias of distance j − i at column j − i + L; N = L + S.
      seeds_BxH: int32, random bits of each row and head, for `form.dropout`.
      rows_NxD: (what queries meet, the row of distance j − i at j − i + L; what keys meet, that of i − j at i − j + S):
        their products are added to the scores.

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
    bias, of_queries, of_keys = bias_HxN, *(rows_NxD or (None, None))
    if bias is not None:
        heads = _group(form, q)
        bias = jnp.pad(bias, ((0, 0), (before, after))).reshape(-1, heads, length + keys + before + after)
    if rows_NxD is not None:
        of_queries = jnp.pad(of_queries, ((before, after), (0, 0)))
        of_keys = jnp.pad(of_keys, ((after, before), (0, 0)))
    more = Extra(bias, of_queries, of_keys, seeds_BxH)
    return _attend(form, q, k, v, query_ids.astype(jnp.int32), key_ids.astype(jnp.int32), more)[:, :length]


class Extra(NamedTuple):
    """What attention may have, as arrays or, in a kernel, as references."""

    bias: Any = None
    of_queries: Any = None
    of_keys: Any = None
    seeds: Any = None

    @property
    def given(self) -> dict[str, Any]:
        """{name: what is there}."""
        return {name: x for name, x in self._asdict().items() if x is not None}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: Form, q: jax.Array, *others: Any) -> jax.Array:
    return _forward(form, q, *others)[0]


def _forward(
    form: Form, q: jax.Array, k: jax.Array, v: jax.Array, query_ids: jax.Array, key_ids: jax.Array, more: Extra
) -> tuple[jax.Array, tuple[Any, ...]]:
    at = _Blocks(form, q, k, more)
    run = pl.pallas_call(
        functools.partial(_forward_kernel, form, at, tuple(more.given)),
        grid=at.grid,
        in_specs=at.inputs(more),
        out_specs=at.queries,
        out_shape=jax.ShapeDtypeStruct(q.shape, v.dtype),
        compiler_params=at.parameters,
        interpret=form.interpret,
        name="fused_attention",
    )
    return run(q, k, v, query_ids, key_ids, *more.given.values()), (q, k, v, query_ids, key_ids, more)


def _backward(form: Form, saved: tuple[Any, ...], dy: jax.Array) -> tuple[Any, ...]:
    *arrays, more = saved
    q, k, v = arrays[:3]
    at = _Blocks(form, q, k, more)
    sums = {name: x for name, x in more.given.items() if name != "seeds"}
    run = pl.pallas_call(
        functools.partial(_backward_kernel, form, at, tuple(more.given)),
        grid=at.grid,
        in_specs=[*at.inputs(more), at.queries],
        out_specs=[at.queries, at.keys, at.keys, *(at.extra(name, x) for name, x in sums.items())],
        out_shape=[
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)),
            *(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in sums.values()),
        ],
        scratch_shapes=[pltpu.VMEM((k.shape[1], at.lanes), jnp.float32)] * 2,
        compiler_params=at.parameters,
        interpret=form.interpret,
        name="fused_attention_backward",
    )
    dq, dk, dv, *extra_grads = run(*arrays, *more.given.values(), dy)
    extra = {name: x.astype(sums[name].dtype) for name, x in zip(sums, extra_grads)}
    return dq, dk, dv, None, None, Extra(**extra)


_attend.defvjp(_forward, _backward)


def _group(form: Form, q_BxLxD: jax.Array) -> int:
    """Heads that lie in one register."""
    return max(LANES // (q_BxLxD.shape[-1] // form.heads), 1)


class _Blocks:
    """How the arrays are cut: the grid is (groups of heads, rows, blocks of queries), the last one innermost."""

    def __init__(self, form: Form, q_BxLxD: jax.Array, k_BxSxD: jax.Array, more: Extra) -> None:
        (rows, length, width), self.key_count = q_BxLxD.shape, k_BxSxD.shape[1]
        self.head_dim, self.heads = width // form.heads, _group(form, q_BxLxD)
        self.lanes = self.heads * self.head_dim
        self.length = length
        # Scores by distance are twice as wide.
        max_block = TILE // self.key_count // (1 if more.of_queries is None else 2)
        sizes = [size for size in (512, 256, LANES) if length % size == 0 and size <= max_block]
        self.block = sizes[0] if sizes else LANES
        self.window = self.block + self.key_count
        self.grid = (width // self.lanes, rows, length // self.block)
        self.queries = pl.BlockSpec((1, self.block, self.lanes), lambda g, b, i: (b, i, g))
        self.keys = pl.BlockSpec((1, self.key_count, self.lanes), lambda g, b, i: (b, 0, g))
        self.parameters = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))

    def inputs(self, more: Extra) -> list[pl.BlockSpec]:
        """Blocks of q, k, v, of the ids of queries and keys, and of the optional inputs."""
        return [
            self.queries, self.keys, self.keys,
            pl.BlockSpec((1, 1, self.block), lambda g, b, i: (b, 0, i)),
            pl.BlockSpec((1, 1, self.key_count), lambda g, b, i: (b, 0, 0)),
            *(self.extra(name, x) for name, x in more.given.items()),
        ]  # fmt: skip

    def extra(self, name: str, x: jax.Array) -> pl.BlockSpec:
        """The block of an input of `Extra`: all that a group of heads has of it."""
        if name == "seeds":
            return pl.BlockSpec(memory_space=pltpu.SMEM)
        if name == "bias":
            return pl.BlockSpec((1, *x.shape[1:]), lambda g, b, i: (g, 0, 0))
        return pl.BlockSpec((len(x), self.lanes), lambda g, b, i: (0, g))


def _forward_kernel(
    form: Form, at: _Blocks, names: tuple[str, ...], q_ref: Any, k_ref: Any, v_ref: Any, *refs: Any
) -> None:
    *others, y_ref = refs
    weights = _Weights(form, at, names, *others)
    q, k, v = q_ref[0], k_ref[0], v_ref[0]
    y = jnp.zeros(q.shape, jnp.float32)
    for head in range(at.heads):
        dropped_p = weights.dropped(weights.softmax(head, _only(q, head, at), k), head)
        y = jnp.where(_lanes(head, at), _dot(dropped_p.astype(v.dtype), v), y)
    y_ref[0] = y.astype(y_ref.dtype)


def _backward_kernel(
    form: Form, at: _Blocks, names: tuple[str, ...], q_ref: Any, k_ref: Any, v_ref: Any, *refs: Any
) -> None:
    count = 2 + len(names)
    dy_ref, (dq_ref, dk_ref, dv_ref, *sum_refs), (dk_sum, dv_sum) = refs[count], refs[count + 1 : -2], refs[-2:]
    weights = _Weights(form, at, names, *refs[:count])
    sums = Extra(**dict(zip((name for name in names if name != "seeds"), sum_refs)))
    row, place = pl.program_id(1), pl.program_id(2)

    @pl.when(place == 0)
    def _() -> None:
        dk_sum[...], dv_sum[...] = jnp.zeros_like(dk_sum), jnp.zeros_like(dv_sum)

    @pl.when((place == 0) & (row == 0))
    def _() -> None:
        for ref in sum_refs:
            ref[...] = jnp.zeros_like(ref)

    q, k, v, dy = q_ref[0], k_ref[0], v_ref[0], dy_ref[0]
    dq = jnp.zeros(q.shape, jnp.float32)
    for head in range(at.heads):
        own_q, own_dy = _only(q, head, at), _only(dy, head, at)
        p = weights.softmax(head, own_q, k)
        dv_sum[...] += _dot(weights.dropped(p, head).astype(dy.dtype), own_dy, 0, 0)
        dp = weights.dropped(_dot(own_dy, v, 1, 1), head)
        ds = p * (dp - (p * dp).sum(1, keepdims=True))
        small = ds.astype(k.dtype)
        dq_head = _dot(small, k)
        dk_sum[...] += _dot(small, own_q, 0, 0)
        if sums.bias is not None:
            _add_diagonals(sums.bias, ds, head, weights.first_distance)
        if sums.of_queries is not None:
            rows = pl.ds(weights.first_distance, at.window)
            by_distance = unsheared(ds).astype(q.dtype)
            dq_head += _dot(by_distance, weights.extra.of_queries[rows])
            sums.of_queries[rows] += _dot(by_distance, own_q, 0, 0)
            rows = pl.ds(weights.start, at.window)
            by_distance = unsheared(ds.T).astype(q.dtype)
            dk_sum[...] += jnp.where(_lanes(head, at), _dot(by_distance, weights.extra.of_keys[rows]), 0.0)
            sums.of_keys[rows] += _dot(by_distance, _only(k, head, at), 0, 0)
        dq = jnp.where(_lanes(head, at), dq_head, dq)
    dq_ref[0] = dq.astype(dq_ref.dtype)

    @pl.when(place == pl.num_programs(2) - 1)
    def _() -> None:
        dk_ref[0], dv_ref[0] = dk_sum[...].astype(dk_ref.dtype), dv_sum[...].astype(dv_ref.dtype)


class _Weights:
    """The attention weights of a block, [C, S] for each head."""

    def __init__(
        self, form: Form, at: _Blocks, names: tuple[str, ...], query_ref: Any, key_ref: Any, *extra: Any
    ) -> None:
        self._form, self._at, self.extra = form, at, Extra(**dict(zip(names, extra)))
        self.start, shape = pl.multiple_of(pl.program_id(2) * at.block, LANES), (at.block, at.key_count)
        """The block's first query; among the rows that keys meet, where its window of distances begins."""
        self._query = self.start + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        self._key = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        ids = jnp.broadcast_to(query_ref[0], (LANES, at.block)).T[:, :1]  # from a row of lanes to a column
        allowed = (ids == key_ref[0]) & (key_ref[0] != 0)
        if form.causal:
            allowed &= self._key <= self._query
        if form.window is not None:
            allowed &= jnp.abs(self._key - self._query) < form.window
        self._allowed = allowed
        self.first_distance = pl.multiple_of(at.length - self.start - at.block, LANES)
        """Where its window begins in bias and rows that queries meet: the distance of its last query and key 0."""

    def softmax(self, head: int, q_CxR: jax.Array, k_SxR: jax.Array) -> jax.Array:
        """float32 [C, S]; in `q` the lanes of other heads are 0."""
        at, strided, more = self._at, self._form.strided, self.extra
        scores = _dot(q_CxR, k_SxR, 1, 1)
        if more.bias is not None:
            window = more.bias[0, pl.ds(head, 1), pl.ds(self.first_distance, at.window)]
            scores += sheared(jnp.broadcast_to(window, (at.block, at.window)), at.key_count, strided)
        if more.of_queries is not None:
            by_distance = _dot(q_CxR, more.of_queries[pl.ds(self.first_distance, at.window)], 1, 1)
            scores += sheared(by_distance, at.key_count, strided)
            by_distance = _dot(_only(k_SxR, head, at), more.of_keys[pl.ds(self.start, at.window)], 1, 1)
            scores += sheared(by_distance, at.block, strided).T
        scores = jnp.where(self._allowed, scores, MASKED)
        p = jnp.exp(scores - scores.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def dropped(self, x_CxS: jax.Array, head: int) -> jax.Array:
        """What is kept of the weights, or of their gradient, divided by the share that is kept."""
        rate = self._form.dropout
        if not rate:
            return x_CxS
        seed = self.extra.seeds[pl.program_id(1), pl.program_id(0) * self._at.heads + head]
        return jnp.where(kept(seed, self._query, self._key, rate), x_CxS / (1 - rate), 0.0)


def sheared(x_RxW: jax.Array, columns: int, strided: bool = True) -> jax.Array:
    """y[r, c] = x[r, c − r + R], of R rows in windows of W = R + `columns` distances: [R, columns]."""
    rows, width = x_RxW.shape
    if strided:
        return pltpu.roll(x_RxW, columns, 1, stride=1, stride_axis=0)[:, :columns]
    x, row = pltpu.roll(x_RxW, columns, 1), jax.lax.broadcasted_iota(jnp.int32, (rows, width), 0)
    for bit in range((rows - 1).bit_length()):
        x = jnp.where(row >> bit & 1 == 1, pltpu.roll(x, 1 << bit, 1), x)
    return x[:, :columns]


def unsheared(x_RxC: jax.Array) -> jax.Array:
    """The inverse of `sheared`, with zeros where nothing came from: [R, W]."""
    rows, columns = x_RxC.shape
    x = jnp.concatenate([jnp.zeros((rows, rows), x_RxC.dtype), x_RxC], axis=1)
    row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for bit in range((rows - 1).bit_length()):
        x = jnp.where(row >> bit & 1 == 1, pltpu.roll(x, rows + columns - (1 << bit), 1), x)
    return x


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
