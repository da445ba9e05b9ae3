"""Which parameters a run trains, in each of its phases, and how they are stored for it.

Parameters are one tree. A step is differentiated by the trained subtree alone, which alone has optimizer state and an
average; the frozen rest passes through. Where some layers of a stack are trained and others are not, its segment is
stored in parts (`jaxpt.models.parts`): the layers below all that is trained then have no backward pass.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import Config, LoraConfig
from jaxpt.errors import UserError
from jaxpt.models import parts
from jaxpt.models.network import Network
from jaxpt.train import layer_rates, lora, optimizers, patterns, unfreezing

_SEGMENT = re.compile(r"(.*segment_\d+)/")

Vectors = dict[str, np.ndarray]
"""{path: numbers}, [layers], or [] of a parameter without a layers axis."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the parameters of a run are stored, and which are trained when. Paths are those of the stored tree."""

    parts: parts.Parts
    """The segments that are split."""
    adapted: tuple[str, ...]
    """Matrices with a low-rank adapter."""
    since: tuple[Mapping[str, int], ...]
    """For each phase {path of a trained parameter: the phase since which it is}."""
    rates: Vectors | None
    """Factors of the learning rate, None where all are 1."""
    decays: Vectors | None
    """Factors of the weight decay, None where all are 1."""

    def ever_trained(self, shapes: Any, axes: Any) -> Vectors:
        """Which parameters of the model some phase trains: {path: bool [layers], or []}.

        Args:
          shapes: of the model's parameters, no segment split.
          axes: their logical axes.
        """
        trained, masks = {path for since in self.since for path in since}, {}
        for path, leaf in patterns.leaves(shapes, axes).items():
            masks[path] = leaf.none
            for place, at in parts.places(path, self.parts):
                masks[path][at if leaf.layers is not None else ()] = place in trained
        return masks

    def groups(self, phase: int) -> list[optimizers.Group]:
        """The groups of the optimizer: a parameter's state begins where it is first trained; none where all is alike.

        Their names do not depend on the phase, so that states are found again in the next one.
        """
        late = any(first > 0 for since in self.since for first in since.values())
        if not late and self.decays is None:
            return []
        members: dict[tuple[int, float], dict[str, np.ndarray | None]] = {}
        for path, first in self.since[phase].items():
            decays = np.ones(()) if self.decays is None else self.decays[path]
            for decay in np.unique(decays):
                rows = None if (decays == decay).all() else np.flatnonzero(decays == decay)
                members.setdefault((first, float(decay)), {})[path] = rows

        def name(first: int, decay: float) -> str:
            words = [f"since_phase_{first + 1}"] if late else []
            return "_".join(words if self.decays is None else [*words, f"decay_{decay:g}"])

        return [optimizers.Group(name(*key), rows, key[1]) for key, rows in sorted(members.items())]


def layout(config: Config, shapes: Any, axes: Any) -> Layout:
    """Finds out what the patterns of a recipe mean for a model.

    Args:
      config: of the whole run.
      shapes: of the model's parameters, no segment split.
      axes: their logical axes.

    Returns:
      The layout.

    Raises:
      UserError: a pattern that holds for nothing, a phase that trains nothing.
    """
    tree, adapted = described(config, shapes, axes)
    trained = trained_in_phases(config, tree, adapted)
    split = _parts(tree, [*trained, adapted])

    def spread(masks: Mapping[str, np.ndarray]) -> Vectors:
        return {place: np.asarray(x)[at] if x.ndim else x for path, x in masks.items() for place, at in _at(path, x)}

    def _at(path: str, x: np.ndarray) -> list[tuple[str, slice]]:
        return parts.places(path, split)

    since: list[dict[str, int]] = []
    for index, masks in enumerate(trained):
        before = since[-1] if since else {}
        since.append({path: before.get(path, index) for path, x in spread(masks).items() if x.all()})
    rates, decays = layer_rates.factors(config.optimizer, tree), _decays(config, tree)
    return Layout(
        split,
        tuple(path for path, x in spread(adapted).items() if x.all()),
        tuple(since),
        None if rates is None else spread(rates),
        None if decays is None else spread(decays),
    )


