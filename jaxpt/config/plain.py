"""Nested mappings of plain values under dotted keys: walk, merge, set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxpt.errors import UserError


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values under their dotted keys; a list or an empty mapping is a value.

    Example:
      >>> dict(leaves({"data": {"length": 512, "modules": []}}))
      {'data.length': 512, 'data.modules': []}
    """
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def get(tree: Any, key: Sequence[str], default: Any = None) -> Any:
    """The value under the parts of a dotted key, or under indices of lists; `default` if there is none."""
    for part in key:
        if isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        else:
            return default
    return tree


def merge(old: Any, new: Any) -> Any:
    """`new` over `old`: mappings key by key (another `kind` starts afresh), everything else is replaced.

    Example:
      >>> merge({"kind": "adamw", "b1": 0.9, "b2": 0.98}, {"b2": 0.999})
      {'kind': 'adamw', 'b1': 0.9, 'b2': 0.999}
      >>> merge({"kind": "adamw", "b1": 0.9}, {"kind": "sgd"})
      {'kind': 'sgd'}
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    if switches(old, new):
        return new
    return old | {key: merge(old[key], value) if key in old else value for key, value in new.items()}


def switches(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """True if `new` names another `kind` than `old`; `t5` and `jaxpt.models.t5` are the same."""
    if "kind" not in old or "kind" not in new:
        return False
    was, now = (str(part["kind"]) for part in (old, new))
    if was.startswith("jaxpt.") != now.startswith("jaxpt."):
        was, now = was.rpartition(".")[2], now.rpartition(".")[2]
    return was != now


def put(tree: Any, key: str, value: Any, where: str) -> None:
    """Sets a dotted key in place; a mapping is merged into the one that is there, an empty one takes its place.

    Args:
      tree: nested mappings and lists.
      key: such as `optimizer.learning_rate`, or `train.phases.0.steps` for the first of a list.
      value: a plain value.
      where: who sets it, for messages.

    Raises:
      UserError: the key goes through a value that has no keys.

    Example:
      >>> tree = {"metric_options": {"bleu": {"tokenize": "intl"}}}
      >>> put(tree, "metric_options", {}, "command line")
      >>> tree
      {'metric_options': {}}
    """
    parts = key.split(".")
    at: Any = key
    for depth, part in enumerate(parts):
        rest = ".".join(parts[depth:])
        if isinstance(tree, dict) and rest in tree:  # a phase's `set` has dotted keys
            at = rest
            break
        at = part
        if isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            at = int(part)
        elif not isinstance(tree, dict):
            kind = f"a list of {len(tree)}" if isinstance(tree, list) else "a value, not a mapping"
            raise UserError(f"{where}: {key}: {'.'.join(parts[:depth])} is {kind}, it has no {part}")
        elif depth + 1 < len(parts) and tree.get(part) is None:
            tree[part] = {}
        if depth + 1 < len(parts):
            tree = tree[at]
    below = None if value == {} else tree[at] if at in tree or isinstance(at, int) else None
    tree[at] = merge(below, value)
