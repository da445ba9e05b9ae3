"""One table maps logical axes to mesh axes; parameters, optimizer state and activations all follow it.

A recipe names a preset (`mesh.preset`) and may change single lines (`mesh.rules`). A logical axis that is not in the
table is an error (a misspelt one would silently replicate), so are two dimensions of one array on the same mesh axis,
and a dimension that its mesh axes do not divide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpt.errors import UserError

if TYPE_CHECKING:
    from jaxpt.config import MeshConfig

Table = Mapping[str, tuple[str, ...]]

BATCH = ("data", "fsdp", "expert")
DEFAULT: Table = {
    # Parameters. Devices that share the length, or have other experts, would hold the same parameters, so they share
    # these as well. Experts take a mesh axis themselves, which is not for the width of their kernels.
    # Embeddings and logits belong to no stage of a pipeline: all stages work on them.
    "vocab": ("tensor", "pipeline"),
    "embed": ("fsdp", "expert", "context"),
    "expert_embed": ("fsdp", "context"),
    "heads": ("tensor",),
    "mlp": ("tensor",),
    "layers": ("pipeline",),
    "expert": ("expert",),
    "positions": (),
    "buckets": (),
    "classes": (),
    "norm": (),
    # Activations.
    "batch": BATCH,
    "length": ("context",),
    "residual_length": ("context",),
    "act_embed": (),
    "act_heads": ("tensor",),
    "act_mlp": ("tensor",),
    "act_vocab": ("tensor", "pipeline"),
}
PRESETS: Mapping[str, Table] = {
    "default": {},
    "replicated": {"vocab": (), "embed": (), "expert_embed": (), "heads": (), "mlp": ()},
    # Norms and dropout between blocks work on a part of the length; https://arxiv.org/abs/2205.05198
    "megatron": {"residual_length": ("context", "tensor")},
}
LARGE = 2**24
"""Bytes from which on a parameter should not be replicated on devices that could shard it."""


def table(config: MeshConfig) -> Table:
    """The table of a recipe: the default one, with the preset's and then the recipe's own changes.

    Args:
      config: names the preset and the changes.

    Returns:
      {logical axis: mesh axes, outermost first}.

    Example:
      >>> from jaxpt.config import MeshConfig, RulesConfig
      >>> table(MeshConfig(preset="megatron", rules=RulesConfig(embed=("data",))))["embed"]
      ('data',)
    """
    overrides = {name: axes for name, axes in config.rules.model_dump().items() if axes is not None}
    return {**DEFAULT, **PRESETS[config.preset], **overrides}


def flax_rules(table: Table = DEFAULT) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    """The table in the form that `flax.linen.logical_axis_rules` takes."""
    return tuple((name, axes or None) for name, axes in table.items())


def spec(
    axes: tuple[str | None, ...],
    shape: tuple[int, ...],
    mesh: Mesh,
    name: str = "array",
    table: Table = DEFAULT,
) -> PartitionSpec:
    """The placement of one array.

    Args:
      axes: a logical name for each dimension, or None for one that is not split.
      shape: the array's shape.
      mesh: the device mesh.
      name: the array's name, for messages.
      table: from logical to mesh axes.

    Returns:
      A PartitionSpec with as many entries as the array has dimensions.

    Raises:
      UserError: a name that is not in the table, two dimensions on one mesh axis, or a size that does not divide.

    Example:
      >>> mesh = jax.make_mesh((4, 1, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
      >>> tuple(spec(("layers", "embed", "mlp"), (12, 768, 3072), mesh))
      (None, 'fsdp', 'tensor')
    """
    if len(axes) != len(shape):
        raise UserError(f"{name}: {len(axes)} logical axes {axes} for shape {shape}")
    entries: list[str | tuple[str, ...] | None] = []
    used: dict[str, str] = {}
    for axis, size in zip(axes, shape):
        if axis is not None and axis not in table:
            raise UserError(f"{name}: logical axis {axis!r} is not in the table of jaxpt.parallel.rules")
        mesh_axes = tuple(a for a in table[axis] if a in mesh.shape) if axis is not None else ()
        for mesh_axis in mesh_axes:
            if mesh_axis in used:
                both = f"{used[mesh_axis]!r} and {axis!r}"
                raise UserError(f"{name}: logical axes {both} both want mesh axis {mesh_axis!r}")
            used[mesh_axis] = str(axis)
        ways = math.prod(mesh.shape[a] for a in mesh_axes)
        if size % ways:
            mesh_sizes = " × ".join(f"mesh.{a}={mesh.shape[a]}" for a in mesh_axes)
            raise UserError(f"{name}: {mesh_sizes} does not divide its axis {axis!r} of size {size}")
        entries.append(mesh_axes[0] if len(mesh_axes) == 1 else (mesh_axes or None))
    return PartitionSpec(*entries)


def shardings(axes: Any, shapes: Any, mesh: Mesh, table: Table = DEFAULT) -> Any:
    """The placement of every array of a tree.

    Args:
      axes: a tree whose leaves are tuples of logical names.
      shapes: the tree of arrays or ShapeDtypeStructs.
      mesh: the device mesh.
      table: from logical to mesh axes.

    Returns:
      A tree of NamedShardings like `shapes`.
    """

    def leaf_sharding(path: tuple[Any, ...], leaf: Any, names: tuple[str | None, ...]) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(mesh, spec(names, leaf.shape, mesh, name, table))

    return jax.tree_util.tree_map_with_path(leaf_sharding, shapes, axes)


def large_replicated_params(shapes: Any, shardings: Any) -> list[str]:
    """Arrays that are fully replicated, though the mesh has axes that could shard them.

    Args:
      shapes: a tree of arrays or ShapeDtypeStructs, such as the parameters.
      shardings: their NamedShardings.

    Returns:
      Their names; none if all devices are for the batch alone.
    """
    names = []
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    for (path, leaf), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True):
        ways = sharding.mesh.size // sharding.mesh.shape.get("data", 1)
        size = math.prod(leaf.shape) * jax.numpy.dtype(leaf.dtype).itemsize
        if ways > 1 and size >= LARGE and sharding.is_fully_replicated:
            names.append(jax.tree_util.keystr(path, simple=True, separator="/"))
    return names


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Shards the rows of a batch over the data, fsdp and expert axes, and replicates all other dimensions."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def replicated(mesh: Mesh) -> NamedSharding:
    """Puts the whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())
