"""A recipe in layers, a file over its `base:` and overrides over files: no value of a layer is lost without a word.

A layer that names another `kind` keeps what all kinds share; the rest of the lower layer is dropped, and said. A key
that a phase of a lower layer sets again would have no effect there, and is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxpt.config.parts import ModelConfig, ObjectiveConfig
from jaxpt.config.plain import get, switches
from jaxpt.errors import UserError

_SHARED = {"model": tuple(ModelConfig.model_fields), "objective": tuple(ObjectiveConfig.model_fields)}


class Dropped(NamedTuple):
    """A key that was left behind with its kind."""

    where: str
    """Who named the other kind."""
    key: str
    value: Any
    kinds: tuple[str, str]
    """The old and the new one."""


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


def dropped_lines(dropped: list[Dropped], tree: dict[str, Any]) -> list[str]:
    """A line for each switch of a kind by which a value was lost.

    Args:
      dropped: what `switch` found.
      tree: all values, in which a higher layer or a default may have the same one.

    Returns:
      Lines such as "mine.yaml: optimizer.kind: lion drops adamw's b1: 0.8".
    """
    lines: dict[tuple[str, ...], list[str]] = {}
    for where, key, value, kinds in dropped:
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