def described(config: Config, shapes: Any, axes: Any) -> tuple[dict[str, patterns.Leaf], Mapping[str, np.ndarray]]:
    """The parameters of a model and of its low-rank adapters, and which of their matrices have one."""
    tree = patterns.leaves(shapes, axes)
    if config.train.lora is None:
        return tree, {}
    adapted = lora.targets(config.train.lora, tree)
    flat, names = (traverse_util.flatten_dict(x, sep="/") for x in (shapes, axes))
    adapters = lora.describe(config.train.lora, {path: flat[path] for path in adapted}, names)
    return tree | patterns.leaves(*(traverse_util.unflatten_dict(x, sep="/") for x in adapters)), adapted


def trained_in_phases(
    config: Config, tree: Mapping[str, patterns.Leaf], adapted: Mapping[str, np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """What each phase of the recipe trains, in the tree that is not split.

    Those that the run does not come to count too: a run that is made longer finds its parameters stored as before.
    """
    phase_masks = []
    for index, stage in enumerate(configs.train_stages(config)):
        trained = _trained(configs.at_phase(config, index), index, tree, adapted)
        if config.train.unfreeze is not None:
            opened = unfreezing.opened(config, tree, stage.unfrozen)
            trained = {path: x & opened[path] for path, x in trained.items()}
            if not any(x.any() for x in trained.values()):
                raise UserError(f"train.unfreeze: nothing that train.trainable names is open at step {stage.start}")
        phase_masks.append(trained)
    return phase_masks


def lines(config: Config, network: Network) -> list[str]:
    """What a run shows of gradual unfreezing and of the learning rates of layers; [] where there is neither."""
    if config.train.unfreeze is None and config.optimizer.layer_decay is None and not config.optimizer.rate_multipliers:
        return []
    tree, adapted = described(config, network.shapes(), network.logical_axes())
    trained = trained_in_phases(config, tree, adapted)
    return [*unfreezing.lines(config, tree, trained), *layer_rates.lines(config.optimizer, tree, trained)]


def _trained(
    config: Config, phase: int, tree: Mapping[str, patterns.Leaf], adapted: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What a phase trains, in the tree that is not split."""
    trainable_patterns = config.train.trainable or (("*",) if config.train.lora is None else (lora.ADAPTER,))
    masks = patterns.union(trainable_patterns, tree, "train.trainable")
    for path, layers in adapted.items():
        for name in ("a", "b"):
            masks[f"{lora.ADAPTER}/{path}/{name}"] &= layers
    if not any(x.any() for x in masks.values()):
        raise UserError(f"train.trainable: {list(trainable_patterns)} leaves nothing to train in phase {phase + 1}")
    features = getattr(config.objective, "features", None)
    of_model = [path for path, x in masks.items() if x.any() and path.startswith(("model/", f"{lora.ADAPTER}/model/"))]
    if features is not None and features.frozen and of_model:
        raise UserError(
            f"train.trainable: {list(trainable_patterns)} trains {of_model[0]}, of the model that "
            "objective.features.frozen reads; name [heads] alone, or set objective.features.frozen=false"
        )
    return masks


def _parts(tree: Mapping[str, patterns.Leaf], chosen: Sequence[Mapping[str, np.ndarray]]) -> parts.Parts:
    """Splits each segment where a choice changes from one repetition of its blocks to the next."""
    rows: dict[str, list[np.ndarray]] = {}
    numbers: dict[str, list[tuple[int, ...]]] = {}
    for path, leaf in tree.items():
        if leaf.layers is None:
            continue
        segment = _SEGMENT.match(path.removeprefix(f"{lora.ADAPTER}/"))[1]
        numbers.setdefault(segment, []).append(leaf.layers)
        rows.setdefault(segment, []).extend(choice[path] for choice in chosen if path in choice)
    split: dict[str, tuple[parts.Part, ...]] = {}
    for segment, held in rows.items():
        by_repetition = np.stack(held)
        changes = np.flatnonzero((by_repetition[:, 1:] != by_repetition[:, :-1]).any(0)) + 1
        if len(changes) == 0:
            continue
        bounds = [0, *(int(n) for n in changes), by_repetition.shape[1]]
        layers = np.array(numbers[segment])
        first, last = layers.min(0), layers.max(0)
        split[segment] = tuple(
            parts.Part(f"layers_{first[a]}-{last[b - 1]}", a, b) for a, b in itertools.pairwise(bounds)
        )
        split[f"{lora.ADAPTER}/{segment}"] = split[segment]
    return split


def _decays(config: Config, tree: Mapping[str, patterns.Leaf]) -> Vectors | None:
    factors = config.optimizer.decay_multipliers
    return patterns.product(factors, tree, "optimizer.decay_multipliers") if factors else None


# ---- trees ----------------------------------------------------------------------------------------------------------


def take(tree: Any, paths: Iterable[str]) -> Any:
    """A part of a tree, which is nested dicts: the leaves at some paths. Of all paths it is the tree itself."""
    selected, flat = set(paths), traverse_util.flatten_dict(tree, sep="/")
    if selected.issuperset(flat):
        return tree
    return traverse_util.unflatten_dict({path: x for path, x in flat.items() if path in selected}, sep="/")


def without(tree: Any, paths: Iterable[str]) -> Any:
    """A tree without the leaves at some paths."""
    left_out, flat = set(paths), traverse_util.flatten_dict(tree, sep="/")
    return traverse_util.unflatten_dict({path: x for path, x in flat.items() if path not in left_out}, sep="/")


def put(tree: Any, part: Any) -> Any:
    """A tree with the leaves of `part`, nested or by path, beside its own or in their place."""
    flat, new = (traverse_util.flatten_dict(x, sep="/") for x in (tree, part))
    return traverse_util.unflatten_dict({**flat, **new}, sep="/") if new else tree


def stored(layout: Layout, adapter: LoraConfig | None, shapes: Any, axes: Any) -> tuple[Any, Any]:
    """Shapes and logical axes of a model's parameters as a run stores them: segments split, with adapters."""
    shapes, axes = parts.split(shapes, layout.parts), parts.split(axes, layout.parts)
    new_shapes, new_axes = _adapters(layout, adapter, shapes, axes)
    return put(shapes, new_shapes), put(axes, new_axes)


def store(layout: Layout, adapter: LoraConfig | None, params: Any, axes: Any, key: jax.Array) -> Any:
    """A model's parameters as a run stores them, likewise.

    Args:
      layout: of the run.
      adapter: the low-rank adapter, None where there is none.
      params: the model's parameters.
      axes: the logical axes of the stored ones.
      key: draws the adapters.
    """
    params = parts.split(params, layout.parts)
    shapes, _ = _adapters(layout, adapter, params, axes)
    return put(params, lora.init(shapes, key))


def _adapters(layout: Layout, adapter: LoraConfig | None, stored: Any, axes: Any) -> tuple[Any, Any]:
    if adapter is None:
        return {}, {}
    flat, names = (traverse_util.flatten_dict(tree, sep="/") for tree in (stored, axes))
    return lora.describe(adapter, {path: flat[path] for path in layout.adapted}, names)


# ---- from phase to phase --------------------------------------------------------------------------------------------


def resumed(fresh: Any, updates: jax.Array) -> Any:
    """A fresh optimizer state whose learning rate goes on where the run stands.

    Args:
      fresh: of an optimizer before any step.
      updates: int32 []: updates that the run has made.
    """

    def is_place(x: Any) -> bool:  # in a schedule: optax's states of it hold a count alone
        return getattr(x, "_fields", None) == ("count",)

    def set_count(x: Any) -> Any:
        return x._replace(count=jnp.full_like(x.count, updates)) if is_place(x) else x

    return jax.tree.map(set_count, fresh, is_leaf=is_place)


def carried(old: Any, fresh: Any) -> Any:
    """`fresh`, with what `old` has under the same paths: of parameters that were trained before."""
    known = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(old)}

    def carry_over(path: tuple[Any, ...], x: Any) -> Any:
        before = known.get(jax.tree_util.keystr(path))
        return before if before is not None and before.shape == x.shape else x

    return jax.tree_util.tree_map_with_path(carry_over, fresh)
