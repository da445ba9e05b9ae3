"""A recipe in layers, a file over its `base:` and overrides over files: no value of a layer is lost without a word.

A layer that names another `kind` of model or objective keeps what all kinds of it share; the rest of the lower layer's
mapping is dropped, and said. An override of `optimizer.kind` alone drops the other optimizer's own keys. A key that a
phase of a lower layer sets again would have no effect there, and is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxpt.config.kinds import Kind
from jaxpt.config.parts import AnyOptimizer, ModelConfig, ObjectiveConfig
from jaxpt.config.plain import get, switches
from jaxpt.errors import UserError

_SHARED = {"model": tuple(ModelConfig.model_fields), "objective": tuple(ObjectiveConfig.model_fields)}
_OPTIMIZER = next(note for note in AnyOptimizer.__metadata__ if isinstance(note, Kind))


class Dropped(NamedTuple):
    """A key that was left behind with its kind."""

    where: str
    """Who named the other kind."""
    key: str
    value: Any
    kinds: tuple[str, str]
    """The old and the new one."""
    by_kind_alone: bool = False
    """`drop_own_keys` dropped it."""


def switch(old: dict[str, Any], new: dict[str, Any], where: str) -> list[Dropped]:
    """Where `new` has another `kind` than `old`, gives it back what all kinds share.

    Args:
      old: the tree before a layer was merged over it.
      new: the tree after it; changed in place.
      where: the layer, for messages.

    Returns:
      The keys of `old` that were dropped.
    """
    dropped = []
    for key, before, after in _switched(old, new):
        for name in _SHARED.get(key.partition(".")[0], ()):
            if name in before:
                after.setdefault(name, before[name])
        kinds = (before["kind"], after["kind"])
        dropped += [Dropped(where, f"{key}.{name}", before[name], kinds) for name in before if name not in after]
    return dropped


def drop_own_keys(
    old: dict[str, Any], new: dict[str, Any], key: str, origin: Mapping[str, str], where: str
) -> list[Dropped]:
    """Where `optimizer.kind` alone is set, removes the keys that the two optimizers do not share from both trees.

    b1, b2 and eps of another optimizer have other meanings and defaults. A key that the same layer set stays, unless
    that layer had set the kind as well.

    Args:
      old: the tree before an override.
      new: the tree after it.
      key: what the override set.
      origin: for each dotted key who had set it before.
      where: who sets the key.
    """
    before, after = (tree.get("optimizer") for tree in (old, new))
    if key != "optimizer.kind" or not before or not switches({"kind": _OPTIMIZER.default, **before}, after):
        return []
    now, was = _OPTIMIZER.named(after), _OPTIMIZER.named(before)
    shared = {name for cls in was.__mro__ if issubclass(now, cls) for name in getattr(cls, "model_fields", ())}
    of_layer = set() if origin.get(key) == where else {known for known, setter in origin.items() if setter == where}
    own = [name for name in before if name not in shared and f"optimizer.{name}" not in of_layer]
    kinds = (before.get("kind", _OPTIMIZER.default), after["kind"])
    dropped = [Dropped(where, f"optimizer.{name}", before[name], kinds, True) for name in own]
    for name in own:
        del before[name], after[name]
    return dropped


def keep_saved(tree: dict[str, Any], dropped: list[Dropped], saved: dict[str, Any]) -> None:
    """Gives back what `drop_own_keys` dropped where a run that resumes has it: earlier versions kept it.

    Args:
      tree: the recipe with all overrides; changed in place.
      dropped: by them.
      saved: what the run's config.yaml says.
    """
    ours, theirs = tree.get("optimizer"), saved.get("optimizer")
    if not isinstance(ours, dict) or not isinstance(theirs, dict) or switches(theirs, ours):
        return
    for drop in dropped:
        name = drop.key.rpartition(".")[2]
        if drop.by_kind_alone and theirs.get(name, ...) == drop.value:
            ours.setdefault(name, drop.value)


def dropped_lines(dropped: list[Dropped], tree: dict[str, Any]) -> list[str]:
    """A line for each switch of a kind by which a value was lost.

    Args:
      dropped: what `switch` found.
      tree: all values, in which a higher layer or a default may have the same one.

    Returns:
      Lines such as "mine.yaml: optimizer.kind: lion drops adamw's b1: 0.8".
    """
    lines: dict[tuple[str, ...], list[str]] = {}
    for where, key, value, kinds, _ in dropped:
        part, _, name = key.rpartition(".")
        if get(tree, key.split(".")) != value:
            lines.setdefault((where, part, *kinds), []).append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return [
        f"{where}: {part}.kind: {new} drops {old}'s {', '.join(values)}"
        for (where, part, old, new), values in lines.items()
    ]


def switch_advice(message: str, dropped: list[Dropped], origin: Mapping[str, str]) -> str:
    """What to do about a mistake that came of another `kind` over a layer below.

    Args:
      message: of the mistake.
      dropped: what `switch` found.
      origin: for each dotted key who set it.

    Returns:
      The end of the message; "" for other mistakes.
    """
    if match := re.search(r": key (.+)\.\w+ is missing$", message):
        lost = [drop for drop in dropped if drop.key.rpartition(".")[0] == match[1]]
        if not lost:
            return ""
        where, (old, new), names = lost[0].where, lost[0].kinds, ", ".join(drop.key.rpartition(".")[2] for drop in lost)
        return (
            f"; {where} sets {match[1]}.kind: {new}, so {old}'s own {names} below it are dropped; "
            f"write the keys of {new} beside its kind"
            + (", or name one of configs/models in base:" if match[1] == "model" else "")
        )
    if match := re.search(r": unknown key ((.+)\.\w+) of kind (\w+)", message):
        key, part, kind = match.groups()
        order = [name for name in origin if name in (key, f"{part}.kind")]
        where = origin.get(f"{part}.kind")
        if order == [key, f"{part}.kind"] and where != origin[key]:
            return f"; {where} sets {part}.kind: {part}='{{kind: {kind}}}' there drops keys of other kinds"
    return ""


def check_phases(tree: dict[str, Any], origin: Mapping[str, str], overrides: str) -> None:
    """Refuses a key that a phase of a lower layer sets to something else.

    Args:
      tree: all values.
      origin: for each dotted key who set it, the last one last.
      overrides: how the overrides are called there.

    Raises:
      UserError: names the key, the phases, and what to write instead.
    """
    order = list(origin)
    lost: dict[tuple[str, str, str], dict[int, Any]] = {}
    for index, phase in enumerate(tree["train"]["phases"]):
        for key, value in phase["set"].items():
            above, below = _setter(key, origin), _setter(f"train.phases.{index}.set.{key}", origin)
            if above is None or below is None or origin[above] == origin[below] or get(tree, key.split(".")) == value:
                continue
            if order.index(above) > order.index(below):
                lost.setdefault((key, origin[above], origin[below]), {})[index] = value
    for (key, above, below), values in lost.items():
        phases = " and ".join(f"phase {n + 1} ({json.dumps(value)})" for n, value in values.items())
        text = json.dumps(get(tree, key.split(".")), ensure_ascii=False)
        instead = "set train.phases there too, [] for a run without phases"
        if above == overrides:
            words = " ".join(f"train.phases.{n}.set.{key}={text}" for n in values)
            instead = f"write {words}, or 'train.phases=[]' for a run without phases"
        raise UserError(f"{above}: {key}: {text} has no effect in {phases}, set by train.phases of {below}; {instead}")


def _switched(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(dotted key, old mapping, new mapping) where the kinds differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return
    if switches(old, new):
        yield key, old, new
        return
    for name in [name for name in old if name in new]:
        yield from _switched(old[name], new[name], f"{key}.{name}" if key else name)


def _setter(key: str, origin: Mapping[str, str]) -> str | None:
    """The last key set among this one, those above it and those below it."""
    for known in reversed(origin):
        if f"{known}.".startswith(f"{key}.") or f"{key}.".startswith(f"{known}."):
            return known
    return None
