"""Which parameters a run trains, in each of its stages, at which rate, and how they are stored for it.

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

import numpy as np
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import Config, OptimizerConfig
from jaxpt.errors import UserError, listed
from jaxpt.models import parts
from jaxpt.train import lora, optimizers, patterns
from jaxpt.train.patterns import Leaf, Vectors

_SEGMENT = re.compile(r"(.*segment_\d+)/")
_MAX_NAMES = 8
"""At most so many patterns of one learning rate are listed."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the parameters of a run are stored, and which are trained when.

    Paths are those of the stored tree, but for `tree` and `masks`.
    """

    tree: Mapping[str, Leaf]
    """The parameters of the model and of its adapters, no segment split."""
    masks: tuple[Vectors, ...]
    """For each stage which of `tree` are trained."""
    parts: parts.Parts
    """The segments that are split."""
    adapted: tuple[str, ...]
    """Matrices with a low-rank adapter."""
    since: tuple[Mapping[str, int], ...]
    """For each stage {path of a trained parameter: the stage since which it is}."""
    rates: Vectors | None
    """Factors of the learning rate, None where all are 1."""
    decays: Vectors | None
    """Factors of the weight decay, None where all are 1."""

    def ever_trained(self) -> Vectors:
        """Which parameters of `tree` some stage trains: {path: bool [layers], or []}."""
        return {path: np.any([masks[path] for masks in self.masks], axis=0) for path in self.tree}

    def groups(self, stage: int) -> list[optimizers.Group]:
        """The groups of the optimizer: a parameter's state begins anew where it is opened; none where all is alike.

        Their names do not depend on the stage, so that states are found again in the next one.
        """
        late = any(first > 0 for since in self.since for first in since.values())
        if not late and self.decays is None:
            return []
        members: dict[tuple[int, float], dict[str, np.ndarray | None]] = {}
        exact: dict[tuple[int, float], float] = {}
        for path, first in self.since[stage].items():
            decays = np.ones(()) if self.decays is None else self.decays[path]
            # Rounded as in the name: equal products may differ in a last bit.
            rounded = np.vectorize(lambda x: float(f"{x:g}"))(decays)
            for decay in np.unique(rounded):
                key, is_own = (first, float(decay)), rounded == decay
                members.setdefault(key, {})[path] = None if is_own.all() else np.flatnonzero(is_own)
                exact.setdefault(key, float(decays[is_own][0]))

        def name(first: int, decay: float) -> str:
            words = [f"since_phase_{first + 1}"] if late else []
            return "_".join(words if self.decays is None else [*words, f"decay_{decay:g}"])

        return [optimizers.Group(name(*key), members[key], exact[key]) for key in sorted(members)]


def layout(config: Config, shapes: Any, axes: Any) -> Layout:
    """Finds out what the patterns of a recipe mean for a model.

    Args:
      config: of the whole run.
      shapes: of the model's parameters, no segment split.
      axes: their logical axes.

    Returns:
      The layout.

    Raises:
      UserError: a pattern that matches nothing, a phase that trains nothing.
    """
    tree, adapters, adapted = _parameters(config, shapes, axes)
    masks = _trained_masks(config, tree, adapted)
    # Adapters by the layers of their tree alone: so earlier versions named the parts, which are paths in checkpoints.
    split = _split(tree | adapters, [*masks, adapted])

    def stored(vectors: Vectors) -> Vectors:
        pieces = ((place, x, at) for path, x in vectors.items() for place, at in parts.places(path, split))
        return {place: x[at] if x.ndim else x for place, x, at in pieces}

    since: list[dict[str, int]] = []
    for stage, vectors in enumerate(masks):
        before = since[-1] if since else {}
        since.append({path: before.get(path, stage) for path, x in stored(vectors).items() if x.all()})
    rates, decays = _rates(config.optimizer, tree), config.optimizer.decay_multipliers
    return Layout(
        tree,
        tuple(masks),
        split,
        tuple(path for path, x in stored(adapted).items() if x.all()),
        tuple(since),
        stored(rates) if rates else None,
        stored(patterns.product(decays, tree, "optimizer.decay_multipliers")) if decays else None,
    )


def _parameters(config: Config, shapes: Any, axes: Any) -> tuple[dict[str, Leaf], dict[str, Leaf], Vectors]:
    """The parameters of a model and of its low-rank adapters; the adapters with the layers that their tree alone has;
    and which matrices have one."""
    tree = patterns.leaves(shapes, axes)
    if config.train.lora is None:
        return tree, {}, {}
    adapted = lora.targets(config.train.lora, tree)
    flat, names = (traverse_util.flatten_dict(x, sep="/") for x in (shapes, axes))
    described = lora.describe(config.train.lora, {path: flat[path] for path in adapted}, names)
    adapters = patterns.leaves(*(traverse_util.unflatten_dict(x, sep="/") for x in described))

    def with_layers(path: str, leaf: Leaf) -> Leaf:  # of its matrix: blocks without an adapter are not in its tree
        matrix = tree[path.removeprefix(f"{lora.ADAPTER}/").rpartition("/")[0]]
        return dataclasses.replace(leaf, layers=matrix.layers, depth=matrix.depth, above=matrix.above)

    return tree | {path: with_layers(path, leaf) for path, leaf in adapters.items()}, adapters, adapted


def _trained_masks(config: Config, tree: Mapping[str, Leaf], adapted: Vectors) -> list[Vectors]:
    """Which parameters each stage of the recipe trains.

    Those that the run does not reach count too: a run that is made longer finds its parameters stored as before.
    """
    stages, masks = configs.train_stages(config), []
    order = _unfreezing_order(config, tree, stages[-1].unfrozen) if config.train.unfreeze else None
    for index, stage in enumerate(stages):
        trained = _named_trainable(configs.at_phase(config, index), index, tree, adapted)
        if order is not None:
            trained = {path: x & (order[path] <= stage.unfrozen) for path, x in trained.items()}
            if not any(x.any() for x in trained.values()):
                raise UserError(f"train.unfreeze: nothing that train.trainable names is open at step {stage.start}")
        masks.append(trained)
    return masks


def _named_trainable(config: Config, stage: int, tree: Mapping[str, Leaf], adapted: Vectors) -> Vectors:
    """Which parameters `train.trainable` names; by default all, with `train.lora` its adapters."""
    named = config.train.trainable or (("*",) if config.train.lora is None else (lora.ADAPTER,))
    masks = patterns.union(named, tree, "train.trainable")
    if config.model.fixed_params:
        fixed = patterns.union(config.model.fixed_params, tree, "fixed_params")
        masks = {path: mask & ~fixed[path] for path, mask in masks.items()}
    for path, layers in adapted.items():
        for name in ("a", "b"):
            masks[f"{lora.ADAPTER}/{path}/{name}"] &= layers
    if not any(x.any() for x in masks.values()):
        raise UserError(f"train.trainable: {list(named)} leaves nothing to train in phase {stage + 1}")
    features = getattr(config.objective, "features", None)
    of_model = [path for path, x in masks.items() if x.any() and path.startswith(("model/", f"{lora.ADAPTER}/model/"))]
    if features is not None and features.frozen and of_model:
        raise UserError(
            f"train.trainable: {list(named)} trains {of_model[0]}, of the model that "
            "objective.features.frozen reads; name [heads] alone, or set objective.features.frozen=false"
        )
    return masks


def _unfreezing_order(config: Config, tree: Mapping[str, Leaf], last: int) -> Vectors:
    """By how many openings each parameter, or each of its layers, is unfrozen: heads and final norms by 0, then a layer
    at a time from the top (the decoder's first), the embeddings last; all that is left by the `last` opening.

    Raises:
      UserError: layers share their parameters, or there are more openings than groups.
    """
    stacks = {leaf.top: leaf for leaf in tree.values() if leaf.stack is not None and not leaf.of_head}
    for leaf in tree.values():
        if leaf.stack is not None and not leaf.of_head and leaf.layers is None:
            raise UserError(f"train.unfreeze: the layers of {leaf.stack} share their parameters")
    above = dict(zip(sorted(stacks), itertools.accumulate((stacks[name].depth for name in sorted(stacks)), initial=1)))
    layers = sum(leaf.depth for leaf in stacks.values())

    def order(leaf: Leaf) -> np.ndarray:
        if leaf.of_embeddings:
            return np.array(layers + 1)
        if leaf.of_head or leaf.stack is None:
            return np.array(0)
        return above[leaf.top] + leaf.depth - 1 - np.array(leaf.layers)

    orders = {path: order(leaf) for path, leaf in tree.items()}
    last_group = max(int(x.max()) for x in orders.values())
    if config.train.unfreeze.steps is not None and last > last_group:
        raise UserError(
            f"train.unfreeze.steps: {last + 1} steps, but the model opens in {last_group + 1}: heads, {last_group - 1} "
            "layers, embeddings"
        )
    return {path: np.minimum(x, last) for path, x in orders.items()}


def _split(tree: Mapping[str, Leaf], choices: Sequence[Vectors]) -> parts.Parts:
    """Splits each segment where a choice changes from one repetition of its blocks to the next."""
    rows: dict[str, list[np.ndarray]] = {}
    numbers: dict[str, list[tuple[int, ...]]] = {}
    for path, leaf in tree.items():
        if leaf.layers is None:
            continue
        segment = _SEGMENT.match(path.removeprefix(f"{lora.ADAPTER}/"))[1]
        numbers.setdefault(segment, []).append(leaf.layers)
        rows.setdefault(segment, []).extend(choice[path] for choice in choices if path in choice)
    split: dict[str, tuple[parts.Part, ...]] = {}
    for segment, segment_rows in rows.items():
        by_repetition = np.stack(segment_rows)
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


def _rates(config: OptimizerConfig, tree: Mapping[str, Leaf]) -> Vectors | None:
    """The factor of the learning rate of each parameter, or of each of its layers; None where all are 1."""
    if config.layer_decay is None and not config.rate_multipliers:
        return None
    factors = patterns.product(config.rate_multipliers, tree, "optimizer.rate_multipliers")
    depth = max((leaf.depth + leaf.above for leaf in tree.values()), default=0)
    for path, leaf in tree.items():
        above = np.array(depth) if leaf.of_embeddings else leaf.layers_above
        if not leaf.of_head:
            above = above + config.layer_decay_offset
        factors[path] = factors[path] * (config.layer_decay or 1.0) ** above
    return factors


def problems(config: Config, layout: Layout) -> list[str]:
    """A line for each setting that is idle, or wrong, for the parameters of the model: a run does not begin with it."""
    lines, leaves = idle_multipliers(config.optimizer, layout), layout.tree.values()
    adapted = [x for path, x in layout.ever_trained().items() if path.startswith(f"{lora.ADAPTER}/")]
    if config.train.lora is not None and not any(x.any() for x in adapted):
        lines.append("train.lora: no phase trains the adapter; add adapter to train.trainable, or leave train.lora out")
    in_stacks = [leaf for leaf in leaves if leaf.stack is not None and not leaf.of_head]
    shared = next((leaf.top for leaf in in_stacks if leaf.layers is None), None)
    if shared and config.optimizer.layer_decay not in (None, 1):
        lines.append(f"optimizer.layer_decay: the layers of {shared} share their parameters; leave it out")
    # The right order would lay out the optimizer's state otherwise than checkpoints have it.
    if config.train.unfreeze and any(leaf.above for leaf in in_stacks):
        names = ", ".join(sorted({leaf.top for leaf in in_stacks}))
        lines.append(
            f"train.unfreeze: opens {names} out of order; leave it out, and name what each of train.phases trains by "
            "train.trainable"
        )
    return lines


def idle_multipliers(config: OptimizerConfig, layout: Layout) -> list[str]:
    """A line for each pattern of `rate_multipliers` and `decay_multipliers` that holds for frozen parameters alone."""
    ever, problems = layout.ever_trained(), []
    for name in ("rate_multipliers", "decay_multipliers"):
        for pattern, _ in getattr(config, name):
            held = patterns.select(pattern, layout.tree, f"optimizer.{name}")
            if not any((held[path] & mask).any() for path, mask in ever.items()):
                problems.append(f"optimizer.{name}: {pattern!r} matches no trained parameter; remove it")
    return problems


# ---- report ---------------------------------------------------------------------------------------------------------


def lines(config: Config, layout: Layout) -> list[str]:
    """What a run prints about gradual unfreezing and about the learning rates of layers; [] where there is neither."""
    return [*_unfreezing_lines(config, layout), *_rate_lines(config.optimizer, config.train.steps, layout)]


def _unfreezing_lines(config: Config, layout: Layout) -> list[str]:
    """Lines such as "  step 101  model/encoder[11]"."""
    if config.train.unfreeze is None:
        return []
    rows, before = ["gradual unfreezing, from step:"], {path: leaf.empty_mask for path, leaf in layout.tree.items()}
    for stage, masks in zip(configs.train_stages(config), layout.masks, strict=True):
        new = patterns.to_patterns({path: x & ~before[path] for path, x in masks.items()}, layout.tree)
        late = " (the run ends before)" if stage.start >= config.train.steps else ""
        if new:
            rows.append(f"  {stage.start + 1:<6} {', '.join(new)}{late}")
        before = {path: x | before[path] for path, x in masks.items()}
    return rows


def _rate_lines(config: OptimizerConfig, steps: int, layout: Layout) -> list[str]:
    """A line for each rate, the highest first, such as "  6.4e-05  model/encoder[11]"."""
    factors, ever = _rates(config, layout.tree), layout.ever_trained()
    if factors is None:
        return []
    peak = config.schedule.within(steps).peak(config.learning_rate, steps)
    factors = {path: config.rate_factor(layout.tree[path].axes) * x for path, x in factors.items() if ever[path].any()}
    rates = {path: np.round(peak * x, 15) for path, x in factors.items()}  # equal products may differ in a last bit
    distinct = sorted({float(f"{y:.6g}") for path, x in rates.items() for y in x[ever[path]].reshape(-1)})
    rows = ["learning rates at the peak:"]
    for rate in reversed(distinct):
        masks = {path: np.isclose(x, rate, rtol=1e-5, atol=0) & ever[path] for path, x in rates.items()}
        names = patterns.to_patterns(masks, layout.tree)
        rows.append(f"  {rate:<9.4g} {listed(names, _MAX_NAMES)}")
    return rows


# ---- trees ----------------------------------------------------------------------------------------------------------


def partition(tree: Any, paths: Iterable[str]) -> tuple[Any, Any]:
    """(the leaves of nested dicts at some paths, the others), each as a tree."""
    selected, flat = set(paths), traverse_util.flatten_dict(tree, sep="/")
    if selected.issuperset(flat):
        return tree, {}
    halves = ({path: x for path, x in flat.items() if (path in selected) == is_first} for is_first in (True, False))
    first, second = (traverse_util.unflatten_dict(half, sep="/") for half in halves)
    return first, second


def merge(tree: Any, part: Any) -> Any:
    """A tree with the leaves of `part`, nested or by path, beside its own or in their place."""
    flat, new = (traverse_util.flatten_dict(x, sep="/") for x in (tree, part))
    return traverse_util.unflatten_dict({**flat, **new}, sep="/") if new else tree
