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
    """How a weight of two dimensions is split over devices that each have rows of the batch."""

    rows: tuple[str, ...]
    """Mesh axes that share out the rows."""
    width: tuple[str, ...]
    """Those of `rows` along which the weight is split."""
    dimension: int
    """Dimension of the weight that they split."""
    other: tuple[str, ...] = ()
    """Mesh axes that split the other dimension, of what it is multiplied with and gives as well."""

    def gather(self, weight: jax.Array) -> jax.Array:
        """The weight, whole along the dimension."""
        run = functools.partial(staged.all_gather, axes=self.width, dimension=self.dimension)
        return self._map(run, (self._weight(self.width),), self._weight())(weight)

    def sum(self, term: Callable[..., jax.Array], *of_rows: jax.Array, dimensions: tuple[int | None, ...]) -> jax.Array:
        """The sum over devices of `term` of their own rows, split as the weight is.

        Args:
          term: from arrays of a device to its term.
          *of_rows: arrays [B, …].
          dimensions: of each, the weight's dimension that its last one is, if any.

        Returns:
          A weight.
        """

        def part(*of_rows: jax.Array) -> jax.Array:
            x = staged.reduce_scatter(term(*of_rows), self.width, self.dimension)
            rest = tuple(axis for axis in self.rows if axis not in self.width)
            return jax.lax.psum(x, rest) if rest else x

        in_specs = [
            PartitionSpec(self.rows, *[None] * (x.ndim - 2), self.other if dimension == 1 - self.dimension else None)
            for x, dimension in zip(of_rows, dimensions)
        ]
        return self._map(part, tuple(in_specs), self._weight(self.width))(*of_rows)

    def _weight(self, width: tuple[str, ...] | None = None) -> PartitionSpec:
        return PartitionSpec(*((width, self.other) if self.dimension == 0 else (self.other, width)))

    def _map(self, run: Callable[..., jax.Array], in_specs: tuple[PartitionSpec, ...], to: PartitionSpec) -> Callable:
        manual = {*self.rows, *self.other}
        return jax.shard_map(run, in_specs=in_specs, out_specs=to, axis_names=manual, check_vma=False)


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
    # Not `product` again, in which `jax.checkpoint` would not see the product that it is to keep.
    return x @ split.gather(kernel_DxF), (x, kernel_DxF)


def _backward(split: Split, residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel_DxF = residuals
    rows = "BLEG"[: x.ndim - 1]
    dx = jnp.einsum(f"{rows}F,DF->{rows}D", dy, split.gather(kernel_DxF))
    term = functools.partial(jnp.einsum, f"{rows}D,{rows}F->DF")
    return dx, split.sum(term, x, dy, dimensions=(0, 1))


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

        return split.sum(term, ids_BxL, dy_BxLxD, dimensions=(None, 1)), None

    run.defvjp(lambda table, ids: (run(table, ids), ids), backward)
    return run(table_VxD, ids_BxL)
