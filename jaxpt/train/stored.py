"""What a checkpoint holds, seen as the parameters of a model: averages where there are any, segments that were split
joined, adapters added to their matrices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util
from jax.sharding import NamedSharding

from jaxpt import config as configs
from jaxpt.config import LoraConfig
from jaxpt.errors import UserError
from jaxpt.models import parts
from jaxpt.parallel import rules
from jaxpt.train import lora


def sources(saved: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Each saved parameter, and where it is to be read: {path: ("params" or "ema", array or its metadata)}.

    Args:
      saved: a state, or its metadata; the average is of what was trained, and may lack parameters.
    """
    return {
        path: (key, x)
        for key in ("params", "ema")
        for path, x in traverse_util.flatten_dict(saved.get(key) or {}, sep="/").items()
    }


def shapes(found: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Of the model's parameters: their tree of shapes, no segment split, without adapters.

    Args:
      found: what `sources` gave.
    """

    def joined(pieces: list[Any]) -> Any:
        layers = sum(piece.shape[0] for piece in pieces)
        return jax.ShapeDtypeStruct((layers, *pieces[0].shape[1:]), pieces[0].dtype)

    model_shapes = {
        path: jax.ShapeDtypeStruct(tuple(x.shape), x.dtype) for path, (_, x) in found.items() if not is_adapter(path)
    }
    return traverse_util.unflatten_dict(parts.join(model_shapes, joined), sep="/")


def is_adapter(path: str) -> bool:
    """True for a parameter of a low-rank adapter."""
    return path.startswith(f"{lora.ADAPTER}/")


def adapter(run_dir: Path, found: Mapping[str, Any]) -> LoraConfig | None:
    """Settings of a checkpoint's low-rank adapter; None where it has none."""
    return configs.load(run_dir).train.lora if any(map(is_adapter, found)) else None


def placed(
    found: Mapping[str, tuple[str, Any]], axes: Mapping[str, Any], mesh: jax.sharding.Mesh, table: rules.Table
) -> dict[str, jax.ShapeDtypeStruct]:
    """What the saved parameters are read into: sharded as the model's are, adapters replicated.

    Args:
      found: what `sources` gave.
      axes: {path: logical axes} of the model, no segment split.
      mesh: the device mesh.
      table: from logical to mesh axes.
    """

    def abstract_array(path: str, x: Any) -> jax.ShapeDtypeStruct:
        names = (None,) * len(x.shape) if is_adapter(path) else axes[parts.whole(path)]
        spec = rules.spec(names, tuple(x.shape), mesh, path, table)
        return jax.ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=NamedSharding(mesh, spec))

    return {path: abstract_array(path, x) for path, (_, x) in found.items()}


def compare_model(directory: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises UserError where a checkpoint's parameters have not the names and shapes of a model's.

    Args:
      directory: the checkpoint, for the message.
      saved: its parameters; arrays, or anything with a shape.
      wanted: those of the model.
    """
    saved_shapes, model_shapes = (
        {path: tuple(x.shape) for path, x in traverse_util.flatten_dict(tree, sep="/").items()}
        for tree in (saved, wanted)
    )
    was_new, is_new = (any(path.startswith("model/") for path in paths) for paths in (saved_shapes, model_shapes))
    if is_new and not was_new:
        raise UserError(
            f"{directory}: was written by an older version of jaxpt, which kept heads among the model's parameters; "
            "export it with that version, then import it here"
        )
    differing = [path for path in model_shapes | saved_shapes if model_shapes.get(path) != saved_shapes.get(path)]
    if differing:
        shapes = (
            f"shape {side[differing[0]]}" if differing[0] in side else "no place"
            for side in (saved_shapes, model_shapes)
        )
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise UserError(
            f"{directory}: holds another model than the configuration: {differing[0]} has {next(shapes)} there, "
            f"{next(shapes)} here{more}; was config.yaml edited, or a model.… key changed?"
        )


def compare_step(directory: Path, saved: Any) -> None:
    """Raises UserError where the step in a checkpoint's state is not the one that its directory is named after."""
    if int(saved) != int(directory.name):
        raise UserError(f"{directory}: its state is that of step {int(saved)}: the directory was renamed")
