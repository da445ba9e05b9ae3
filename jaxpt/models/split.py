"""Products with weights and lookups in tables that are split over all devices of a TPU slice.

XLA's partitioner gathers a weight, and sums up its gradient, in one collective, for which some slices have nothing but
an all-reduce of whole arrays. Here both are done in stages (`jaxpt.parallel.staged`), by hand.

Shapes: B batch · L length · D input width · F output width · V rows of a table
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from jaxpt.parallel import staged


class Split(NamedTuple):
    """How a weight is split over devices that each have rows of the batch."""

    rows: tuple[str, ...]
    """Mesh axes that share out the rows."""
    width: tuple[str, ...]
    """Those of `rows` along which the weight is split."""
    dimension: int
    """Dimension of the weight that they split."""

    @property
    def _spec(self) -> PartitionSpec:
        return PartitionSpec(*[None] * self.dimension, self.width)

    def gather(self, weight: jax.Array) -> jax.Array:
        """The whole weight, on every device."""
        run = functools.partial(staged.all_gather, axes=self.width, dimension=self.dimension)
        return self._map(run, (self._spec,), PartitionSpec())(weight)

    def sum(self, term: Callable[..., jax.Array], *of_rows: jax.Array) -> jax.Array:
        """The sum over devices of `term` of their own rows, split as the weight is."""

        def part(*of_rows: jax.Array) -> jax.Array:
            x = staged.reduce_scatter(term(*of_rows), self.width, self.dimension)
            rest = tuple(axis for axis in self.rows if axis not in self.width)
            return jax.lax.psum(x, rest) if rest else x

        return self._map(part, (PartitionSpec(self.rows),) * len(of_rows), self._spec)(*of_rows)

    def _map(self, run: Callable[..., jax.Array], given: tuple[PartitionSpec, ...], to: PartitionSpec) -> Callable:
        return jax.shard_map(run, in_specs=given, out_specs=to, axis_names=set(self.rows), check_vma=False)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(split: Split, x: jax.Array, kernel_DxF: jax.Array) -> jax.Array:
    """x · W of a split W, which the backward pass gathers again.

    Args:
      split: how it is split.
      x: [B, …, D].
      kernel_DxF: W, of the same dtype.

    Returns:
      [B, …, F].
    """
    return x @ split.gather(kernel_DxF)


def _forward(split: Split, x: jax.Array, kernel_DxF: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return product(split, x, kernel_DxF), (x, kernel_DxF)


def _backward(split: Split, kept: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel_DxF = kept
    rows = "BLEG"[: x.ndim - 1]
    dx = jnp.einsum(f"{rows}F,DF->{rows}D", dy, split.gather(kernel_DxF))
    return dx, split.sum(functools.partial(jnp.einsum, f"{rows}D,{rows}F->DF"), x, dy)


product.defvjp(_forward, _backward)


def lookup(split: Split, table_VxD: jax.Array, ids_BxL: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Rows of a split table, whose gradient is summed up in the table's dtype.

    Args:
      split: how it is split.
      table_VxD: the table.
      ids_BxL: which rows.
      dtype: of the result, in which the table is gathered.

    Returns:
      [B, L, D].
    """

    def rows(table_VxD: jax.Array, ids_BxL: jax.Array) -> jax.Array:
        return jnp.take(table_VxD, ids_BxL, axis=0, mode="clip")

    @jax.custom_vjp
    def run(table_VxD: jax.Array, ids_BxL: jax.Array) -> jax.Array:
        return rows(split.gather(table_VxD.astype(dtype)), ids_BxL)

    like = jax.ShapeDtypeStruct(table_VxD.shape, table_VxD.dtype)

    def backward(ids_BxL: jax.Array, dy_BxLxD: jax.Array) -> tuple[jax.Array, None]:
        def term(ids_BxL: jax.Array, dy_BxLxD: jax.Array) -> jax.Array:
            return jax.linear_transpose(lambda table: rows(table, ids_BxL), like)(dy_BxLxD.astype(like.dtype))[0]

        return split.sum(term, ids_BxL, dy_BxLxD), None

    run.defvjp(lambda table, ids: (run(table, ids), ids), backward)
    return run(table_VxD, ids_BxL)
