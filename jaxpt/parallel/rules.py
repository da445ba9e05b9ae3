"""One table from logical axes to mesh axes; parameters, optimizer state and activations all follow it.

A logical axis that is not in the table is an error (a misspelt one would silently replicate), so are two dimensions of
one array on the same mesh axis, and a dimension that its mesh axes do not divide.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpt.errors import UserError

RULES: dict[str, tuple[str, ...]] = {
    # parameters
    "vocab": ("tensor",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "mlp": ("tensor",),
    "layers": (),
    "positions": (),
    "buckets": (),
    "classes": (),
    "norm": (),
    # activations
    "batch": ("data", "fsdp"),
    "length": (),
    "act_embed": (),
    "act_heads": ("tensor",),
    "act_mlp": ("tensor",),
    "act_vocab": ("tensor",),
}


def flax_rules() -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    """The table in the form that `flax.linen.logical_axis_rules` takes."""
    return tuple((name, axes or None) for name, axes in RULES.items())


def spec(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh, name: str = "array") -> PartitionSpec:
    """The placement of one array.

    Args:
      axes: a logical name for each dimension, or None for one that is not split.
      shape: the array's shape.
      mesh: the device mesh.
      name: the array's name, for messages.

    Returns:
      A PartitionSpec with as many entries as the array has dimensions.

    Raises:
      UserError: a name that is not in the table, two dimensions on one mesh axis, or a size that does not divide.

    Example:
      >>> mesh = jax.make_mesh((4, 1, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
      >>> spec(("layers", "embed", "mlp"), (12, 768, 3072), mesh)
      PartitionSpec(None, 'fsdp', 'tensor')
    """
    if len(axes) != len(shape):
        raise UserError(f"{name}: {len(axes)} logical axes {axes} for shape {shape}")
    entries: list[str | tuple[str, ...] | None] = []
    used: dict[str, str] = {}
    for axis, size in zip(axes, shape):
        if axis is not None and axis not in RULES:
            raise UserError(f"{name}: logical axis {axis!r} is not in the table of jaxpt.parallel.rules")
        mesh_axes = RULES[axis] if axis is not None else ()
        for mesh_axis in mesh_axes:
            if mesh_axis in used:
                both = f"{used[mesh_axis]!r} and {axis!r}"
                raise UserError(f"{name}: logical axes {both} both want mesh axis {mesh_axis!r}")
            used[mesh_axis] = str(axis)
        ways = math.prod(mesh.shape[a] for a in mesh_axes)
        if size % ways:
            wanted = " × ".join(f"mesh.{a}={mesh.shape[a]}" for a in mesh_axes)
            raise UserError(f"{name}: {wanted} does not divide its axis {axis!r} of size {size}")
        entries.append(mesh_axes[0] if len(mesh_axes) == 1 else (mesh_axes or None))
    return PartitionSpec(*entries)


def shardings(axes: Any, shapes: Any, mesh: Mesh) -> Any:
    """The placement of every array of a tree.

    Args:
      axes: a tree whose leaves are tuples of logical names.
      shapes: the tree of arrays or ShapeDtypeStructs.
      mesh: the device mesh.

    Returns:
      A tree of NamedShardings like `shapes`.
    """

    def one(path: tuple[Any, ...], leaf: Any, names: tuple[str | None, ...]) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(mesh, spec(names, leaf.shape, mesh, name))

    return jax.tree_util.tree_map_with_path(one, shapes, axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch over the data and fsdp axes; all other dimensions whole."""
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, PartitionSpec())
